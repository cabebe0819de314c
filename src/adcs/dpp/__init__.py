"""DPP algorithms on arrays; independent of federated learning.

A determinantal point process (DPP) prefers sets of rows that are diverse and of high quality. The
objective for a set S is (1 - theta) log det C_S + theta sum q, C being the cosine similarity of
the rows and q their quality. `greedy_map` and `greedy_map_features` choose a set, `exact_map`
finds the best one, `improve` swaps rows, `sample_mdpp` draws at random, `facility_location` is
another notion of diversity, and `explain` says why rows were chosen or left out.
"""

from adcs.dpp.constraints import Constraints
from adcs.dpp.exact import exact_map, improve
from adcs.dpp.explain import Explanation, Miss, Pick, Score, explain
from adcs.dpp.facility_location import FacilityResult, facility_location, pairwise_distances
from adcs.dpp.greedy import Selection, greedy_map, greedy_map_features, greedy_map_trusted
from adcs.dpp.kernel import (
    alpha,
    log_det,
    log_kernel,
    objective,
    similarity,
    split_kernel,
    unit_rows,
)
from adcs.dpp.sampling import (
    elementary_symmetric,
    log_probability,
    log_probability_mdpp,
    sample_mdpp,
)
from adcs.dpp.tolerances import Scorer

__all__ = [
    "Constraints",
    "Explanation",
    "FacilityResult",
    "Miss",
    "Pick",
    "Score",
    "Scorer",
    "Selection",
    "alpha",
    "elementary_symmetric",
    "exact_map",
    "explain",
    "facility_location",
    "greedy_map",
    "greedy_map_features",
    "greedy_map_trusted",
    "improve",
    "log_det",
    "log_kernel",
    "log_probability",
    "log_probability_mdpp",
    "objective",
    "pairwise_distances",
    "sample_mdpp",
    "similarity",
    "split_kernel",
    "unit_rows",
]
