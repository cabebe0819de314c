"""The paper's theory as functions: bounds, checks of their assumptions, and certificates."""

from adcs.theory.bias import bias, general_bound, share_bound
from adcs.theory.certificate import Certificate, certify, least_gain
from adcs.theory.clusters import (
    ClusterCheck,
    Condition,
    StrongClusterBounds,
    check_clusters,
    find_clusters,
    strong_cluster_bounds,
)
from adcs.theory.convergence import (
    Constants,
    ConvergenceBound,
    best_lr,
    convergence_bound,
    lr_for,
    rounds_for,
)
from adcs.theory.estimates import (
    batch_noise,
    largest_norm,
    secant_smoothness,
    softmax_moments,
    softmax_smoothness,
    uniform_selection_variance,
)
from adcs.theory.gram import cosines, from_triangle

__all__ = [
    "Certificate",
    "ClusterCheck",
    "Condition",
    "Constants",
    "ConvergenceBound",
    "StrongClusterBounds",
    "batch_noise",
    "best_lr",
    "bias",
    "certify",
    "check_clusters",
    "convergence_bound",
    "cosines",
    "find_clusters",
    "from_triangle",
    "general_bound",
    "largest_norm",
    "least_gain",
    "lr_for",
    "rounds_for",
    "secant_smoothness",
    "share_bound",
    "softmax_moments",
    "softmax_smoothness",
    "strong_cluster_bounds",
    "uniform_selection_variance",
]
