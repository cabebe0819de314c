"""The determinantal point process (DPP) over clients that a scheduler chooses a cohort from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from adcs._types import ClientId, Float64Array, FloatArray, IndexArray
from adcs.dpp.constraints import Constraints
from adcs.dpp.greedy import Selection, greedy_map_rows, greedy_map_trusted
from adcs.dpp.greedy_lazy import FeatureRowSource
from adcs.dpp.kernel import similarity
from adcs.dpp.tolerances import Scorer

GRAM_LIMIT = 2000
"""Up to this many clients the similarity is kept as a matrix; beyond, it is computed as needed."""


@dataclass(frozen=True, eq=False)
class ClientDPP:
    """The DPP with kernel L = Q C Q over the clients that a scheduler has usable reports of.

    Attributes
    ----------
    clients
        The clients, in the order of the rows.
    directions
        Updates (or sketches), scaled to norm one, a row each.
    similarity
        C, the cosines between them; None above `GRAM_LIMIT` clients.
    quality
        q, one score for each client.
    scorer
        theta, and the tolerances that the precision of the kernel asks for.
    rows
        The row of each client in `directions`; None if these are the clients' own, in order.
    squares
        Squared norms of `directions` for a caller that keeps them; None computes them.

    Examples
    --------
    >>> rows = np.array([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> q = np.zeros(3)
    >>> scorer = Scorer.of_features(rows, q, theta=0.5)
    >>> dpp = ClientDPP(["a", "b", "c"], rows, rows @ rows.T, q, scorer)
    >>> [dpp.clients[i] for i in dpp.greedy(2).indices]
    ['a', 'c']
    """

    clients: Sequence[ClientId]
    directions: FloatArray
    similarity: Float64Array | None
    quality: Float64Array
    scorer: Scorer
    rows: IndexArray | None = None
    squares: NDArray[np.floating[Any]] | None = None

    def greedy(self, m: int, constraints: Constraints = Constraints()) -> Selection:  # noqa: B008
        """Return the greedy MAP of m rows; constraints are on positions in `clients`."""
        if self.similarity is None:
            rows = FeatureRowSource(
                self.directions, unit=True, squares=self.squares, index=self.rows
            )
            scorer = Scorer.of_features(self.directions, self.quality, theta=self.scorer.theta)
            return greedy_map_rows(rows, m, scorer, quality=self.quality, constraints=constraints)
        return greedy_map_trusted(
            self.similarity, m, self.scorer, quality=self.quality, constraints=constraints
        )

    def cosines(self) -> Float64Array:
        """Return C, computed where it is not kept."""
        if self.similarity is not None:
            return self.similarity
        return similarity(self.directions if self.rows is None else self.directions[self.rows])

    def diagnostics(self, selection: Selection) -> dict[str, Any]:
        """Return what a cohort's diagnostics say about a selection, as JSON values."""
        chosen = [(self.clients[i], float(self.quality[i])) for i in selection.indices]
        return {
            "gains": [
                [client, finite(gain)]
                for (client, _), gain in zip(chosen, selection.gains, strict=True)
            ],
            "quality": [[client, quality] for client, quality in chosen],
            "objective": finite(selection.objective),
            "log_det": finite(selection.log_det),
            "rank": selection.rank,
        }


@runtime_checkable
class Determinantal(Protocol):
    """A scheduler whose cohorts come from a DPP: ADCS, StaticDPP and LiveADCS.

    Attributes
    ----------
    theta
        Weight of quality against diversity, in [0, 1].
    dpp
        The DPP from which clients with usable reports were last chosen; None before the first
        time. It is valid until the next `observe`.

    Examples
    --------
    >>> import adcs
    >>> isinstance(adcs.LiveADCS(), Determinantal), isinstance(adcs.Uniform(), Determinantal)
    (True, False)
    """

    theta: float
    dpp: ClientDPP | None


def finite(value: float) -> float | None:
    """Return a number as JSON can hold it: None for -inf.

    >>> finite(0.5), finite(float("-inf"))
    (0.5, None)
    """
    return float(value) if math.isfinite(value) else None
