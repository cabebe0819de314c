"""`make attacks`: its liars, its aggregations, and the script from start to table."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adcs.simulation import Truth
from reproduction import attacks, slots
from reproduction.attacks import AGGREGATIONS, ATTACKS, OURS


def test_flowers_rules_aggregate_as_their_papers_say() -> None:
    """Krum takes the update closest to its n - f - 2 nearest; MultiKrum averages the best five."""
    pytest.importorskip("flwr")  # it sets its logger's level when it is imported
    rng, level = np.random.default_rng(0), logging.getLogger("flwr").level
    updates = rng.normal(size=(10, 4))
    updates[:3] *= 50.0
    weights = rng.uniform(0.5, 2.0, 10)
    distances = np.sort(((updates[:, None] - updates[None]) ** 2).sum(axis=2), axis=1)
    best = np.argsort(distances[:, 1:6].sum(axis=1))[:5]
    krum = AGGREGATIONS["Flower's Krum"].aggregate(updates, weights)
    np.testing.assert_allclose(krum, updates[best[0]])
    multikrum = AGGREGATIONS["Flower's MultiKrum"].aggregate(updates, weights)
    expected = np.average(updates[best], axis=0, weights=weights[best])
    np.testing.assert_allclose(multikrum, expected)
    bulyan = AGGREGATIONS["Flower's Bulyan"].aggregate(updates, weights)
    assert np.abs(bulyan).max() < np.abs(updates[3:]).max()
    assert logging.getLogger("flwr").level == level


def test_liars_are_of_different_classes() -> None:
    given = {"data": "digits"}
    settings = attacks.experiment(given)
    groups = np.asarray(settings.divide(settings.dataset(), 3).groups)
    for attack, count in (("copies", 5), ("labels are noise", 6)):
        liars = attacks.liars_of(attack, given, seed=3)
        assert np.unique(groups[liars]).size == liars.size == count


def test_what_liars_claim_and_send() -> None:
    losses, updates = np.linspace(1.0, 2.0, 30), np.eye(30)
    local: Any = SimpleNamespace(
        prepare=lambda clients: None,
        losses=lambda run, clients: losses[clients],
        updates=lambda run, clients: updates[clients],
    )
    truth = Truth(1, np.arange(30), local, 0)
    liars = np.array([1, 4, 13, 22, 29])
    honest = np.setdiff1d(np.arange(30), liars)
    for name, kind in ATTACKS.items():
        if kind is None:
            continue
        attack = kind(liars.tolist())
        claimed, sent = attack.losses(liars, truth), attack.updates(liars, truth)
        assert claimed.shape == (5,)
        assert sent.shape == (5, 30)
        if name == "claims of the 90th percentile":
            np.testing.assert_allclose(claimed, np.quantile(losses[honest], 0.9))
        if name == "gang, scattered directions":
            np.testing.assert_allclose(np.linalg.norm(sent, axis=1), 1.0)
        if name == "sign-flip x 100":
            np.testing.assert_allclose(sent, -100.0 * updates[liars])


def test_from_start_to_table_and_what_is_done_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attacks, "ATTACKS", {"none": None, "sign-flip x 100": attacks.SignFlip})
    rules = {name: AGGREGATIONS[name] for name in ("mean", "median", "Flower's Krum")}
    monkeypatch.setattr(attacks, "AGGREGATIONS", rules)
    arguments = [OURS, "Uniform", "--data", "digits", "--rounds", "10", "--seeds", "1"]
    arguments += ["--jobs", "1", "--out", str(tmp_path)]
    attacks.main(arguments)
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (tmp_path / "summary.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    assert rows[0] == attacks.HEADS
    labels = [(row[0], row[1]) for row in rows[1:]]
    others = [f"{OURS}, {name}" for name in list(rules)[1:]]
    expected = [OURS, "Uniform", *others]
    assert sorted(labels) == sorted((a, name) for a in attacks.ATTACKS for name in expected)
    assert all(0.0 <= float(cell) <= 3.0 for row in rows[1:] for cell in row[2:])
    capsys.readouterr()
    attacks.main(arguments)
    assert "simulations" not in capsys.readouterr().err


def test_an_unknown_scheduler_is_named() -> None:
    with pytest.raises(SystemExit, match=r"there is no scheduler 'Nobody'; there are Uniform, "):
        attacks.main(["Nobody", "--rounds", "10"])


def test_slots_are_given_again_to_the_same_clients(tmp_path: Path) -> None:
    given = {"data": "digits", "rounds": 20, "seeds": 1}
    found = slots.measure("claims of 1e6", 100, given)
    attack, alone = found.values()
    assert attack["share"] == alone["share"] > 1.2
    assert attack["average"] != alone["average"]
    words = ["--data", "digits", "--rounds", "10", "--seeds", "1", "--jobs", "1"]
    slots.main([*words, "--out", str(tmp_path)])
    text = (tmp_path / "summary.md").read_text()
    assert all(f"| {name} |" in text for name in slots.REPLAYED)
    assert text.count(": the slots alone |") == len(slots.REPLAYED) - 1
    assert text.count("max_share=1.25 |") == 2
