"""The contract of all schedulers: told what is known about clients, asked who trains next.

A round, for whoever drives it:

    request = scheduler.request(round, available, m)      # whom to ask, and for what
    scheduler.observe(round, reports, "probe")            # what they answered
    cohort = scheduler.select(round, available, m)        # who trains, with which weights
    scheduler.observe(round, replies, "training")         # what came back from training

A scheduler of one's own implements `_select`, and `_request` if it needs to know something first.
"""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from adcs._types import ClientId
from adcs._validation import brief
from adcs.reports.report import ClientReport, plain_client
from adcs.reports.sketch import Sketcher
from adcs.reports.store import ReportStore
from adcs.schedulers.constraints import UNKNOWN, CohortConstraints

Signal = Literal["loss", "norm", "update"]
Source = Literal["enrolment", "probe", "training"]
SOURCES: tuple[Source, ...] = get_args(Source)
SIGNALS = frozenset(get_args(Signal))
RULES = ("groups", "caps", "required")


@dataclass(frozen=True)
class Request:
    """Whom to ask before this round's selection, and for what; by default nobody.

    Attributes
    ----------
    clients
        The clients to ask.
    signals
        Any of "loss", "norm" and "update".
    sketch
        How to sketch the update; None asks for all of it.

    Examples
    --------
    >>> Request((3, 7), frozenset({"loss"})).clients
    (3, 7)
    """

    clients: tuple[ClientId, ...] = ()
    signals: frozenset[Signal] = frozenset()
    sketch: Sketcher | None = None


@dataclass(frozen=True)
class Cohort:
    """The clients that train, and how their updates are to be weighted.

    Attributes
    ----------
    clients
        The clients chosen, distinct; in the order of the picks where there is one.
    weights
        One weight for each. They multiply the engine's own client weights p.
    normalise
        True: the update is sum p w g / sum p w. False: it is sum p w g with p summing to one
        over all clients, as unbiased estimators need.
    diagnostics
        What there is to say about the choice, as JSON values.

    Examples
    --------
    >>> Cohort((3, 7), (0.25, 0.75)).normalise
    True
    """

    clients: tuple[ClientId, ...]
    weights: tuple[float, ...]
    normalise: bool = True
    diagnostics: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, clients: Sequence[ClientId], **diagnostics: Any) -> Cohort:
        """Return a cohort of equal weights.

        >>> Cohort.of([4, 2]).weights
        (1.0, 1.0)
        """
        return cls(tuple(clients), (1.0,) * len(clients), True, diagnostics)


def remembering(init: Callable[..., None]) -> Callable[..., None]:
    """Return an __init__ that keeps what the scheduler is made with, for its repr."""

    @functools.wraps(init)
    def made(self: Scheduler, *args: Any, **settings: Any) -> None:
        if type(self).__init__ is made:  # not where a subclass calls its parent's
            # What rules were given may be used up once it is read; `rules` keeps it.
            kept = {name: None if name in RULES else v for name, v in settings.items()}
            self._made_with = (args, kept)
        init(self, *args, **settings)

    return made


