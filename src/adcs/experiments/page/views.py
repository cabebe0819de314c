"""Views of clients over the evaluated rounds of one run: plane, cohort, reasons, kernel, rounds.

Views are thinned to a number of bytes, so that the page stays small: with many clients, fewer of
the evaluated rounds are shown. Values of a client are never averaged over rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adcs._types import ClientId, Float64Array
from adcs.experiments.page.encoding import encode, nested, numbers, quantise
from adcs.experiments.page.reasons import States, cohort_states
from adcs.experiments.selections import plane, sample
from adcs.schedulers.choice import unpack_cosines

MOST_STEPS = 240
"""The slider has at most this many positions."""

STEP_BYTES = 16
"""Bytes of one client at one step."""

VIEW_BYTES = 2_400_000
"""Bytes of the steps of all runs, before base64."""

KERNEL_BYTES = 600_000
"""Bytes of the kernels of all runs."""

PARTICIPATION_BYTES = 500_000
"""Bytes of the participation of all runs."""

KERNELS_KEPT = 4096
"""Kernels whose order and plane are kept, for the next page of the same run."""

COLUMNS = 200
"""Rounds are gathered into at most this many columns of the figure of participation."""

PLANE_UNIT = 10_000
"""Coordinates are whole multiples of one over this."""


@dataclass
class Moment:
    """What is known of the clients of a run at one evaluated round.

    Attributes
    ----------
    server_round
        The number of rounds done.
    values, losses
        Metric and loss of each client; None where it is not recorded.
    counts
        How often each client has been selected.
    make_states
        Returns who is selected, and why others are not; called where the moment is shown.
    plane
        Coordinates of clients (NaN for those that are not known); None if not recorded.
    cosines
        Packed cosines of some clients, and which; None if not recorded.
    ranked_by
        What the scheduler ranked clients by, such as "loss"; None if it did not rank them.

    Examples
    --------
    >>> Moment(100, None, None, None, lambda: States.of(3, "chance")).states.codes.size
    3
    """

    server_round: int
    values: Float64Array | None
    losses: Float64Array | None
    counts: NDArray[np.int64] | None
    make_states: Callable[[], States]
    plane: Float64Array | None = None
    cosines: tuple[str, NDArray[np.intp]] | None = None
    ranked_by: str | None = None

    @cached_property
    def states(self) -> States:
        """Who is selected, and why others are not."""
        return self.make_states()


@dataclass(frozen=True)
class Participation:
    """How often each client was selected in each of some spans of rounds.

    Attributes
    ----------
    edges
        The first round of each span, and the end of the last.
    shares
        For each client and span, the share of its rounds, from 0 to 255.

    Examples
    --------
    >>> Participation.of([[0], [0, 1], [1]], clients=2, columns=3).shares.tolist()
    [[255, 255, 0], [0, 255, 255]]
    """

    edges: NDArray[np.intp]
    shares: NDArray[np.uint8]

    @classmethod
    def of(
        cls, cohorts: Sequence[Sequence[int] | NDArray[np.intp]], clients: int, columns: int
    ) -> Participation:
        """Return the participation of clients, by the cohorts of all rounds."""
        count = len(cohorts)
        columns = max(1, min(columns, count))
        edges = np.linspace(0, count, columns + 1).round().astype(np.intp)
        widths = np.maximum(np.diff(edges), 1)
        sizes = [len(cohort) for cohort in cohorts]
        column = np.repeat(np.repeat(np.arange(columns), widths)[:count], sizes)
        flat = np.concatenate([np.empty(0, np.intp), *cohorts]).astype(np.intp)
        table = np.bincount(flat * columns + column, minlength=clients * columns)
        table = table.reshape(clients, columns)
        return cls(edges, np.ceil(255 * table / widths).clip(0, 255).astype(np.uint8))

    def as_json(self) -> dict[str, Any]:
        """Return it for the page."""
        return {"edges": self.edges.tolist(), "shares": encode(self.shares, "u1")}


@dataclass
class Run:
    """The moments of one run, by which its views are made.

    Attributes
    ----------
    label
        The scheduler.
    moments
        The evaluated rounds, in order.
    cohorts
        The cohort of every round, as positions of clients; empty if they are not recorded.
    """

    label: str
    moments: list[Moment] = field(default_factory=list)
    cohorts: Sequence[Sequence[int] | NDArray[np.intp]] = ()


def views(runs: Sequence[Run], clients: int) -> dict[str, Any]:
    """Return the views of runs by label, with how they were thinned, as JSON values.

    Parameters
    ----------
    runs
        The runs.
    clients
        The number of clients.
    """
    count = max(1, len(runs))
    most = int(np.clip(VIEW_BYTES // (count * max(1, clients) * STEP_BYTES), 2, MOST_STEPS))
    columns = int(np.clip(PARTICIPATION_BYTES // (count * max(1, clients)), 20, COLUMNS))
    shown = min(clients, len(sample(clients)))
    kernels = int(np.clip(KERNEL_BYTES // (count * max(1, shown**2 // 2)), 1, most))
    found = {}
    for run in runs:
        kept = [run.moments[i] for i in nested(len(run.moments), most)]
        found[run.label] = {
            **_steps(kept, clients),
            "evaluations": len(run.moments),
            "ranked_by": next((m.ranked_by for m in run.moments if m.ranked_by), None),
            "kernel": _kernel(run.moments, kernels),
            "participation": (
                Participation.of(run.cohorts, clients, columns).as_json() if run.cohorts else None
            ),
        }
    return found


def _steps(moments: Sequence[Moment], clients: int) -> dict[str, Any]:
    """Return the moments as columns."""
    rounds = [moment.server_round for moment in moments]
    empty = np.full(clients, np.nan)
    planes = _aligned([moment.plane for moment in moments])
    found: dict[str, Any] = {
        "rounds": rounds,
        "states": encode([m.states.codes for m in moments], "u1"),
        "others": encode([m.states.others for m in moments], "u2"),
        "similarities": encode([m.states.similarities for m in moments], "i1"),
    }
    for name, pick in (("values", "values"), ("losses", "losses")):
        columns = [getattr(m, pick) for m in moments]
        known = any(column is not None for column in columns)
        found[name] = (
            quantise([empty if column is None else column for column in columns]) if known else None
        )
    counts = [m.counts for m in moments]
    found["counts"] = (
        encode([np.zeros(clients) if c is None else c for c in counts], "u4")
        if any(c is not None for c in counts)
        else None
    )
    found["plane"] = None
    if planes is not None:
        whole = np.where(np.isfinite(planes), np.round(planes * PLANE_UNIT), -32768)
        found["plane"] = {"unit": PLANE_UNIT, "steps": encode(whole, "i2")}
    return found


def _aligned(planes: Sequence[Float64Array | None]) -> Float64Array | None:
    """Return planes, each turned towards the one before; a missing one is the one before.

    The axes of a plane have arbitrary signs, and may swap from one round to the next.
    """
    if all(one is None for one in planes):
        return None
    first = next(one for one in planes if one is not None)
    found: list[Float64Array] = []
    for one in planes:
        last = found[-1] if found else first
        if one is None:
            found.append(last)
            continue
        both = np.isfinite(one).all(axis=1) & np.isfinite(last).all(axis=1)
        if not found or both.sum() < 2:
            found.append(one)
            continue
        u, _, v = np.linalg.svd(one[both].T @ last[both])
        found.append(one @ (u @ v))
    return np.array(found)


def _kernel(moments: Sequence[Moment], most: int) -> dict[str, Any] | None:
    """Return the kernels of some moments, their clients ordered by cluster."""
    known = [moment for moment in moments if moment.cosines is not None]
    if not known:
        return None
    kept = [known[i] for i in nested(len(known), most)]
    found = []
    for moment in kept:
        assert moment.cosines is not None
        text, clients = moment.cosines
        found.append(
            {
                "round": moment.server_round,
                "clients": clients.tolist(),
                "order": _packed_order(text, len(clients)),
                "cosines": text,
            }
        )
    return {"steps": found}


def cluster_order(cosines: Float64Array) -> NDArray[np.intp]:
    """Return clients in an order in which similar ones are neighbours (average linkage).

    >>> c = np.array([[1.0, 0.0, 0.9], [0.0, 1.0, 0.1], [0.9, 0.1, 1.0]])
    >>> order = cluster_order(c).tolist()
    >>> abs(order.index(0) - order.index(2))
    1
    """
    n = len(cosines)
    if n < 3:
        return np.arange(n)
    from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering

    distances = (1.0 - cosines)[np.triu_indices(n, 1)].clip(min=0.0)
    tree = linkage(distances, "average")
    if n <= 60:
        tree = optimal_leaf_ordering(tree, distances)
    return np.asarray(leaves_list(tree), dtype=np.intp)


def plane_of(
    text: str, members: Sequence[ClientId], position: Mapping[ClientId, int]
) -> tuple[Float64Array, tuple[str, NDArray[np.intp]]]:
    """Return the plane of packed cosines, NaN for clients that are not among them, and both.

    Parameters
    ----------
    text, members
        The packed cosines and the clients they are of.
    position
        The position of each client.
    """
    rows = np.array([position[client] for client in members], dtype=np.intp)
    found = np.full((len(position), 2), np.nan)
    found[rows] = _packed_plane(text, len(members))
    return found, (text, rows)


# The live page is made again and again from records most of which it has seen.
@lru_cache(maxsize=KERNELS_KEPT)
def _packed_order(text: str, clients: int) -> list[int]:
    order: list[int] = cluster_order(unpack_cosines(text, clients)).tolist()
    return order


@lru_cache(maxsize=KERNELS_KEPT)
def _packed_plane(text: str, clients: int) -> Float64Array:
    return plane(unpack_cosines(text, clients))


def client_values(values: Sequence[float | None] | None, clients: int) -> Float64Array | None:
    """Return a list of a record as an array, NaN for null; None for a list of another size.

    >>> client_values([0.5, None], 2), client_values([0.5], 2)
    (array([0.5, nan]), None)
    """
    if values is None or len(values) != clients:
        return None
    return np.array([np.nan if v is None else v for v in values], dtype=np.float64)


def states_without_choice(clients: int, chosen: Sequence[int] | None, *, ended: bool) -> States:
    """Return the states of a round whose choice is not recorded."""
    if ended:
        return States.of(clients, "none")
    return States.of(clients, "left_out") if chosen is None else cohort_states(clients, chosen)


def left_behind(moments: Sequence[Moment], lower_is_better: bool, tenth: int = 10) -> Float64Array:
    """Return how well each client is served at the end: the mean over the last tenth of moments.

    Larger is better; the values are negative for a metric of which less is better.
    """
    known = [m.values for m in moments if m.values is not None]
    last = known[-max(1, len(known) // tenth) :]
    if not last:
        return np.empty(0)
    sign = -1.0 if lower_is_better else 1.0
    with np.errstate(invalid="ignore"):
        found: Float64Array = sign * np.mean(last, axis=0)
    return found


def curve_numbers(values: Float64Array, kept: NDArray[np.intp]) -> list[float | None]:
    """Return the kept points of a curve."""
    return numbers(values[kept].tolist())
