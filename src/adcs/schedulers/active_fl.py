"""ActiveFL: clients of large valuation, drawn by a softmax (Goetz et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs._validation import check_number
from adcs.dpp.tolerances import descending
from adcs.schedulers.base import Cohort, Scheduler, Source
from adcs.schedulers.sampling import example_counts, weighted_permutation
from adcs.schedulers.unknown_clients import order_with_unknown


class ActiveFL(Scheduler):
    """Clients drawn with probabilities that grow with sqrt(examples) times the loss.

    Parameters
    ----------
    dropped
        alpha_1, from 0 to 1: this share of the clients, those of smallest valuation, is not drawn
        by valuation.
    temperature
        alpha_2 >= 0: the probabilities are proportional to exp(alpha_2 v).
    uniform
        alpha_3, from 0 to 1: this share of the slots is drawn uniformly from the other clients.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    The valuation of a client is v = sqrt(n) times its mean loss on the model it received, kept
    until it trains again. The int(alpha_1 N) smallest get probability 0, int((1 - alpha_3) m)
    clients are drawn without replacement in proportion to exp(alpha_2 v), and the rest uniformly
    from all others.

    Reading
    -------
    alpha_1 is the share that is dropped, as in most code; one public version keeps that share.
    If fewer clients are left than are to be drawn, the largest valuations of the dropped ones
    follow. Public code disagrees on clients without a valuation (minus infinity, 0 or 100): here
    they get their proportional share of the slots by a uniform draw. Plato and SelecEval divide
    the mean loss by sqrt(n), which ranks clients the other way round in their sizes.

    References
    ----------
    Goetz, Malik, Bui, Moon, Liu, Kumar: Active federated learning. 2019, arXiv:1909.12641.

    Examples
    --------
    >>> from adcs import ClientReport
    >>> scheduler = ActiveFL(uniform=0.0)
    >>> sizes, losses = (100, 25, 400, 4), (1.0, 3.0, 1.0, 2.0)
    >>> reports = [ClientReport(c, 0, loss=losses[c], examples=sizes[c]) for c in range(4)]
    >>> scheduler.observe(0, reports, "training")
    >>> scheduler.select(1, range(4), 2).clients
    (2, 1)
    """

    family = "loss"
    observed_sources = frozenset[Source]({"enrolment", "training"})
    training_signals = frozenset({"loss"})
    needed_signals = frozenset({"loss"})

    def __init__(
        self,
        *,
        dropped: float = 0.75,
        temperature: float = 0.01,
        uniform: float = 0.1,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.dropped = check_number("dropped", dropped, minimum=0, maximum=1)
        self.temperature = check_number("temperature", temperature, minimum=0)
        self.uniform = check_number("uniform", uniform, minimum=0, maximum=1)

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Draw by valuation, then uniformly."""
        losses = self.reports.last_values("loss", clients)
        valued = np.flatnonzero(~np.isnan(losses))
        known = [clients[i] for i in valued]
        values = np.sqrt(example_counts(self.reports, clients)[valued]) * losses[valued]
        rng = self.rng(server_round, purpose=1)

        def order(count: int) -> Iterable[int]:
            return self._order(rng, values, count)

        cohort = order_with_unknown(self, server_round, clients, m, known, order)
        value_of = dict(zip(known, values.tolist(), strict=True))
        valuations = [[c, value_of[c]] for c in cohort.clients if c in value_of]
        return Cohort.of(cohort.clients, valuations=valuations, drawn=cohort.diagnostics["drawn"])

    def _order(self, rng: np.random.Generator, values: Float64Array, count: int) -> list[int]:
        """Return all rows: those drawn by valuation, then the others in random order."""
        falling = np.array(descending(values), dtype=np.intp)
        kept = falling[: values.size - int(self.dropped * values.size + 1e-9)]
        weights = np.zeros(0)
        if kept.size:
            weights = np.exp(self.temperature * (values[kept] - values[kept].max()))
        drawn = kept[weighted_permutation(rng, weights)]
        by_value = int((1.0 - self.uniform) * count + 1e-9)
        first = [*drawn, *falling[kept.size :]][:by_value]
        others = np.setdiff1d(falling, first)
        return [int(i) for i in (*first, *rng.permutation(others))]
