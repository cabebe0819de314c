"""ADCS: the paper's adaptive determinantal client scheduling (Xu, Liang, Boudreau, Sokun)."""

from __future__ import annotations

from typing import Any

from adcs.reports.quality import Quality, Scale
from adcs.reports.sketch import Sketcher
from adcs.schedulers.determinantal import DeterminantalScheduler
from adcs.schedulers.directions import Kernel


class ADCS(DeterminantalScheduler):
    """The greedy MAP of a determinantal point process, rebuilt from a probe every R rounds.

    C holds the cosines between clients' updates, Q = diag(exp(alpha q)) weighs their quality, with
    alpha = theta / (2 (1 - theta)). The cohort S approximately maximises log det L_S of
    L = Q C Q. Training replies are not used, as in the paper.

    Parameters
    ----------
    theta
        0 is diversity alone, 1 quality alone.
    refresh_every
        R: all clients are probed, and the kernel is rebuilt, every R rounds.
    quality
        "loss", "norm", "examples", "communication", or a function of a `ClientReport`.
    gamma
        Weight of the communication quality in q = (1 - gamma) q_learn + gamma q_comm.
    scale
        "raw" (the paper's, the default where gamma is 0), "standard" or "rank".
    sketch
        A `Sketcher` if clients are to send sketches in place of whole updates.
    kernel
        "updates", or "labels": C holds the cosines between label histograms, which clients send
        once, with noise if they like (`adcs.reports.count_labels`). No update is asked for. A
        client that does not report its loss has the mean quality; if none does, theta is 0.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    The set S of m clients that maximises (1 - theta) log det C_S + theta (sum of qualities), by the
    greedy algorithm, with C the cosine similarity of the updates of the last probe.

    Examples
    --------
    Clients a and b have similar updates; one of them is chosen, and client c.

    >>> from adcs.reports.report import ClientReport
    >>> updates = {"a": [1.0, 0.1], "b": [1.0, 0.0], "c": [0.0, 1.0]}
    >>> scheduler = ADCS(theta=0.5)
    >>> request = scheduler.request(0, ["a", "b", "c"], 2)
    >>> sorted(request.signals)
    ['loss', 'update']
    >>> reports = [ClientReport(c, 0, loss=1.0, update=updates[c]) for c in request.clients]
    >>> scheduler.observe(0, reports, "probe")
    >>> scheduler.select(0, ["a", "b", "c"], 2).clients
    ('a', 'c')

    The same by label histograms:

    >>> scheduler = ADCS(kernel="labels", theta=0.0)
    >>> scheduler.request(0, ["a", "b", "c"], 2).signals
    frozenset({'label_counts'})
    >>> counts = {"a": [9, 1], "b": [9, 0], "c": [0, 5]}
    >>> scheduler.observe(0, [ClientReport(c, 0, label_counts=counts[c]) for c in counts], "probe")
    >>> scheduler.select(0, ["a", "b", "c"], 2).clients
    ('a', 'c')
    """

    family = "mixed"

    def __init__(
        self,
        *,
        theta: float = 0.8,
        refresh_every: int = 20,
        quality: Quality = "loss",
        gamma: float = 0.0,
        scale: Scale | None = None,
        sketch: Sketcher | None = None,
        kernel: Kernel = "updates",
        **common: Any,
    ) -> None:
        super().__init__(
            theta=theta,
            refresh_every=refresh_every,
            quality=quality,
            gamma=gamma,
            scale=scale,
            sketch=sketch,
            kernel=kernel,
            **common,
        )
