"""A virtual network: speeds, availability and failures of clients.

The network has no state. Speeds are functions of (seed, client), availability and failures of
(seed, round, client), so that a resumed run has the same network. Speeds and availability can come
from a trace instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.special import ndtri

from adcs._hashing import uniforms
from adcs._types import Float64Array, IndexArray
from adcs._validation import brief, check_number
from adcs.simulation.settings import FORBID_UNKNOWN, check_settings, setting
from adcs.simulation.trace import LONGEST, Trace, read_trace

ADAPTIVE = "adaptive"
"""The deadline that is learned for each client."""


@dataclass(frozen=True)
class NetworkSettings:
    """The settings of a virtual network.

    Attributes
    ----------
    compute_seconds
        Median time of one client update, all its local steps together; computing a loss alone
        takes a third of one step.
    up_bytes_per_second, down_bytes_per_second
        Median bandwidths.
    spread
        Heterogeneity: each client's speeds are log-normal around the medians with this standard
        deviation of the logarithm. 0 makes all clients alike.
    availability
        Fraction of rounds in which a client is available. It is available or not for spells of
        `spell` rounds, which begin at other rounds for each client.
    spell
        Number of rounds of a spell.
    dropout
        Probability that a client that is probed or selected does not answer in a round.
    deadline
        Seconds that the server waits; None waits for the slowest client. It applies to each wait
        of a round: first for the answers to a probe, if there is one, then for training. "adaptive"
        learns it for each client from its own times (`adcs.rounds.Deadlines`).
    trace
        A CSV file of clients' speeds and rounds online, see `read_trace`; kept as an absolute path.
        Its columns replace the settings of these names, and `availability`.

    Examples
    --------
    >>> NetworkSettings(availability=0.8, deadline=30.0).spread
    0.8
    """

    compute_seconds: float = setting(1.0, "Median seconds of a client update.", gt=0)
    up_bytes_per_second: float = setting(1e6, "Median bandwidth from a client.", gt=0)
    down_bytes_per_second: float = setting(8e6, "Median bandwidth to a client.", gt=0)
    spread: float = setting(0.8, "Standard deviation of the logarithm of speeds.", ge=0)
    availability: float = setting(1.0, "Fraction of rounds with a client online.", gt=0, le=1)
    spell: int = setting(50, "Rounds that a client is online or away.", ge=1, le=LONGEST)
    dropout: float = setting(0.0, "Probability that a client does not answer.", ge=0, lt=1)
    # A number, "adaptive" or None: pydantic has no strict check of such a union.
    deadline: Any = setting(  # noqa: RUF009
        None, "Seconds that the server waits; adaptive learns them for each client.", strict=None
    )
    trace: str | None = setting(
        None, "CSV file of clients' speeds and rounds online.", metavar="FILE.csv"
    )

    __pydantic_config__: ClassVar = FORBID_UNKNOWN

    def __post_init__(self) -> None:
        check_settings(self, "network")
        if isinstance(self.deadline, str) and self.deadline != ADAPTIVE:
            raise ValueError(
                f"network.deadline must be a number > 0 or adaptive, got {brief(self.deadline)}"
            )
        if self.deadline not in (None, ADAPTIVE):
            check_number("network.deadline", self.deadline, above=0)
        if self.trace is None:
            return
        if not isinstance(self.trace, str) or not self.trace:
            raise ValueError(f"network.trace must be a file, got {brief(self.trace)}")
        # A resume from another directory must find the file again.
        object.__setattr__(self, "trace", str(Path(self.trace).resolve()))


class Network:
    """The virtual network of one seed.

    Examples
    --------
    >>> network = Network(NetworkSettings(availability=0.5), clients=1000, seed=0)
    >>> 400 < len(network.available(server_round=7)) < 600
    True
    """

    def __init__(self, settings: NetworkSettings, clients: int, seed: int) -> None:
        self.settings = settings
        self._n = clients
        self._seed = seed
        self._everyone = tuple(range(clients))
        self._available: tuple[object, tuple[int, ...]] = (None, ())
        self.trace = Trace(1, {}) if settings.trace is None else read_trace(settings.trace)
        if self.trace.intervals is not None and settings.availability < 1.0:
            raise ValueError(
                "network.availability must be 1 where the trace has the column online, "
                f"got {settings.availability:g}"
            )
        # Seconds of each client by task: down, work, up.
        self._seconds: dict[tuple[float, float, float], Float64Array] = {}

    @cached_property
    def compute_seconds(self) -> Float64Array:
        """Seconds of one update of each client."""
        traced = self.trace.speed("compute_seconds", self._n)
        return self.settings.compute_seconds * self._spread(1) if traced is None else traced

    @cached_property
    def up(self) -> Float64Array:
        """Bytes per second from each client."""
        traced = self.trace.speed("up_bytes_per_second", self._n)
        return self.settings.up_bytes_per_second / self._spread(2) if traced is None else traced

    @cached_property
    def down(self) -> Float64Array:
        """Bytes per second to each client."""
        traced = self.trace.speed("down_bytes_per_second", self._n)
        return self.settings.down_bytes_per_second / self._spread(3) if traced is None else traced

    def _spread(self, what: int) -> Float64Array:
        normal = ndtri(np.clip(uniforms(self._seed, 11, what, np.arange(self._n)), 1e-12, None))
        spread: Float64Array = np.exp(self.settings.spread * normal)
        return spread

    def available(self, server_round: int) -> tuple[int, ...]:
        """Return the clients that are available in a round."""
        if self.trace.intervals is not None:
            online = self.trace.online(server_round, self._n)
        elif self.settings.availability >= 1.0:
            return self._everyone
        else:
            clients = np.arange(self._n)
            phase = (uniforms(self._seed, 12, clients) * self.settings.spell).astype(np.intp)
            spell = (server_round + phase) // self.settings.spell
            online = uniforms(self._seed, 13, clients, spell) < self.settings.availability
        key = online.tobytes()
        if self._available[0] != key:
            self._available = (key, tuple(np.flatnonzero(online).tolist()))
        return self._available[1]

    def fails(
        self, server_round: int, clients: IndexArray
    ) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which clients do not answer in a round."""
        if self.settings.dropout == 0.0:
            return np.zeros(clients.size, dtype=bool)
        failed: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
            uniforms(self._seed, 14, server_round, clients) < self.settings.dropout
        )
        return failed

    def seconds(self, clients: IndexArray, *, down: float, work: float, up: float) -> Float64Array:
        """Return each client's time to receive, compute (in updates) and send."""
        task = (down, work, up)
        if task not in self._seconds:
            self._seconds[task] = down / self.down + work * self.compute_seconds + up / self.up
        return self._seconds[task].take(clients)
