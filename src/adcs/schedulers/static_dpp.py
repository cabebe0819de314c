"""StaticDPP: one determinantal kernel, built before training and never again."""

from __future__ import annotations

from typing import Any

from adcs._types import ClientId
from adcs.dpp.constraints import Constraints
from adcs.dpp.kernel import similarity
from adcs.dpp.sampling import sample_mdpp
from adcs.reports.quality import Quality, Scale
from adcs.reports.sketch import Sketcher
from adcs.schedulers.determinantal import DeterminantalScheduler
from adcs.schedulers.snapshot import Picked


class StaticDPP(DeterminantalScheduler):
    """The MAP of the first round's kernel, the same cohort for ever.

    Parameters
    ----------
    theta
        0, the default and the paper's benchmark, is diversity alone; above 0 quality counts, as
        it was at the first round.
    sample
        Draw each cohort from the m-DPP of the fixed kernel instead of taking its mode. Where the
        kernel's rank is below m there is no such distribution and the mode is taken; so it is
        where qualities lie too far apart to compute with.
    quality, scale, sketch
        As in `ADCS`.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`. All but the seed
        go with the mode only.

    Examples
    --------
    >>> from adcs.reports.report import ClientReport
    >>> scheduler = StaticDPP()
    >>> updates = {1: [1.0, 0.0], 2: [1.0, 0.1], 3: [0.0, 1.0]}
    >>> scheduler.observe(0, [ClientReport(c, 0, update=updates[c]) for c in updates], "probe")
    >>> scheduler.select(0, (1, 2, 3), 2).clients, scheduler.request(20, (1, 2, 3), 2).clients
    ((1, 3), ())
    """

    def __init__(
        self,
        *,
        theta: float = 0.0,
        sample: bool = False,
        quality: Quality = "loss",
        scale: Scale | None = None,
        sketch: Sketcher | None = None,
        **common: Any,
    ) -> None:
        super().__init__(
            theta=theta, refresh_every=None, quality=quality, scale=scale, sketch=sketch, **common
        )
        if sample and theta == 1.0:
            raise ValueError("sample needs theta below 1: at 1 there is no distribution")
        if sample and self.constraints:
            raise ValueError("sample goes without caps and required clients")
        self.sample = sample
        self.repeats = self.supports_constraints = not sample

    def _select_known(
        self, server_round: int, known: list[ClientId], m: int, constraints: Constraints
    ) -> Picked:
        """Take the mode of the kernel, or a sample."""
        mode = super()._select_known(server_round, known, m, constraints)
        if not self.sample or mode.diagnostics["rank"] < m:
            return mode
        unit, gram = self.kernel(known)
        try:
            chosen = sample_mdpp(
                similarity(unit) if gram is None else gram,
                m,
                quality=self.scores(known),
                theta=self.theta,
                rng=self.rng(server_round, purpose=1),
            )
        except ValueError:  # quality so far apart that the distribution is all but its mode
            return mode
        return Picked([known[i] for i in chosen], diagnostics={"rank": mode.diagnostics["rank"]})
