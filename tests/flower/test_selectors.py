"""Selectors in a Flower federation: signals as metrics, and what is said when one is missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

import adcs
from adcs.flower import LocalGrid, Scheduled, probe_mod


def with_metrics(kind: str, more: Any) -> Any:
    """A mod that adds metrics to a kind of replies, as a user's handler would."""

    def mod(message: Message, context: Any, call_next: Any) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type.startswith(kind):
            content = RecordDict(dict(reply.content.items()))
            metrics = more(context.node_config["partition-id"])
            content["metrics"] = MetricRecord({**dict(content["metrics"]), **metrics})
            reply.content = content
        return reply

    return mod


def signals(client: int) -> dict[str, Any]:
    """All signals of a client, by name."""
    counts = [0.0] * 3
    counts[client % 3] = 10.0
    return {
        "rms_loss": 1.0 + client,
        "held_out_accuracy": 0.5,
        "label_counts": counts,
        "compute_seconds": 1.0 + client,
        "communication_seconds": 1.0,
    }


SELECTORS = {
    "Oort": adcs.Oort,
    "ActiveFL": adcs.ActiveFL,
    "ClusteredSampling": adcs.ClusteredSampling,
    "FedCor": lambda: adcs.FedCor(warm_up=1, refit_every=2, fit_steps=5, refit_steps=5),
    "HiCSFL": adcs.HiCSFL,
    "FedCBS": adcs.FedCBS,
    "FLIPS": adcs.FLIPS,
    "TiFL": lambda: adcs.TiFL(tiers=2, interval=2),
    "FedCS": adcs.FedCS,
    "REFL": adcs.REFL,
    "ADCS of labels": lambda: adcs.ADCS(kernel="labels", refresh_every=2),
    "LiveADCS of labels": lambda: adcs.LiveADCS(kernel="labels"),
}


@pytest.mark.parametrize("name", SELECTORS)
def test_every_selector_runs_with_signals_as_metrics(toy: Any, name: str) -> None:
    mods = [with_metrics("train", signals), with_metrics("evaluate", signals)]
    scheduler = SELECTORS[name]()
    strategy = Scheduled(FedAvg(), scheduler, clients_per_round=3)
    run = toy.start(strategy, LocalGrid(toy.make_app(mods), toy.n), 4)
    for record in run.records:
        assert not record.refused
        assert 1 <= len(record.trained) <= 3
        assert record.trained == sorted(record.cohort.clients)
    assert scheduler.missing_signals() == []
    assert np.isfinite(run.w).all()


def test_label_counts_are_asked_once(toy: Any) -> None:
    mods = [probe_mod, with_metrics("evaluate", signals)]
    strategy = Scheduled(FedAvg(fraction_evaluate=0.0), adcs.FLIPS(), clients_per_round=3)
    run = toy.start(strategy, LocalGrid(toy.make_app(mods), toy.n), 3)
    assert [len(record.probed) for record in run.records] == [6, 0, 0]
    # One client of each of the three labels in every cohort.
    assert all(len({c % 3 for c in record.trained}) == 3 for record in run.records)


@pytest.mark.parametrize("kind", [adcs.ADCS, adcs.LiveADCS])
def test_a_kernel_of_labels_probes_with_evaluations_only(toy: Any, kind: Any) -> None:
    """No probe trains: the only updates that travel are those of the cohorts."""
    trained: list[int] = []

    def count(message: Message, context: Any, call_next: Any) -> Message:
        if message.metadata.message_type.startswith("train"):
            trained.append(context.node_config["partition-id"])
        return call_next(message, context)

    mods = [probe_mod, count, with_metrics("evaluate", signals)]
    strategy = Scheduled(FedAvg(fraction_evaluate=0.0), kind(kernel="labels"), clients_per_round=3)
    run = toy.start(strategy, LocalGrid(toy.make_app(mods), toy.n), 3)
    assert [len(record.probed) for record in run.records] == [6, 0, 0]
    assert sorted(trained) == sorted(c for record in run.records for c in record.trained)
    # ADCS has one client of each of the three labels; of LiveADCS's slots one goes by losses, too.
    labels = 2 if kind is adcs.LiveADCS else 3
    assert all(len({c % 3 for c in record.trained}) >= labels for record in run.records)


def test_a_missing_signal_is_named_once(toy: Any, caplog: Any) -> None:
    strategy = Scheduled(FedAvg(), adcs.Oort(), clients_per_round=3)
    toy.start(strategy, LocalGrid(toy.plain_app, toy.n), 3)
    said = [r.getMessage() for r in caplog.records if "Oort needs 'rms_loss'" in r.getMessage()]
    assert len(said) == 1
    assert "return it as a metric of that name" in said[0]


def test_a_histogram_that_clients_do_not_report_is_refused_with_a_reason(toy: Any) -> None:
    strategy = Scheduled(FedAvg(), adcs.FedCBS(), clients_per_round=3)
    run = toy.start(strategy, LocalGrid(toy.plain_app, toy.n), 2)
    reasons = {entry["reason"] for entry in run.records[0].refused}
    assert any("must have a metric 'label_counts'" in reason for reason in reasons)
    assert all(len(record.trained) == 3 for record in run.records)
