"""The contract of all schedulers.

A round, as an engine drives it:

    request = scheduler.request(server_round, available, m)   # clients to probe, and for what
    scheduler.observe(server_round, answers, "probe")         # their answers
    cohort = scheduler.select(server_round, available, m)     # clients that train, with weights
    scheduler.observe(server_round, replies, "training")      # their replies
    scheduler.observe(server_round, others, "late")           # replies that came too late

A scheduler implements `_select`, and `_request` if it needs reports before it selects.
"""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse, islice, pairwise
from operator import eq
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from adcs._serialization import pack, unpack
from adcs._types import ClientId
from adcs._validation import brief, check_choice, check_int, iterate
from adcs.reports.report import REQUESTABLE, SIGNALS, ClientReport, are_plain_ids, as_client_id
from adcs.reports.sketch import Sketcher
from adcs.reports.store import ReportStore
from adcs.schedulers.constraints import UNKNOWN_GROUP, CohortConstraints

Source = Literal["enrolment", "probe", "training", "late"]
"""Where reports come from.

"training" reports are replies that were aggregated; in asynchronous rounds their `server_round`,
the version of the model that they were computed on, may be an older one. "late" reports are replies
to training that came too late to be aggregated.
"""

SOURCES: tuple[Source, ...] = get_args(Source)
_CONSTRAINT_SETTINGS = ("groups", "caps", "required")


@dataclass(frozen=True)
class Request:
    """The clients to probe before this round's selection, and the signals to ask for.

    Attributes
    ----------
    clients
        The clients to probe; by default none.
    signals
        Names of requestable signals of `adcs.reports.SIGNALS`: "loss", "norm", "update",
        "rms_loss", "held_out_accuracy", "output_bias_update", "label_counts".
    sketch
        How clients sketch the update; None asks for whole updates.

    Examples
    --------
    >>> Request((3, 7), frozenset({"loss"})).clients
    (3, 7)
    """

    clients: tuple[ClientId, ...] = ()
    signals: frozenset[str] = frozenset()
    sketch: Sketcher | None = None


@dataclass(frozen=True)
class Cohort:
    """The clients that train, and the weights of their updates.

    Attributes
    ----------
    clients
        The chosen clients, distinct, in order of preference where there is one.
    weights
        One positive weight for each. They multiply the engine's own client weights p.
    normalise
        True: the global update is sum p w g / sum p w. False: it is sum p w g with p summing to
        one over all clients, as unbiased estimators need.
    diagnostics
        How the choice came about, as JSON values.
    awaited
        The clients among them whose replies a round waits for, up to its deadline, even if it has
        enough replies of others. An over-selected round ends when m usable replies are in and
        those of awaited clients, which take some of the m slots.

    Examples
    --------
    >>> Cohort((3, 7), (0.25, 0.75)).normalise
    True
    """

    clients: tuple[ClientId, ...]
    weights: tuple[float, ...]
    normalise: bool = True
    diagnostics: Mapping[str, Any] = field(default_factory=dict)
    awaited: tuple[ClientId, ...] = ()

    @classmethod
    def of(cls, clients: Sequence[ClientId], **diagnostics: Any) -> Cohort:
        """Return a cohort of equal weights.

        >>> Cohort.of([4, 2]).weights
        (1.0, 1.0)
        """
        return cls(tuple(clients), (1.0,) * len(clients), True, diagnostics)


def _recording_settings(init: Callable[..., None]) -> Callable[..., None]:
    """Return an __init__ that records its arguments, for the scheduler's repr."""

    @functools.wraps(init)
    def recorded(self: Scheduler, *args: Any, **settings: Any) -> None:
        if type(self).__init__ is recorded:  # not where a subclass calls its parent's
            # Constraints may be iterators, which can be read once; `constraints` keeps them.
            kept = {n: None if n in _CONSTRAINT_SETTINGS else v for n, v in settings.items()}
            self._settings = (args, kept)
        init(self, *args, **settings)

    return recorded


