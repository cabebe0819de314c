"""Aggregations: against NumPy and SciPy, laws, limits of influence, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import adcs
from adcs.experiments.config import Experiment
from adcs.simulation import (
    MLP,
    Aggregation,
    ClippedMean,
    Federation,
    Mean,
    Median,
    Simulation,
    Training,
    TrimmedMean,
    aggregation,
    load,
    make_partition,
)

DATA = load("synthetic:clusters=3,dimension=4,per_cluster=40")
FEDERATION = Federation(DATA, make_partition(DATA, "iid", 6, seed=0), batch_size=5)


def simulation(scheduler: Any, own: Aggregation | None = None, **settings: Any) -> Simulation:
    training = Training(**{"m": 6, "lr": 0.1, **settings})
    return Simulation(FEDERATION, MLP(4, 3), {"one": scheduler}, training, aggregation=own)


def problem(rows: int, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    weights = rng.random(rows) + 0.1
    return rng.standard_normal((rows, 17)), weights / weights.sum()


@given(st.integers(1, 12), st.integers(0, 1000), st.floats(0, 0.49))
def test_against_numpy_and_scipy(rows: int, seed: int, trim: float) -> None:
    updates, weights = problem(rows, seed)
    np.testing.assert_allclose(
        Mean().aggregate(updates, weights), np.average(updates, axis=0, weights=weights)
    )
    np.testing.assert_allclose(Median().aggregate(updates, weights), np.median(updates, axis=0))
    np.testing.assert_allclose(
        TrimmedMean(trim).aggregate(updates, weights), stats.trim_mean(updates, trim), atol=1e-12
    )


def test_columns_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    updates, weights = problem(5, 0)
    whole = [rule.aggregate(updates, weights) for rule in (Median(), TrimmedMean())]
    monkeypatch.setattr(aggregation, "COLUMNS", 4)
    for rule, expected in zip((Median(), TrimmedMean()), whole, strict=True):
        np.testing.assert_array_equal(rule.aggregate(updates, weights), expected)


@given(st.integers(1, 12), st.integers(0, 1000), st.floats(0.1, 10))
def test_clipping_by_hand(rows: int, seed: int, norm: float) -> None:
    updates, weights = problem(rows, seed)
    expected = np.zeros(17)
    for update, weight in zip(updates, weights, strict=True):
        expected += weight * update * min(1.0, norm / float(np.linalg.norm(update)))
    np.testing.assert_allclose(ClippedMean(norm).aggregate(updates, weights), expected, atol=1e-12)


def test_a_zero_update_can_be_clipped() -> None:
    assert not ClippedMean(1.0).aggregate(np.zeros((2, 3)), np.ones(2) / 2).any()


def test_one_client_cannot_drag_the_model() -> None:
    updates, weights = problem(7, 1)
    attacked = updates.copy()
    attacked[3] = 1e9
    for rule in (Median(), TrimmedMean(0.2), ClippedMean(5.0)):
        assert np.abs(rule.aggregate(attacked, weights)).max() < 10
    assert np.abs(Mean().aggregate(attacked, weights)).max() > 1e6


def test_mean_as_rows_is_the_mean_of_the_engine() -> None:
    class Rows(Aggregation):
        def aggregate(self, updates: Any, weights: Any) -> Any:
            return weights @ updates

    one, other = simulation(adcs.Uniform()), simulation(adcs.Uniform(), Rows())
    for sim in (one, other):
        sim.run(5)
    np.testing.assert_allclose(one.parameters, other.parameters, rtol=1e-5, atol=1e-6)


class Unnormalised(adcs.Scheduler):
    def _select(self, server_round: int, clients: Any, m: int) -> Any:
        return adcs.Cohort(clients[:m], (1.0,) * m, normalise=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"aggregation": "median"},
        {"aggregation": "trimmed-mean"},
        {"aggregation": "clipped-mean", "clip_norm": 1.0},
    ],
)
def test_unnormalised_weights_are_refused(settings: Any) -> None:
    rule = type(Training(**settings).make_aggregation()).__name__
    named = f"aggregation {rule} needs weights that sum to 1, and one weights its cohorts"
    with pytest.raises(ValueError, match=named):
        simulation(Unnormalised(), **settings).step()
    simulation(Unnormalised()).step()
    simulation(adcs.Uniform(), **settings).step()


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (lambda rows: rows[0, :-1], r"the aggregate must have shape \(15,\), got \(14,\)"),
        (lambda rows: rows[0] * np.inf, "the aggregate must be finite numbers"),
        (lambda rows: None, "the aggregate must have shape"),
        (lambda rows: rows["a"], r"IndexError: .* \(test_aggregation.py, line"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_ones_own_is_checked(result: Any, sentence: str) -> None:
    class Mine(Aggregation):
        def aggregate(self, updates: Any, weights: Any) -> Any:
            return result(updates)

    with pytest.raises(ValueError, match=f"aggregation Mine failed in round 0: {sentence}"):
        simulation(adcs.Uniform(), Mine()).step()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"aggregation": "medain"}, "got 'medain'; did you mean median?"),
        ({"aggregation": "trimmed-mean", "trim": 0.5}, "trim must be a number >= 0 and < 0.5"),
        ({"aggregation": "clipped-mean"}, "clip_norm must be given where aggregation is clipped"),
        ({"trim": 0.1}, "trim is a setting of trimmed-mean, and aggregation is mean"),
        ({"aggregation": "median", "paper_literal_weights": True}, "needs aggregation mean"),
        ({"server_optimizer": "adm"}, "got 'adm'; did you mean adam?"),
        ({"server_momentum": 0.5}, "is a setting of momentum, and server_optimizer is mean"),
        ({"server_optimizer": "adam", "beta_1": 1.0}, "beta_1 must be a number >= 0 and < 1"),
        ({"local": "sdg"}, "got 'sdg'; did you mean sgd?"),
        ({"epochs": 2, "steps": 2}, "give one of them, got epochs 2 and steps 2"),
        ({"epochs": 2, "local": "full"}, "epochs cannot be given where local is full"),
        ({"momentum": 1.0}, "momentum must be a number >= 0 and < 1, got 1.0"),
        ({"prox": -1.0}, "prox must be a number >= 0, got -1.0"),
        ({"clip": 0.0}, "clip must be a number > 0, got 0.0"),
    ],
)
def test_wrong_settings(settings: Any, sentence: str) -> None:
    for make in (Training, Experiment.of):
        with pytest.raises(ValueError, match=sentence.replace("?", r"\?")):
            make(**settings)


def test_own_classes_are_checked_before_the_run(tmp_path: Any) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from adcs.simulation import Aggregation, LocalTraining\n"
        "class NoTrain(LocalTraining):\n    pass\n"
        "class Rule(Aggregation):\n    def aggregate(self, updates, weights): ...\n"
    )
    for settings, sentence in (
        ({"local": f"{path}:NoTrain"}, "abstract class NoTrain .* abstract method '?train"),
        ({"local": f"{path}:Rule"}, "Rule is not a subclass of adcs.simulation.LocalTraining"),
        ({"local": f"{path}:NoTrian"}, "no class 'NoTrian'; did you mean NoTrain"),
        ({"aggregation": f"{path}:NoTrain"}, "not a subclass of adcs.simulation.Aggregation"),
        ({"aggregation": f"{path}:Rule(a=1)"}, "Rule has no setting 'a'; it has none"),
        ({"local": f"{path}:NoTrain", "prox": 0.1}, "prox is a setting of sgd and full"),
    ):
        with pytest.raises(ValueError, match=sentence):
            Experiment.of(**settings)
