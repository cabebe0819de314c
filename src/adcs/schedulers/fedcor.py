"""FedCor: clients whose loss changes predict those of the others (Tang et al., CVPR 2022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adcs._types import ClientId, Float64Array
from adcs._validation import check_int, check_number
from adcs.schedulers.base import Cohort, Request, Scheduler, Source, in_order
from adcs.schedulers.loss_correlation import LossCorrelation
from adcs.schedulers.sampling import example_counts
from adcs.schedulers.unknown_clients import order_with_unknown


class FedCor(Scheduler):
    """Clients whose loss changes are correlated with those of many others.

    Parameters
    ----------
    warm_up
        Rounds of uniform cohorts at the beginning, >= 1; everyone's loss is asked in each.
    refit_every
        Rounds between fits of the Gaussian process, >= 2. The first of them has a uniform cohort.
    history
        M >= 1: loss changes older than so many rounds are dropped.
    discount
        gamma, above 0 and up to 1: the weight of a loss change falls by it with each round of age.
    annealing
        beta, above 0 and up to 1: the score of a client is multiplied by it each time it is
        selected, until the next fit.
    dimension
        The number of factors of the covariance, >= 1.
    noise
        The standard deviation of the noise, > 0.
    fit_steps, refit_steps
        Steps of Adam in the first fit and in the others, >= 1.
    learning_rate
        Its learning rate, > 0.
    **common
        `seed`, `groups`, `caps`, `required`, `unknown_group`: see `Scheduler`.

    Formula
    -------
    Changes of losses from one round to the next are taken to be normal with covariance
    Sigma = X'X + noise^2 I; X (dimension x clients) maximises the likelihood of the changes seen
    in rounds of uniform cohorts. Clients are selected one after the other:

        k = argmax alpha_k sum_i p_i Sigma_ik / sqrt(Sigma_kk)
        Sigma <- Sigma - Sigma_.k Sigma_k. / Sigma_kk

    with p the share of examples and alpha_k the product of beta over k's selections since the last
    fit. Pending clients are conditioned on first.

    Reading
    -------
    Defaults are those of the authors' README for Fashion-MNIST (CIFAR-10: warm_up 20,
    refit_every 50, history 500, discount 0.99, annealing 0.9). Their code trains an extra uniform
    round before each fit and throws the model away; here one round in `refit_every` has a uniform
    cohort, and its model is kept. Sums are over all clients with a known loss, and the argmax is
    over the available ones. A client that did not report its loss in a round is left out of that
    round's likelihood. The likelihood is the marginal one; the code's leave-one-out likelihood
    adds up as many clients as there are rounds of data, one as a rule.

    References
    ----------
    Tang, Ning, Wang, Sun, Wang, Li, Chen: FedCor: Correlation-based active client selection
    strategy for heterogeneous federated learning. CVPR 2022.

    Examples
    --------
    >>> from adcs import ClientReport
    >>> scheduler = FedCor(warm_up=2, fit_steps=200)
    >>> for r in range(3):
    ...     asked = scheduler.request(r, range(4), 1).clients
    ...     losses = [3.0 - r, 3.0 - r, 3.0 - r, 1.0]  # clients 0, 1 and 2 improve together
    ...     reports = [ClientReport(c, r, loss=losses[c]) for c in asked]
    ...     scheduler.observe(r, reports, "probe")
    ...     cohort = scheduler.select(r, range(4), 1)
    >>> cohort.clients[0] in (0, 1, 2), scheduler.request(3, range(4), 1).clients
    (True, ())
    """

    family = "diversity"
    observed_sources = frozenset[Source]({"enrolment", "probe"})
    training_signals = frozenset[str]()
    needed_signals = frozenset({"loss"})

    def __init__(
        self,
        *,
        warm_up: int = 15,
        refit_every: int = 10,
        history: int = 100,
        discount: float = 0.95,
        annealing: float = 0.95,
        dimension: int = 15,
        noise: float = 0.01,
        fit_steps: int = 1000,
        refit_steps: int = 100,
        learning_rate: float = 0.01,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.warm_up = check_int("warm_up", warm_up, minimum=1)
        self.refit_every = check_int("refit_every", refit_every, minimum=2)
        self.history = check_int("history", history, minimum=1)
        self.discount = check_number("discount", discount, above=0, maximum=1)
        self.annealing = check_number("annealing", annealing, above=0, maximum=1)
        self.fit_steps = check_int("fit_steps", fit_steps, minimum=1)
        self.refit_steps = check_int("refit_steps", refit_steps, minimum=1)
        self.model = LossCorrelation(
            dimension=check_int("dimension", dimension, minimum=1),
            noise=check_number("noise", noise, above=0),
            learning_rate=check_number("learning_rate", learning_rate, above=0),
        )
        self._changes: dict[int, dict[ClientId, float]] = {}  # loss changes by round
        self._losses: tuple[int, dict[ClientId, float]] = (-1, {})  # before a uniform cohort
        self._alpha: dict[ClientId, float] = {}

    def _is_uniform(self, server_round: int) -> bool:
        """Return whether the round has a uniform cohort, whose effect on losses is measured."""
        since = server_round - self.warm_up
        return since < 0 or since % self.refit_every == self.refit_every - 1

    def _request(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Request:
        """Ask everyone's loss before a uniform cohort and after it."""
        after = server_round > 0 and self._is_uniform(server_round - 1)
        if after or self._is_uniform(server_round):
            return Request(clients, frozenset({"loss"}))
        return Request()

    def _select(self, server_round: int, clients: tuple[ClientId, ...], m: int) -> Cohort:
        """Select uniformly, or greedily by the fitted covariance."""
        self._update_model(server_round, clients)
        rng = self.rng(server_round, purpose=1)
        if self._is_uniform(server_round) or not self.model.clients:
            return Cohort.of(self.take([clients[i] for i in rng.permutation(len(clients))], m))
        known = [client for client in clients if client in self.model]

        def order(count: int) -> Sequence[int]:
            return self._greedy(known, self._admissible(known, count))

        cohort = order_with_unknown(self, server_round, clients, m, known, order)
        for client in cohort.clients:
            self._alpha[client] = self._alpha.get(client, 1.0) * self.annealing
        return Cohort.of(cohort.clients, drawn=cohort.diagnostics["drawn"])

    def _admissible(self, known: list[ClientId], count: int) -> int:
        """Return how many clients to rank: with constraints, more than there are slots."""
        return len(known) if self.constraints else count

    def _greedy(self, known: list[ClientId], count: int) -> list[int]:
        """Return positions in `known`, in the order of the greedy."""
        everyone = in_order(self.model.clients)
        row = {client: i for i, client in enumerate(everyone)}
        sizes = example_counts(self.reports, everyone)
        weights = sizes / sizes.sum() if sizes.sum() > 0.0 else np.full(len(everyone), 1.0)
        alpha = np.array([self._alpha.get(client, 1.0) for client in everyone])
        chosen = greedy_correlation(
            self.model.factors(everyone),
            self.model.noise,
            weights,
            alpha,
            [row[client] for client in known],
            count,
            given=[row[client] for client in self.pending if client in row],
        )
        position = {row[client]: i for i, client in enumerate(known)}
        return [position[i] for i in chosen]

    def _update_model(self, server_round: int, clients: tuple[ClientId, ...]) -> None:
        """Note losses and their changes, and fit the covariance after a uniform cohort."""
        reported, values = self.reports.fresh_values("loss", server_round, clients)
        losses = dict(zip(reported, values.tolist(), strict=True))
        before, old = self._losses
        if before == server_round - 1 and before >= 0:
            changes = {c: losses[c] - old[c] for c in reported if c in old}
            if changes:
                self._changes[before] = changes
            oldest = server_round - 1 - self.history
            self._changes = {r: kept for r, kept in self._changes.items() if r >= oldest}
            if not self._is_uniform(server_round) and self._changes:
                first = not self.model.clients
                self.model.fit(
                    self._changes,
                    self.fit_steps if first else self.refit_steps,
                    self.discount,
                    self.rng(server_round),
                )
                self._alpha = {}
        self._losses = (server_round, losses) if self._is_uniform(server_round) else (-1, {})

    def state(self) -> dict[str, Any]:
        """Return everything learned."""
        return {
            **super().state(),
            "model": self.model.state(),
            "changes": [[r, _pairs(changes)] for r, changes in self._changes.items()],
            "losses": [self._losses[0], _pairs(self._losses[1])],
            "alpha": _pairs(self._alpha),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        super().restore(state)
        self.model.restore(state["model"])
        self._changes = {int(r): dict(map(tuple, pairs)) for r, pairs in state["changes"]}
        self._losses = (int(state["losses"][0]), dict(map(tuple, state["losses"][1])))
        self._alpha = dict(map(tuple, state["alpha"]))


def greedy_correlation(
    factors: Float64Array,
    noise: float,
    weights: Float64Array,
    alpha: Float64Array,
    candidates: Sequence[int],
    count: int,
    given: Sequence[int] = (),
) -> list[int]:
    """Return rows in the order of the greedy; Sigma is never made as a whole.

    Parameters
    ----------
    factors, noise
        Sigma = factors' factors + noise^2 I.
    weights, alpha
        p and alpha of each row.
    candidates, count
        Rows that may be chosen, and how many are.
    given
        Rows that are conditioned on first.

    Examples
    --------
    >>> factors = np.array([[2.0, 1.0, 0.0], [0.0, 0.1, 1.0]])
    >>> greedy_correlation(factors, 0.01, np.ones(3), np.ones(3), [0, 1, 2], 2)
    [1, 2]
    """
    diagonal = np.square(factors).sum(axis=0) + noise**2
    sums = factors.T @ (factors @ weights) + noise**2 * weights
    start = diagonal.copy()
    free = np.zeros(weights.size, dtype=bool)
    free[list(candidates)] = True
    directions: list[Float64Array] = []

    def condition(row: int) -> None:
        """Take the Schur complement of a row."""
        nonlocal diagonal, sums
        column = factors.T @ factors[:, row]
        column[row] += noise**2
        for direction in directions:
            column -= direction * direction[row]
        direction = column / np.sqrt(max(diagonal[row], 1e-300))
        directions.append(direction)
        sums = sums - direction * float(weights @ direction)
        diagonal = diagonal - direction * direction

    for row in given:
        if diagonal[row] > 1e-12 * start[row]:
            condition(row)
    chosen: list[int] = []
    for _ in range(min(count, int(free.sum()))):
        # A row that the others determine has no variance left.
        left = free & (diagonal > 1e-12 * start)
        if not left.any():
            chosen += [int(i) for i in np.flatnonzero(free)[: count - len(chosen)]]
            break
        scores = np.where(left, alpha * sums / np.sqrt(np.where(left, diagonal, 1.0)), -np.inf)
        row = int(np.argmax(scores))
        chosen.append(row)
        free[row] = False
        condition(row)
    return chosen


def _pairs(values: Mapping[ClientId, float]) -> list[list[Any]]:
    return [[client, value] for client, value in values.items()]