class Scheduler(ABC):
    """Base class of all schedulers.

    The repr of a scheduler is the call that makes it again, and its spec on the command line;
    settings at their defaults are left out.

    Parameters
    ----------
    seed
        All randomness comes from (seed, round): the same seed gives the same cohorts in another
        process, after a resume, and whatever other code draws.
    groups, caps
        A mapping from client to group (a site, an operator), and how many clients of a group may
        be in one cohort: a number, or a mapping from group to number.
    required
        Clients that are in every cohort while they are available.
    unknown_group
        The group of clients that `groups` does not name. They share it, so that made-up ids share
        one cap. Where `caps` is a mapping without an entry for it, the smallest entry holds. None
        makes each of them a group of its own.

    Attributes
    ----------
    reports : ReportStore
        The latest usable report of each client, a mapping.

    Examples
    --------
    >>> class InTurn(Scheduler):
    ...     def _select(self, server_round, clients, m):
    ...         start = server_round * m % len(clients)
    ...         return Cohort.of(self.take(clients[start:] + clients[:start], m))
    >>> InTurn().select(1, ["a", "b", "c"], 2).clients
    ('c', 'a')
    >>> InTurn(seed=3, required=["a"])
    InTurn(seed=3, required=('a',))
    """

    family: ClassVar[str] = "own"
    """What it selects by: "random", "loss", "norm", "time", "diversity" or "mixed"."""

    fixed_size: bool = True
    """Whether a cohort has exactly m clients whenever that many are available."""

    supports_constraints: bool = True
    """Whether it keeps caps and required clients."""

    observed_sources: ClassVar[frozenset[Source]] = frozenset(SOURCES)
    """The sources of reports that it uses; with "training" it uses "late" too."""

    training_signals: frozenset[str] = frozenset({"loss", "update"})
    """The signals that it uses of training replies, if it observes them."""

    needed_signals: frozenset[str] = frozenset()
    """Signals without which it cannot tell clients apart.

    While no client has reported one of them, the cohort's diagnostics say so, under "missing",
    from round 1 on.
    """

    sketch: Sketcher | None = None
    """How clients sketch their updates for it; None takes whole updates."""

    pending: tuple[ClientId, ...] = ()
    """While `_select` runs: the pending clients, sorted by id. They are not among its clients."""

    _settings: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _recording_settings(cls.__init__)  # type: ignore[method-assign]

    @_recording_settings
    def __init__(
        self,
        *,
        seed: int = 0,
        groups: Mapping[ClientId, Hashable] | None = None,
        caps: int | Mapping[Hashable, int] | None = None,
        required: Iterable[ClientId] = (),
        unknown_group: Hashable | None = UNKNOWN_GROUP,
    ) -> None:
        self.seed = check_int("seed", seed, minimum=0)
        self.constraints = CohortConstraints(groups, caps, required, unknown_group)
        self.reports = ReportStore()
        self._refused: list[tuple[ClientId, str]] = []
        # The last clients, which engines often pass again, and the same sorted.
        self._sorted: tuple[tuple[ClientId, ...], tuple[ClientId, ...]] = ((), ())
        self._checked: tuple[Cohort | None, tuple[ClientId, ...], int] = (None, (), 0)

    def __repr__(self) -> str:
        if self._settings is None:  # an __init__ that was added later, as dataclasses do
            return super().__repr__()
        args, settings = self._settings
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        given = {**dict(zip(names, args, strict=False)), **settings}
        given |= {n: getattr(self.constraints, n) for n in _CONSTRAINT_SETTINGS if n in given}
        shown = [
            f"{name}={_literal(value)}"
            for name, value in given.items()
            if _literal(value) != _literal(_default(type(self), name))
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    # What engines call.

    def request(self, server_round: int, available: Sequence[ClientId], m: int) -> Request:
        """Return which clients to probe for which signals; calling it again changes nothing."""
        clients = self._in_order(available)
        request = self._request(_check_round(server_round), clients, _check_m(m))
        self._check_request(request, clients)
        return request

    def observe(self, server_round: int, reports: Iterable[ClientReport], source: Source) -> None:
        """Take reports; each that cannot be used is refused and named with the reason in the
        next cohort's diagnostics, under "refused".
        """
        server_round = _check_round(server_round)
        check_choice("source", source, SOURCES)
        if ("training" if source == "late" else source) in self.observed_sources:
            usable, refused = self.reports.check(reports)
            self._refused += refused
            self._observe(server_round, usable, source)

    def select(
        self,
        server_round: int,
        available: Sequence[ClientId],
        m: int,
        pending: Sequence[ClientId] = (),
    ) -> Cohort:
        """Return the cohort of this round: m clients, or all that there are if fewer.

        Parameters
        ----------
        server_round
            The round, counted from 0.
        available
            The clients to choose from.
        m
            How many to choose.
        pending
            Clients at work, or whose updates wait in a buffer; available or not. They are not
            chosen, m does not count them, caps do, and a required one needs no slot. Schedulers
            that go by similarity choose clients that complement them.
        """
        server_round, m = _check_round(server_round), _check_m(m)
        clients = self._in_order(available)
        pending = self.pending = (
            () if isinstance(pending, tuple) and not pending else _sorted_ids(pending, "pending")
        )
        if pending:
            clients = tuple(filterfalse(set(pending).__contains__, clients))
        try:
            cohort = self._select(server_round, clients, m) if clients else Cohort((), ())
            last, last_clients, last_m = self._checked
            changed = cohort is not last or clients is not last_clients or m != last_m
            if changed or pending:
                self._check_cohort(cohort, clients, m)
                self._checked = (cohort, clients, m)
        finally:
            self.pending = ()
        refused: list[dict[str, Any]] = []
        if self._refused:
            refused = [{"client": client, "reason": reason} for client, reason in self._refused]
            self._refused = []
        diagnostics = {**cohort.diagnostics, "refused": refused}
        if pending:
            diagnostics["pending"] = list(pending)
        if server_round and (missing := self.missing_signals()):
            diagnostics["missing"] = missing
        awaited = cohort.awaited
        if self.constraints.required:
            waited = {*awaited, *self.constraints.required}
            awaited = tuple(client for client in cohort.clients if client in waited)
        return Cohort(cohort.clients, cohort.weights, cohort.normalise, diagnostics, awaited)

    def expire(self, clients: Iterable[ClientId]) -> None:
        """Drop losses and updates of clients as out of date; facts about them are kept.

        Engines call it for clients that failed in two rounds in a row or more. Until such a client
        reports again, it is treated as one without a report.

        >>> from adcs import ADCS
        >>> scheduler = ADCS()
        >>> scheduler.observe(0, [ClientReport("a", 0, loss=9.0, examples=5)], "probe")
        >>> scheduler.expire(["a"])
        >>> scheduler.reports["a"].loss, scheduler.reports["a"].examples
        (None, 5)
        """
        self._expire(_sorted_ids(clients, "clients"))

    def missing_signals(self) -> list[str]:
        """Return a sentence for each needed signal that no client has reported."""
        if not self.needed_signals:
            return []
        name = type(self).__name__
        lacking = sorted(s for s in self.needed_signals if not self.reports.has(s))
        return [SIGNALS[signal].how_to_report(name) for signal in lacking]

    def state(self) -> dict[str, Any]:
        """Return everything learned, as JSON values and NumPy arrays nested in dicts."""
        return {
            "scheduler": type(self).__name__,
            "reports": self.reports.state(),
            "refused": [list(pair) for pair in self._refused],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state; the scheduler must have been made with the same settings."""
        if state["scheduler"] != type(self).__name__:
            raise ValueError(
                f"state of a {state['scheduler']} cannot be restored into a {type(self).__name__}"
            )
        self.reports.restore(state["reports"])
        self._refused = [(client, reason) for client, reason in state["refused"]]

    def to_bytes(self) -> bytes:
        """Return the state as bytes, for a file: JSON and plain arrays, no pickle.

        >>> from adcs import Uniform
        >>> scheduler = Uniform()
        >>> scheduler.from_bytes(scheduler.to_bytes())
        """
        return pack(self.state())

    def from_bytes(self, data: bytes) -> None:
        """Go back to a state that `to_bytes` returned."""
        self.restore(unpack(data))

    # What a scheduler implements. Clients come sorted by id.

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Return which clients to probe for which signals; by default none."""
        return Request()

    def _observe(self, server_round: int, reports: Sequence[ClientReport], source: Source) -> None:
        """Learn from usable reports; by default they are kept in `reports`."""
        self.reports.add(reports, server_round)

    def _expire(self, clients: tuple[ClientId, ...]) -> None:
        """Treat clients as if they had not reported a loss or an update."""
        self.reports.expire(clients)

    @abstractmethod
    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Return the cohort out of at least one client; m may be larger than their number."""

    # What it can use.

    def rng(self, server_round: int, purpose: int = 0) -> np.random.Generator:
        """Return the random generator of a round; each purpose has its own stream."""
        return np.random.default_rng([self.seed, server_round, purpose])

    def take(self, order: Iterable[ClientId], m: int) -> list[ClientId]:
        """Return the first m of an order of preference, under caps and required clients."""
        ranked = list(order)
        if not self.constraints:
            return ranked[:m]
        builder = self.constraints.builder(ranked, m, self.pending)
        return builder.fill([*builder.required, *ranked])

    def _with_pending(self, clients: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
        """Return the clients of a `_select` and the pending ones together, sorted by id."""
        return tuple(in_order([*clients, *self.pending])) if self.pending else clients

    def _check_request(self, request: Request, clients: tuple[ClientId, ...]) -> None:
        """Raise if an engine could not carry out the request."""
        name = f"{type(self).__name__}._request"
        if not isinstance(request, Request):
            raise ValueError(f"{name} must return a Request, got {type(request).__name__}")
        if not request.clients:
            return
        signals = request.signals
        if not isinstance(signals, (frozenset, set)) or not signals or not signals <= REQUESTABLE:
            raise ValueError(
                f"{name} must ask for a set of signals out of {sorted(REQUESTABLE)}, "
                f"got {brief(signals)}"
            )
        if request.clients is not clients:
            distinct = set(request.clients)
            unavailable = distinct.difference(clients)
            if unavailable or len(distinct) < len(request.clients):
                what = brief(next(iter(unavailable))) if unavailable else "one of them twice"
                raise ValueError(f"{name} must ask available clients, each once, got {what}")

    def _check_cohort(self, cohort: Cohort, clients: tuple[ClientId, ...], m: int) -> None:
        """Raise if the cohort breaks the contract."""
        name = f"{type(self).__name__}._select"
        if not isinstance(cohort, Cohort):
            raise ValueError(f"{name} must return a Cohort, got {type(cohort).__name__}")
        chosen = cohort.clients
        distinct = set(chosen)
        if len(distinct) < len(chosen) or distinct.difference(clients):
            raise ValueError(
                f"{name} must return distinct clients out of those available, got {brief(chosen)}"
            )
        if len(cohort.weights) != len(chosen):
            raise ValueError(
                f"{name} must return a weight for each of {len(chosen)} clients, "
                f"got {len(cohort.weights)}"
            )
        if not all(0.0 < weight < math.inf for weight in cohort.weights):
            raise ValueError(f"{name} must return positive weights, got {brief(cohort.weights)}")
        if not distinct.issuperset(cohort.awaited):
            raise ValueError(f"{name} must await clients it chose, got {brief(cohort.awaited)}")
        if self.fixed_size and len(chosen) != min(m, len(clients)):
            slots = self.constraints.builder(clients, m, self.pending).slots_left
            if len(chosen) != slots:
                raise ValueError(
                    f"{name} must return {slots} clients, got {len(chosen)}; a scheduler of "
                    "cohorts of any size sets fixed_size = False"
                )
        if self.constraints:
            self._check_constraints(name, distinct, clients, m)

    def _check_constraints(
        self, name: str, chosen: set[ClientId], clients: tuple[ClientId, ...], m: int
    ) -> None:
        """Raise if the cohort lacks a required client or has a group above its cap."""
        builder = self.constraints.builder(clients, m, self.pending)
        for client in builder.required:
            if client not in chosen:
                raise ValueError(
                    f"{name} must take {brief(client)}, which is required; see self.take"
                )
        for group, count in Counter(map(self.constraints.group, chosen)).items():
            slots = builder.free_slots_in(group, count)
            if count > slots:
                raise ValueError(
                    f"{name} must take at most {slots} of group {brief(group)}, took {count}; "
                    "see self.take"
                )

    def _in_order(self, available: Sequence[ClientId]) -> tuple[ClientId, ...]:
        if available is self._sorted[0]:
            return self._sorted[1]
        if not isinstance(available, (list, tuple, range)):
            return _sorted_ids(available, "client ids")
        given = tuple(available)
        # Equal ids may be of other types, as 1 and True are.
        if not are_plain_ids(given) or given != self._sorted[0]:
            self._sorted = (given, _sorted_ids(given, "client ids"))
        return self._sorted[1]


def in_order(clients: Iterable[ClientId]) -> list[ClientId]:
    """Return clients in the order that schedulers use: ints, then strings.

    >>> in_order(["b", 10, "a", 9])
    [9, 10, 'a', 'b']
    """
    listed = list(clients)
    if len(set(map(type, listed))) == 1:
        return sorted(listed)
    return sorted(listed, key=lambda client: (isinstance(client, str), client))


def _sorted_ids(given: Iterable[ClientId], name: str) -> tuple[ClientId, ...]:
    ids = list(iterate(given, name, "ints or strings"))
    plain = are_plain_ids(ids)
    if not plain:
        for i, client in enumerate(ids):
            if (known := as_client_id(client)) is None:
                raise ValueError(f"{name} must be ints or strings, got {brief(client)}")
            ids[i] = known
    clients = tuple(in_order(ids))
    if any(map(eq, clients, islice(clients, 1, None))):
        twice = next(one for one, next_one in pairwise(clients) if one == next_one)
        raise ValueError(f"{name} must be distinct, got {brief(twice)} more than once")
    return given if plain and isinstance(given, tuple) and given == clients else clients


def _default(kind: type, name: str) -> Any:
    """Return the default of a setting, from the first class in the MRO that names it."""
    for base in kind.__mro__:
        parameters = inspect.signature(vars(base).get("__init__", object)).parameters
        if name in parameters:
            return parameters[name].default
    return inspect.Parameter.empty


def _literal(value: Any) -> str:
    """Return a setting as Python source, without NumPy's types.

    >>> _literal({"a": np.float64(0.5), "b": (np.int64(1),)})
    "{'a': 0.5, 'b': (1,)}"
    """
    return getattr(value, "__name__", repr(value)) if callable(value) else repr(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value


def _check_round(server_round: int) -> int:
    return check_int("server_round", server_round, minimum=0)


def _check_m(m: int) -> int:
    return check_int("m", m, minimum=1)
