"""Clients at work on the virtual clock of a run: when each replies, and when a wait for them ends.

Over-selected and buffered rounds, and learned deadlines, need it: there a client may be at work
when its round is over. What it has computed is held until its reply arrives.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array, FloatArray, IndexArray
from adcs.backoff import Stage
from adcs.reports.report import ClientReport, with_plain_types
from adcs.reports.sketch import Sketch
from adcs.rounds import Deadlines
from adcs.simulation.network import ADAPTIVE


@dataclass
class Job:
    """The training of one client.

    Attributes
    ----------
    client, server_round
        The client, and the version of the model that it was sent.
    arrives
        When its reply arrives; infinite for a client that drops out.
    gives_up
        When the server stops waiting for it.
    seconds
        How long it takes; None if part of it was done for a probe.
    bytes_up
        What it sends.
    is_charged
        Whether its update was computed, and charged, for a probe.
    weight
        Its weight p w.
    is_late
        Whether its reply will not be aggregated.
    has_failed
        Whether the server has stopped waiting for it.
    report, update, statistics
        What it has computed, if it has to be held: report, update, and statistics of the model.
    """

    client: int
    server_round: int
    arrives: float
    gives_up: float
    seconds: float | None
    bytes_up: int
    is_charged: bool
    weight: float
    is_late: bool = False
    has_failed: bool = False
    report: ClientReport | None = None
    update: FloatArray | None = None
    statistics: FloatArray | None = None

    @property
    def settled(self) -> float:
        """When the server no longer waits for it: its reply is in, or the server gives up."""
        return min(self.arrives, self.gives_up)


def wait_limits(
    deadline: float | str | None, deadlines: Deadlines, clients: IndexArray
) -> Float64Array:
    """Return how many seconds the server waits for each client.

    >>> wait_limits(30.0, Deadlines(), np.array([4, 2]))
    array([30., 30.])
    """
    if deadline == ADAPTIVE:
        limits = deadlines.limits(clients.tolist(), math.inf)
        return np.array(list(limits.values()), dtype=np.float64)
    return np.full(clients.size, math.inf if deadline is None else float(deadline))


def give_up_after(seconds: Float64Array, limits: Float64Array, fails: Any) -> Float64Array:
    """Return after how many seconds the server stops waiting for each client.

    Without a deadline, the failure of a client is noticed when its reply would have arrived.

    >>> give_up_after(np.array([1.0, 2.0]), np.array([np.inf, np.inf]), np.array([True, False]))
    array([ 1., inf])
    """
    return np.where(fails & np.isinf(limits), seconds, limits)


class InFlight:
    """The clients at work for one run, and what their times have taught.

    Parameters
    ----------
    clients
        The number of clients.

    Attributes
    ----------
    jobs
        The work under way, in the order in which it began.
    deadlines
        Learned deadlines, of probes and of training.
    participations
        How often each client's reply has been aggregated.
    last_participation
        The round of the last of them, -1 without any.
    longest_wait
        The most rounds in a row in which each client took no part, up to its last participation.

    Examples
    --------
    >>> flight = InFlight(clients=3)
    >>> for client, arrives in ((0, 9.0), (1, 2.0), (2, 4.0)):
    ...     flight.jobs.append(Job(client, 0, arrives, 30.0, arrives, 0, False, 1.0))
    >>> end, replied = flight.wait(0.0, needed=2)
    >>> end, [job.client for job in replied], flight.at_work()
    (4.0, [1, 2], [0])

    A client that is awaited prolongs the wait, and its reply is one of those needed.

    >>> for client, arrives in ((1, 5.0), (2, 6.0)):
    ...     flight.jobs.append(Job(client, 1, arrives, 30.0, arrives, 0, False, 1.0))
    >>> end, replied = flight.wait(4.0, needed=2, awaited=[0])
    >>> end, [job.client for job in replied], flight.at_work()
    (9.0, [1, 0], [2])
    """

    def __init__(self, clients: int) -> None:
        self.jobs: list[Job] = []
        self.deadlines: dict[Stage, Deadlines] = {"probe": Deadlines(), "training": Deadlines()}
        self.participations: IndexArray = np.zeros(clients, dtype=np.intp)
        self.last_participation: IndexArray = np.full(clients, -1, dtype=np.intp)
        self.longest_wait: IndexArray = np.zeros(clients, dtype=np.intp)

    def take_part(self, clients: list[int], server_round: int) -> None:
        """Record that replies of clients are aggregated."""
        self.longest_wait[clients] = self.longest_waits(server_round)[clients]
        self.last_participation[clients] = server_round
        self.participations[clients] += 1

    def longest_waits(self, server_round: int) -> IndexArray:
        """Return the most rounds in a row without each client, of those before this round.

        >>> flight = InFlight(clients=2)
        >>> flight.take_part([0], server_round=4)
        >>> flight.longest_waits(server_round=6)
        array([4, 6])
        """
        return np.maximum(self.longest_wait, server_round - 1 - self.last_participation)

    def free(self, available: tuple[ClientId, ...]) -> tuple[ClientId, ...]:
        """Return the available clients that are not at work, as given if nobody is."""
        if not self.jobs:
            return available
        busy = {job.client for job in self.jobs}
        return tuple(client for client in available if client not in busy)

    def at_work(self) -> list[ClientId]:
        """Return the clients at work whose replies are to be aggregated."""
        return [job.client for job in self.jobs if not job.is_late]

    def wait(
        self, now: float, needed: int, awaited: Collection[ClientId] = ()
    ) -> tuple[float, list[Job]]:
        """Wait for replies; return when the wait ends, and the work that is aggregated then.

        The wait ends when `needed` replies are in and no awaited client is waited for, or if the
        server waits for nobody. At most `needed` replies are aggregated: those of awaited clients,
        then the first others. Ties go to work that began first.
        """
        waiting = [job for job in self.jobs if not job.is_late]
        if not waiting:
            return now, []
        waiting.sort(key=lambda job: job.arrives)
        settled = max(job.settled for job in waiting)
        enough = waiting[needed - 1].arrives if needed <= len(waiting) else math.inf
        last = max((job.settled for job in waiting if job.client in awaited), default=now)
        end = max(now, min(max(enough, last), settled))
        arrived = [job for job in waiting if job.arrives <= end]
        first = sorted(arrived, key=lambda job: job.client not in awaited)[:needed]
        taken = set(map(id, first))
        self.jobs = [job for job in self.jobs if id(job) not in taken]
        return end, [job for job in arrived if id(job) in taken]

    def give_up(self, now: float) -> list[ClientId]:
        """Return the clients for which the server stops waiting at this moment.

        Their replies are late if they still arrive; clients that have dropped out are free again.
        """
        failed = []
        for job in self.jobs:
            if job.gives_up <= now and job.gives_up < job.arrives and not job.has_failed:
                job.has_failed = job.is_late = True
                job.update = job.statistics = None
                failed.append(job.client)
        self.jobs = [job for job in self.jobs if not (job.has_failed and math.isinf(job.arrives))]
        return list[ClientId](failed)

    def take_late(self, now: float) -> list[Job]:
        """Remove and return work whose reply has arrived too late to be aggregated."""
        arrived = [job for job in self.jobs if job.is_late and job.arrives <= now]
        self.jobs = [job for job in self.jobs if not (job.is_late and job.arrives <= now)]
        return sorted(arrived, key=lambda job: job.arrives)

    def record(self, jobs: Iterable[Job], failed: Iterable[ClientId]) -> None:
        """Learn deadlines from clients that gave no reply in time, and from the times of others."""
        deadlines = self.deadlines["training"]
        deadlines.miss(failed)
        for job in jobs:
            if job.seconds is not None:
                deadlines.record(job.client, job.seconds)

    def answered(
        self, clients: IndexArray, seconds: Float64Array, fails: Any
    ) -> tuple[IndexArray, float]:
        """Return who answers a probe in time by learned deadlines, and how long the server waits.

        >>> flight, clients = InFlight(2), np.arange(2)
        >>> flight.answered(clients, np.array([1.0, 3.0]), np.array([False, False]))
        (array([0, 1]), 3.0)
        >>> flight.answered(clients, np.array([1.0, 90.0]), np.array([False, False]))[0]
        array([0])
        """
        deadlines = self.deadlines["probe"]
        limits = wait_limits(ADAPTIVE, deadlines, clients)
        settled = np.where(fails, np.inf, seconds)
        settled = np.minimum(settled, give_up_after(seconds, limits, fails))
        waited = float(settled.max(initial=0.0))
        in_time = ~fails & (seconds <= waited)
        deadlines.miss(clients[~in_time].tolist())
        for client, took in zip(clients[in_time].tolist(), seconds[in_time].tolist(), strict=True):
            deadlines.record(client, took)
        return clients[in_time], waited

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values and arrays."""
        return {
            "jobs": [_job_state(job) for job in self.jobs],
            "deadlines": {stage: each.state() for stage, each in self.deadlines.items()},
            "participations": self.participations,
            "last_participation": self.last_participation,
            "longest_wait": self.longest_wait,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state returned by `state`."""
        self.jobs = [_restored_job(saved) for saved in state["jobs"]]
        for stage, each in self.deadlines.items():
            each.restore(state["deadlines"][stage])
        self.participations = np.array(state["participations"])
        self.last_participation = np.array(state["last_participation"])
        self.longest_wait = np.array(state["longest_wait"])


NEVER = -1.0
"""What stands for an infinite time in a state, which JSON cannot hold."""


def _job_state(job: Job) -> dict[str, Any]:
    """Return a job as JSON values and arrays; a report's update is not saved twice."""
    state = {each.name: getattr(job, each.name) for each in fields(Job)}
    for name in ("arrives", "gives_up"):
        state[name] = NEVER if math.isinf(state[name]) else state[name]
    report = job.report
    if report is not None:
        state["report"] = {each.name: getattr(report, each.name) for each in fields(ClientReport)}
        if report.update is job.update:
            del state["report"]["update"]
        if report.sketch is not None:
            sketch = report.sketch
            state["report"]["sketch"] = [sketch.values, float(sketch.norm), sketch.update_size]
    return state


def _restored_job(state: Mapping[str, Any]) -> Job:
    job = Job(**{**state, "report": None})
    for name in ("arrives", "gives_up"):
        if state[name] == NEVER:
            setattr(job, name, math.inf)
    saved = state["report"]
    if saved is not None:
        sketch = saved["sketch"] and Sketch(*saved["sketch"])
        held = {"update": job.update, **saved, "sketch": sketch}
        job.report = with_plain_types(ClientReport(**held))
    return job
