"""`make attacks`: its liars, its aggregations, and the script from start to table."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from adcs.simulation import Truth
from reproduction import attacks
from reproduction.attacks import AGGREGATIONS, ATTACKS, OURS


def test_flowers_rules_aggregate_as_their_papers_say() -> None:
    """Krum takes the update closest to its n - f - 2 nearest; MultiKrum averages the best five."""
    rng = np.random.default_rng(0)
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


def test_one_liar_of_each_of_five_classes_and_none_tells_the_truth_about_its_loss() -> None:
    groups = np.repeat(np.arange(10), 3)
    losses, updates = np.linspace(1.0, 2.0, 30), np.eye(30)
    local: Any = SimpleNamespace(
        prepare=lambda clients: None,
        losses=lambda run, clients: losses[clients],
        updates=lambda run, clients: updates[clients],
    )
    truth = Truth(1, np.arange(30), local, 0)
    liars = attacks.liars_of("copies", groups, seed=0)
    assert np.unique(groups[liars]).size == liars.size == 5
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
    others = [f"{OURS}, {name}" for name in list(AGGREGATIONS)[1:]]
    expected = [OURS, "Uniform", *others]
    assert sorted(labels) == sorted((a, name) for a in attacks.ATTACKS for name in expected)
    assert all(0.0 <= float(cell) <= 3.0 for row in rows[1:] for cell in row[2:])
    capsys.readouterr()
    attacks.main(arguments)
    assert "simulations" not in capsys.readouterr().err


def test_an_unknown_scheduler_is_named() -> None:
    with pytest.raises(SystemExit, match=r"there is no scheduler 'Nobody'; there are Uniform, "):
        attacks.main(["Nobody", "--rounds", "10"])