class Scheduler(ABC):
    """Base class of all schedulers.

    The repr of a scheduler is the call that makes it again, which is its spec on the command line
    too; settings at their defaults are left out.

    Parameters
    ----------
    seed
        Randomness comes from (seed, round) alone: the same seed gives the same cohorts in
        another process, after a resume, and whatever other code draws.
    groups, caps
        A mapping from client to group (a site, an operator), and how many of a group may be in
        one cohort: a number, or a mapping from group to number.
    required
        Clients that are in every cohort while they are available.
    unknown_group
        The group of clients that `groups` does not name: they share it, so that ids that are made
        up share one cap. Where `caps` is a mapping without an entry for it, the smallest entry
        holds. None makes each of them a group of its own.

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

    fixed_size: bool = True
    """Whether a cohort has exactly m clients whenever there are that many."""

    supports_constraints: bool = True
    """Whether it can keep to required clients and caps."""

    observed_sources: ClassVar[frozenset[Source]] = frozenset(SOURCES)
    """The sources whose reports are kept."""

    sketch: Sketcher | None = None
    """How updates are sketched for it; None takes whole ones."""

    _made_with: tuple[tuple[Any, ...], dict[str, Any]] | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = remembering(cls.__init__)  # type: ignore[method-assign]

    @remembering
    def __init__(
        self,
        *,
        seed: int = 0,
        groups: Mapping[ClientId, Hashable] | None = None,
        caps: int | Mapping[Hashable, int] | None = None,
        required: Iterable[ClientId] = (),
        unknown_group: Hashable | None = UNKNOWN,
    ) -> None:
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
            raise ValueError(f"seed must be a whole number >= 0, got {seed!r}")
        self.seed = int(seed)
        self.constraints = CohortConstraints(groups, caps, required, unknown_group)
        self.reports = ReportStore()
        self._refused: list[tuple[ClientId, str]] = []
        self._listed: tuple[tuple[ClientId, ...], tuple[ClientId, ...]] = ((), ())
        self._members: tuple[tuple[ClientId, ...], frozenset[ClientId]] = ((), frozenset())
        self._checked: tuple[Cohort | None, tuple[ClientId, ...], int] = (None, (), 0)

    def __repr__(self) -> str:
        if self._made_with is None:  # an __init__ that was put in later, as dataclasses do
            return super().__repr__()
        args, settings = self._made_with
        names = list(inspect.signature(type(self).__init__).parameters)[1:]
        given = {**dict(zip(names, args, strict=False)), **settings}
        given |= {name: getattr(self.constraints, name) for name in RULES if name in given}
        words = [
            f"{name}={_literal(value)}"
            for name, value in given.items()
            if _literal(value) != _literal(_default(type(self), name))
        ]
        return f"{type(self).__name__}({', '.join(words)})"

    # What drivers call.

    def request(self, server_round: int, available: Sequence[ClientId], m: int) -> Request:
        """Return whom to ask what before selecting; asking twice in a round is asking once."""
        clients = self._ordered(available)
        asked = self._request(_check_round(server_round), clients, _check_places(m))
        self._check_request(asked, clients)
        return asked

    def observe(self, server_round: int, reports: Iterable[ClientReport], source: Source) -> None:
        """Take evidence; a report that cannot be used is refused alone and named in the next
        cohort's diagnostics under "refused".
        """
        _check_round(server_round)
        if source not in SOURCES:
            raise ValueError(f"source must be one of {SOURCES}, got {source!r}")
        if source in self.observed_sources:
            usable, refused = self.reports.check(reports)
            self._refused += refused
            self._observe(server_round, usable, source)

    def select(self, server_round: int, available: Sequence[ClientId], m: int) -> Cohort:
        """Return the cohort of this round: m clients, or all that there are if fewer."""
        server_round, m, clients = (
            _check_round(server_round),
            _check_places(m),
            self._ordered(available),
        )
        cohort = self._select(server_round, clients, m) if clients else Cohort((), ())
        last, who, places = self._checked
        if cohort is not last or clients is not who or m != places:
            self._check(cohort, clients, m)
            self._checked = (cohort, clients, m)
        refused = [{"client": client, "reason": reason} for client, reason in self._refused]
        self._refused = []
        diagnostics = {**cohort.diagnostics, "refused": refused}
        return Cohort(cohort.clients, cohort.weights, cohort.normalise, diagnostics)

    def state(self) -> dict[str, Any]:
        """Return all that was learned, as JSON values and NumPy arrays, nested in dicts."""
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

    # What a scheduler of one's own implements. Clients come sorted by id.

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Return whom to ask what; by default nobody."""
        return Request()

    def _observe(self, server_round: int, reports: Sequence[ClientReport], source: Source) -> None:
        """Take in usable reports; by default they are remembered, in `known`."""
        self.reports.remember(reports, server_round)

    @abstractmethod
    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Return the cohort out of at least one client; m may be more than there are."""

    # What it can use for that.

    def rng(self, server_round: int, purpose: int = 0) -> np.random.Generator:
        """Return the random generator of a round; another purpose, another stream."""
        return np.random.default_rng([self.seed, server_round, purpose])

    def take(self, order: Iterable[ClientId], m: int) -> list[ClientId]:
        """Return the first m of an order of preference, with required clients and caps obeyed."""
        ranked = list(order)
        if not self.constraints:
            return ranked[:m]
        places = self.constraints.places(ranked, m)
        return places.fill([*places.required, *ranked])

    def _check_request(self, asked: Request, clients: tuple[ClientId, ...]) -> None:
        """Refuse a request that no engine could carry out."""
        name = f"{type(self).__name__}._request"
        if not isinstance(asked, Request):
            raise ValueError(f"{name} must return a Request, got {type(asked).__name__}")
        if not asked.clients:
            return
        signals = asked.signals
        if not isinstance(signals, (frozenset, set)) or not signals or not signals <= SIGNALS:
            raise ValueError(
                f"{name} must ask for a set of signals out of {sorted(SIGNALS)}, got {signals!r}"
            )
        if asked.clients is not clients:  # as they are, they have been checked
            distinct = set(asked.clients)
            strange = distinct - self._present(clients)
            if strange or len(distinct) < len(asked.clients):
                what = f"{next(iter(strange))!r}" if strange else "one of them twice"
                raise ValueError(f"{name} must ask available clients, each once, got {what}")

    def _check(self, cohort: Cohort, clients: tuple[ClientId, ...], m: int) -> None:
        """Refuse a choice that breaks the contract, before an engine trains by it."""
        name = f"{type(self).__name__}._select"
        if not isinstance(cohort, Cohort):
            raise ValueError(f"{name} must return a Cohort, got {type(cohort).__name__}")
        chosen = cohort.clients
        distinct = set(chosen)
        if len(distinct) < len(chosen) or not distinct <= self._present(clients):
            raise ValueError(
                f"{name} must return distinct clients out of those available, got {chosen}"
            )
        if len(cohort.weights) != len(chosen):
            raise ValueError(
                f"{name} must return a weight for each of {len(chosen)} clients, "
                f"got {len(cohort.weights)}"
            )
        if not all(0.0 < weight < math.inf for weight in cohort.weights):
            raise ValueError(f"{name} must return positive weights, got {cohort.weights}")
        if self.fixed_size and len(chosen) != min(m, len(clients)):
            room = self.constraints.places(clients, m).left
            if len(chosen) != room:
                raise ValueError(
                    f"{name} must return {room} clients, got {len(chosen)}; a scheduler of "
                    "cohorts of any size sets fixed_size = False"
                )
        if self.constraints:
            self._check_rules(name, distinct, clients)

    def _check_rules(self, name: str, chosen: set[ClientId], clients: tuple[ClientId, ...]) -> None:
        """Refuse a choice that leaves out a required client or goes over a cap."""
        for client in self.constraints.required:
            if client in self._present(clients) and client not in chosen:
                raise ValueError(f"{name} must take {client!r}, which is required; see self.take")
        for group, count in Counter(map(self.constraints.group, chosen)).items():
            cap = self.constraints.cap(group)
            if cap is not None and count > cap:
                raise ValueError(
                    f"{name} must take at most {cap} of group {group!r}, took {count}; "
                    "see self.take"
                )

    def _present(self, clients: tuple[ClientId, ...]) -> frozenset[ClientId]:
        if clients is not self._members[0]:
            self._members = (clients, frozenset(clients))
        return self._members[1]

    def _ordered(self, available: Sequence[ClientId]) -> tuple[ClientId, ...]:
        # A tuple seen last time was checked then: rounds stay cheap with very many clients.
        if available is self._listed[0]:
            return self._listed[1]
        ids: list[ClientId] = []
        for client in available:
            if (name := plain_client(client)) is None:
                raise ValueError(f"client ids must be ints or strings, got {brief(client)}")
            ids.append(name)
        clients = tuple(sorted(ids, key=lambda client: (isinstance(client, str), client)))
        for one, next_one in pairwise(clients):
            if one == next_one:
                raise ValueError(f"client ids must be distinct, got {one!r} more than once")
        if isinstance(available, tuple):
            self._listed = (available, clients)
        return clients


def _default(kind: type, name: str) -> Any:
    """Return the default of a setting: that of the first class of the line that names it."""
    for base in kind.__mro__:
        parameters = inspect.signature(vars(base).get("__init__", object)).parameters
        if name in parameters:
            return parameters[name].default
    return inspect.Parameter.empty


def _literal(value: Any) -> str:
    """Return a setting as it is written in Python, without NumPy's types.

    >>> _literal({"a": np.float64(0.5), "b": (np.int64(1),)})
    "{'a': 0.5, 'b': (1,)}"
    """
    return repr(_plain(value)) if not callable(value) else getattr(value, "__name__", repr(value))


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    return value


def _check_round(server_round: int) -> int:
    if (
        isinstance(server_round, bool)
        or not isinstance(server_round, (int, np.integer))
        or server_round < 0
    ):
        raise ValueError(f"server_round must be a whole number >= 0, got {server_round!r}")
    return int(server_round)


def _check_places(m: int) -> int:
    if isinstance(m, bool) or not isinstance(m, (int, np.integer)) or m < 1:
        raise ValueError(f"m must be a whole number >= 1, got {m!r}")
    return int(m)
