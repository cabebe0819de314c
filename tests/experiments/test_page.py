"""The page's data: what it says, that it fits the records, and that nothing in it is markup."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from adcs.cli.app import app
from adcs.experiments.comparison import compare
from adcs.experiments.config import Experiment
from adcs.experiments.page import LARGEST, page_data, write_page
from adcs.experiments.page.alerts import federation_alerts, simulation_alerts
from adcs.experiments.page.document import document, json_text, with_reasons
from adcs.experiments.page.encoding import nested
from adcs.experiments.page.reasons import CODES, LEFT_OUT, REASONS, SELECTED, choice_states
from adcs.experiments.page.simulation import command_of
from adcs.experiments.page.source import LineTail, RunSource
from adcs.experiments.page.status import RunStatus, client_states, metrics_text
from adcs.experiments.page.verdict import proposed, which_scheduler, who_is_left_behind
from adcs.experiments.page.views import Participation, cluster_order
from adcs.experiments.runner import create_run, experiment_of
from adcs.experiments.statistics import Estimate, summarise
from adcs.experiments.styles import styles_of
from adcs.federated.recorder import Recorder, RoundRecord
from adcs.reports.report import ClientReport
from adcs.run_folder import RunFolder
from adcs.schedulers import ADCS, Cohort, LiveADCS, PowerOfChoice, Scheduler, Uniform
from adcs.schedulers.choice import Choice, explain_choice

HOSTILE = "</script><img src=x onerror=alert(1)>&\u2028"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    path = tmp_path_factory.mktemp("runs") / "run"
    compare(
        ["Uniform", "PowerOfChoice", "DivFL", "ADCS", "LiveADCS"],
        data="synthetic:per_cluster=40",
        clients=10,
        m=4,
        rounds=60,
        eval_every=5,
        lr=0.05,
        seeds=3,
        out=path,
        jobs=1,
        progress=False,
    )
    return RunFolder.open(path)


@pytest.fixture(scope="module")
def data(run: RunFolder) -> dict[str, Any]:
    source = RunSource(run)
    source.read()
    return page_data(source)


def array(text: str, kind: str, *shape: int) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), dtype=f"<{kind}").reshape(shape)


def test_a_comparison_ends_with_its_page(run: RunFolder) -> None:
    page = run.path / "report.html"
    assert page.stat().st_size < LARGEST
    result = CliRunner().invoke(app, ["compare", "--resume", str(run.path), "--jobs", "1"])
    assert result.exit_code == 0
    assert result.stderr.splitlines()[-1].endswith(str(page))


def test_one_scheduler_is_not_called_several(tmp_path: Path) -> None:
    done = compare(
        ["LiveADCS"],
        data="synthetic:per_cluster=40",
        clients=10,
        m=4,
        rounds=4,
        eval_every=2,
        out=tmp_path / "run",
        jobs=1,
        progress=False,
    )
    source = RunSource(RunFolder.open(done.folder))
    source.read()
    assert page_data(source)["title"] == "synthetic:per_cluster=40: LiveADCS"
    assert (done.folder / "summary.md").read_text().startswith("# One scheduler\n")


def test_the_states_are_the_cohorts_of_the_records(run: RunFolder, data: dict[str, Any]) -> None:
    held = [record for record in run.records() if record["seed"] == 0]
    for label, view in data["views"].items():
        rounds = view["rounds"]
        states = array(view["states"], "u1", len(rounds), 10)
        counts = array(view["counts"], "u4", len(rounds), 10)
        for step, done in enumerate(rounds):
            (record,) = [r for r in held if (r["scheduler"], r["server_round"]) == (label, done)]
            assert counts[step].tolist() == record["counts"]
            selected = [i for i, code in enumerate(states[step]) if code in SELECTED]
            if done < 60:
                assert selected == np.flatnonzero(record["cohort_weights"]).tolist()
            else:
                assert set(states[step]) == {CODES["none"]}
            values = view["values"]
            steps = array(values["steps"], "u2", len(rounds), 10)[step]
            found = values["low"] + steps / 65534 * (values["high"] - values["low"])
            np.testing.assert_allclose(found, record["accuracy"], atol=1e-4)


def test_participation_is_that_of_all_rounds(run: RunFolder, data: dict[str, Any]) -> None:
    last = {
        r["scheduler"]: r["counts"]
        for r in run.records()
        if r["seed"] == 0 and r["server_round"] == 60
    }
    for label, view in data["views"].items():
        edges = view["participation"]["edges"]
        shares = array(view["participation"]["shares"], "u1", 10, len(edges) - 1) / 255
        found = (shares * np.diff(edges)).sum(axis=1)
        np.testing.assert_allclose(found, last[label], atol=0.5)


def test_curves_and_tables_are_those_of_the_report(run: RunFolder, data: dict[str, Any]) -> None:
    rows = summarise(run.records(), list(data["curves"]["lines"]), "Uniform")
    assert [row[0] for row in data["tables"][0]["rows"]] == [row.label for row in rows]
    assert data["tables"][1]["title"].startswith("Paired differences to Uniform")
    line = data["curves"]["lines"]["ADCS"]
    assert set(line["x"]) == {"server_round", "bytes", "seconds"}
    finals = [r["worst"] for r in run.records() if r["scheduler"] == "ADCS"]
    assert len(data["curves"]["seeds"]["lines"]["ADCS"]["worst"]) == 3
    assert line["worst"][0][0] == pytest.approx(np.mean(finals[:: len(finals) // 3]), abs=1e-3)
    styles = styles_of({label: label for label in data["curves"]["lines"]})
    assert {s["label"]: s["colour"] for s in data["schedulers"]} == {
        label: style.colour for label, style in styles.items()
    }


def test_the_first_lines_are_sentences_about_scheduler_and_clients(data: dict[str, Any]) -> None:
    text = " ".join(data["verdict"])
    assert data["proposed"] in text
    assert re.search(r"Left behind with|Nobody is far behind", text)


def rows_of(values: dict[str, tuple[float, float]], seeds: int) -> list[Any]:
    rng = np.random.default_rng(0)
    lines = [
        {
            "scheduler": label,
            "seed": seed,
            "server_round": 9,
            "worst20": w + 0.001 * rng.standard_normal(),
            "average": a,
        }
        for label, (w, a) in values.items()
        for seed in range(seeds)
    ]
    return summarise(lines, list(values), "Uniform")


def test_the_proposed_scheduler_is_the_one_that_serves_the_worst_off() -> None:
    sure = rows_of({"Uniform": (0.3, 0.8), "ADCS": (0.5, 0.79), "Low": (0.9, 0.5)}, 5)
    assert proposed(sure).label == "ADCS"  # type: ignore[union-attr]
    advice = which_scheduler(sure, "Uniform")
    assert advice.label == "ADCS"
    assert advice.sentences[0].startswith("Use ADCS: it serves the worst-off clients better")
    assert "p < 0.001" in advice.sentences[1]
    best = which_scheduler(rows_of({"Uniform": (0.5, 0.8), "ADCS": (0.3, 0.8)}, 5), "Uniform")
    assert best.label == "Uniform"
    assert best.sentences[0].startswith("Use Uniform: ")
    one = which_scheduler(rows_of({"Uniform": (0.3, 0.8), "ADCS": (0.5, 0.8)}, 1), "Uniform")
    assert one.label == "ADCS"
    assert "as far as one seed can tell" in one.sentences[0]
    assert "--seeds 5" in one.sentences[1]
    assert which_scheduler([], "Uniform").sentences == ["No accuracy of clients is recorded yet."]


def rows_by_seed(worst20: dict[str, list[float]], average: dict[str, float]) -> list[Any]:
    lines = [
        {
            "scheduler": label,
            "seed": seed,
            "server_round": 9,
            "worst20": value,
            "average": average[label],
        }
        for label, found in worst20.items()
        for seed, value in enumerate(found)
    ]
    return summarise(lines, list(worst20), "Uniform")


def test_the_baseline_is_enough_where_seeds_do_not_tell_it_from_the_best() -> None:
    values = {"Uniform": [0.30, 0.32, 0.34, 0.28, 0.31], "ADCS": [0.36, 0.27, 0.35, 0.31, 0.30]}
    level = rows_by_seed(values, {"Uniform": 0.8, "ADCS": 0.8})
    assert proposed(level).label == "ADCS"  # type: ignore[union-attr]
    advice = which_scheduler(level, "Uniform")
    assert advice.label == "Uniform"
    assert advice.sentences[0].startswith("Uniform is enough: over 5 seeds")
    assert "ADCS comes first, level with Uniform" in advice.sentences[1]
    lower = which_scheduler(
        rows_by_seed(
            {**values, "ADCS": [0.30, 0.32, 0.34, 0.28, 0.32]}, {"Uniform": 0.7, "ADCS": 0.8}
        ),
        "Uniform",
    )
    assert lower.sentences[0] == "Use ADCS: its average is better than that of Uniform."


def test_a_lead_that_only_the_correction_makes_unsure_is_not_called_level() -> None:
    rows = rows_by_seed(
        {
            "Uniform": [0.30, 0.32, 0.31],
            "ADCS": [0.31, 0.31, 0.32],
            "LiveADCS": [0.34, 0.39, 0.36],
        },
        dict.fromkeys(["Uniform", "ADCS", "LiveADCS"], 0.8),
    )
    difference = rows[2].differences["worst20"]
    assert difference.low > 0.0
    assert rows[2].p["worst20"] >= 0.05
    advice = which_scheduler(rows, "Uniform")
    assert advice.label == "Uniform"
    assert advice.sentences[0] == (
        "Uniform is enough as far as 3 seeds can tell: the lead of LiveADCS may be chance."
    )
    assert "level" not in advice.sentences[1]
    assert "leaves out 0, but p, corrected for all comparisons" in advice.sentences[1]


def with_traffic(rows: list[Any], traffic: dict[str, float]) -> list[Any]:
    def cells(row: Any) -> dict[str, Any]:
        return {**row.cells, "bytes": Estimate(traffic[row.label], None, 1)}

    return [dataclasses.replace(row, cells=cells(row)) for row in rows]


def test_better_schedulers_without_costs_are_named_beside_a_costly_one() -> None:
    steps = [0.0, 0.01, 0.02, 0.005, 0.015]
    values = {
        "Uniform": [0.30 + step for step in steps],
        "PowerOfChoice": [0.42 + 1.1 * step for step in steps],
        "LiveADCS": [0.41 + 1.1 * step for step in steps],
        "DivFL": [0.32 - step for step in steps],
    }
    rows = rows_by_seed(values, dict.fromkeys(values, 0.8))
    traffic = {"Uniform": 1.0, "PowerOfChoice": 2.0, "LiveADCS": 1.01, "DivFL": 1.0}
    found = which_scheduler(with_traffic(rows, traffic), "Uniform").sentences
    assert found[0].startswith("Use PowerOfChoice")
    said = "At about the costs of Uniform, LiveADCS serves the worst-off clients better, too."
    assert (
        found.index(said) == found.index("It costs more than Uniform: 2.0 times the traffic.") + 1
    )
    assert said not in which_scheduler(with_traffic(rows, dict.fromkeys(values, 1.0)), "Uniform")[1]


@pytest.mark.parametrize("seeds", [1, 5])
def test_of_schedulers_that_tie_the_cheapest_is_proposed(seeds: int) -> None:
    same = {"OCS": [0.4] * seeds, "Oort": [0.4] * seeds, "Uniform": [0.4] * seeds}
    rows = with_traffic(
        rows_by_seed(same, dict.fromkeys(same, 0.8)), {"OCS": 9.0, "Oort": 1.0, "Uniform": 2.0}
    )
    assert proposed(rows).label == "Oort"  # type: ignore[union-attr]
    dear = with_traffic(rows, {"OCS": 9.0, "Oort": 3.0, "Uniform": 2.0})
    advice = which_scheduler(dear, "Uniform")
    assert advice.label == "Uniform"
    assert "OCS and Oort reach the same." in advice.sentences
    assert not any("level with it" in sentence for sentence in advice.sentences)


def test_the_baseline_on_top_is_not_said_to_be_surely_best() -> None:
    values = {"Uniform": [0.5], "ADCS": [0.4]}
    one = which_scheduler(rows_by_seed(values, {"Uniform": 0.8, "ADCS": 0.8}), "Uniform")
    assert one.sentences[0] == "Use Uniform, as far as one seed can tell."
    assert "--seeds 5" in one.sentences[1]
    noisy = {"Uniform": [0.50, 0.45, 0.55], "ADCS": [0.30, 0.60, 0.40]}
    few = which_scheduler(rows_by_seed(noisy, {"Uniform": 0.8, "ADCS": 0.8}), "Uniform")
    assert few.sentences[0].startswith("Use Uniform: no scheduler is surely better")
    assert few.sentences[-1].endswith("contains 0; more seeds may tell them apart.")


def test_a_sure_lead_goes_before_a_larger_one_that_may_be_chance() -> None:
    rows = rows_by_seed(
        {
            "Uniform": [0.30, 0.31, 0.30, 0.29, 0.30],
            "ADCS": [0.90, 0.05, 0.95, 0.10, 0.90],
            "LiveADCS": [0.40, 0.41, 0.40, 0.39, 0.40],
        },
        dict.fromkeys(["Uniform", "ADCS", "LiveADCS"], 0.8),
    )
    advice = which_scheduler(rows, "Uniform")
    assert advice.label == "LiveADCS"
    assert advice.sentences[0].startswith("Use LiveADCS: it serves the worst-off clients better")
    assert advice.sentences[-1].startswith("ADCS is level with it: ")


def test_a_proposal_says_what_it_costs() -> None:
    lines = [
        {
            "scheduler": label,
            "seed": seed,
            "server_round": 9,
            "worst20": worst + 0.001 * seed,
            "average": 0.8,
            "updates": updates,
            "bytes": 100,
            "seconds": seconds,
        }
        for label, worst, updates, seconds in (("Uniform", 0.3, 50, 10.0), ("OCS", 0.5, 100, 123.0))
        for seed in range(5)
    ]
    for seeds in (1, 5):
        rows = summarise([r for r in lines if r["seed"] < seeds], ["Uniform", "OCS"], "Uniform")
        assert (
            "It costs more than Uniform: 2.0 times the client updates and 12.3 times the virtual "
            "time."
        ) in which_scheduler(rows, "Uniform").sentences
    assert "costs more" not in " ".join(
        which_scheduler(
            rows_of({"Uniform": (0.3, 0.8), "ADCS": (0.5, 0.8)}, 5), "Uniform"
        ).sentences
    )


def test_a_scheduler_whose_training_diverged_is_not_proposed() -> None:
    rows = rows_of({"Uniform": (0.3, 0.8), "ADCS": (0.5, 0.8), "OCS": (0.4, 0.8)}, 5)
    assert which_scheduler(rows, "Uniform", ["ADCS"]).label == "OCS"
    alone = which_scheduler(rows, "Uniform", ["Uniform", "OCS"])
    assert alone.label == "ADCS"
    assert alone.sentences[0] == (
        "Training diverged with Uniform: nothing can be compared with it."
    )
    none = which_scheduler(rows, "Uniform", ["Uniform", "ADCS", "OCS"])
    assert none.label is None
    assert none.sentences == [
        "Training diverged with every scheduler: these accuracies say nothing about schedulers."
    ]


def test_the_page_of_a_diverged_run_proposes_nobody(tmp_path: Path) -> None:
    compare(
        ["Uniform", "LiveADCS"],
        data="synthetic:per_cluster=40",
        model="mlp:8",
        clients=10,
        m=4,
        rounds=20,
        eval_every=5,
        lr=1e6,
        server_lr=1e30,
        out=tmp_path / "run",
        jobs=1,
        progress=False,
    )
    source = RunSource(RunFolder.open(tmp_path / "run"))
    source.read()
    data = page_data(source)
    assert data["proposed"] is None
    assert data["verdict"][0].startswith("Training diverged with every scheduler")
    assert len(data["verdict"]) == 1
    assert data["notes"][0].startswith("Training diverged: ")
    json_text(data)  # no NaN in it


def test_the_page_says_first_that_hardly_anybody_trained(tmp_path: Path) -> None:
    compare(
        ["Uniform", "LiveADCS"],
        data="synthetic:per_cluster=40",
        clients=10,
        m=4,
        rounds=20,
        eval_every=5,
        network={"dropout": 0.8},
        out=tmp_path / "run",
        jobs=1,
        progress=False,
    )
    source = RunSource(RunFolder.open(tmp_path / "run"))
    source.read()
    verdict = page_data(source)["verdict"]
    assert verdict[0] == "Hardly anybody trained: what follows says little about schedulers."
    assert "as far as one seed can tell" in verdict[1]


def test_schedulers_that_seeds_do_not_tell_from_the_proposed_one_are_named() -> None:
    rows = rows_by_seed(
        {
            "Uniform": [0.30, 0.31, 0.30, 0.29, 0.30],
            "ADCS": [0.50, 0.52, 0.51, 0.49, 0.50],
            "LiveADCS": [0.49, 0.53, 0.51, 0.48, 0.50],
            "OCS": [0.40, 0.41, 0.40, 0.39, 0.40],
        },
        dict.fromkeys(["Uniform", "ADCS", "LiveADCS", "OCS"], 0.8),
    )
    advice = which_scheduler(rows, "Uniform")
    assert advice.label == "ADCS"
    assert advice.sentences[-1].startswith("LiveADCS is level with it: ")
    assert "OCS" not in " ".join(advice.sentences)


def test_an_unfinished_run_counts_the_seeds_that_are_recorded() -> None:
    rows = rows_by_seed(
        {"Uniform": [0.3, 0.3], "ADCS": [0.5], "OCS": []},
        {"Uniform": 0.8, "ADCS": 0.8},
    )
    assert which_scheduler(rows, "Uniform").sentences[0] == "Use ADCS, as far as one seed can tell."


def test_nobody_is_left_behind_where_all_are_level() -> None:
    served = np.array([0.8, 0.8, 0.8, 0.8])
    (sentence,) = who_is_left_behind("ADCS", served, list("abcd"), None, 9)
    assert sentence.startswith("Nobody is far behind with ADCS")
    assert who_is_left_behind("ADCS", np.array([np.nan]), ["a"], None, 9) == []


def test_most_clients_may_be_left_behind() -> None:
    """With most at zero, none is below the average by the spread of all."""
    served = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 1.0, 1.0])
    names = [f"client {i}" for i in range(10)]
    (sentence,) = who_is_left_behind("ADCS", served, names, None, 9)
    assert sentence == (
        "Left behind with ADCS: client 0 with accuracy 0.000; client 1 with accuracy 0.000; "
        "client 2 with accuracy 0.000; and 4 more. The average is 0.290."
    )
    errors = -np.array([9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0])
    (sentence,) = who_is_left_behind("ADCS", errors, names, None, 9, "RMSE")
    assert sentence.startswith("Nobody is far behind with ADCS")


def reports(n: int) -> list[ClientReport]:
    rng = np.random.default_rng(3)
    return [
        ClientReport(c, 0, loss=rng.uniform(0.5, 2.0), update=rng.standard_normal(4))
        for c in range(n)
    ]


def test_every_reason_has_words_for_the_summary() -> None:
    assert set(LEFT_OUT) == {reason.word for reason in REASONS} - {"selected", "no cohort"}


def test_the_note_of_the_results_is_about_their_columns(data: dict[str, Any]) -> None:
    results = data["tables"][0]
    assert "traffic" not in results["heads"]
    assert "traffic" not in results["note"]
    assert "Jain the index of participation. " in results["note"]


@pytest.mark.parametrize(
    "scheduler", [ADCS(), LiveADCS(), PowerOfChoice(), Uniform(), ADCS(required=[3])]
)
def test_every_client_has_one_state(scheduler: Scheduler) -> None:
    scheduler.observe(0, reports(8), "probe")
    cohort = scheduler.select(0, range(8), 3)
    choice = explain_choice(scheduler, range(8), cohort)
    states = choice_states(choice, {c: c for c in range(10)}, backing_off=[8])
    inside = {i for i, code in enumerate(states.codes) if code in SELECTED}
    assert inside == set(cohort.clients)
    assert states.codes[8] == CODES["failing"]
    assert states.codes[9] == CODES["unavailable"]
    for client in set(range(8)) - inside:
        reason = REASONS[states.codes[client]]
        assert reason.text.startswith("left out")
        named = "{other}" in reason.text
        assert (states.others[client] in cohort.clients) == named
    if choice.explanation is not None:
        for miss in choice.explanation.left_out:
            key = REASONS[states.codes[choice.known[miss.row]]].key
            assert key == miss.reason


def test_waiting_is_a_reason_of_its_own() -> None:
    scheduler = ADCS()
    scheduler.observe(0, reports(6), "probe")
    cohort = scheduler.select(0, range(6), 2)
    choice = explain_choice(scheduler, range(6), cohort)
    assert choice.explanation is not None
    first = cohort.clients[0]
    waited = Cohort(cohort.clients, cohort.weights, True, {**cohort.diagnostics, "waited": [first]})
    found = Choice(waited, choice.available, 0.5, choice.known, choice.explanation)
    states = choice_states(found, {c: c for c in range(6)})
    assert states.codes[first] == CODES["waited"]


def test_slots_of_clients_at_work_are_not_said_to_be_taken_by_a_rule() -> None:
    words = set()
    for first in range(6):
        scheduler = ADCS(theta=0.2)
        scheduler.observe(0, reports(12), "probe")
        pending = [(first + k) % 12 for k in range(3)]
        free = [client for client in range(12) if client not in pending]
        cohort = scheduler.select(0, free, 3, pending)
        choice = explain_choice(scheduler, free, cohort)
        states = choice_states(choice, {c: c for c in range(12)}, pending=pending)
        assert [REASONS[states.codes[client]].word for client in pending] == ["at work"] * 3
        words |= {REASONS[code].word for code in states.codes}
    assert "slots held" in words
    assert "rules" not in words


def test_clients_at_work_are_not_said_to_be_unavailable(tmp_path: Path) -> None:
    path = tmp_path / "run"
    compare(
        ["Uniform", "LiveADCS"],
        data="synthetic:per_cluster=40",
        clients=10,
        m=4,
        mode="buffered",
        rounds=20,
        eval_every=5,
        lr=0.05,
        out=path,
        jobs=1,
        progress=False,
    )
    source = RunSource(RunFolder.open(path))
    source.read()
    data = page_data(source)
    for view in data["views"].values():
        codes = array(view["states"], "u1", len(view["rounds"]), 10)
        words = [[REASONS[code].word for code in row] for row in codes]
        assert all("at work" in row for row in words[1:-1])
        assert not any("unavailable" in row for row in words)


def test_clusters_are_neighbours_in_the_order() -> None:
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(4), 6))
    rows = np.eye(4)[labels] + 0.1 * rng.standard_normal((24, 4))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    ordered = labels[cluster_order(rows @ rows.T)]
    assert (np.diff(ordered) != 0).sum() == 3


def test_participation_of_wide_columns_never_hides_a_selection() -> None:
    cohorts = [[0]] * 1000
    cohorts[500] = [1]
    found = Participation.of(cohorts, clients=2, columns=5)
    assert found.edges.tolist() == [0, 200, 400, 600, 800, 1000]
    assert found.shares[1].tolist() == [0, 0, 2, 0, 0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"data": "digits", "partition": "dirichlet", "partition_settings": {"alpha": 0.1}},
        {"data": "digits", "m": 5, "seeds": 3, "network": {"dropout": 0.25, "deadline": 30.0}},
        {"data": "digits", "schedulers": {"mine": "ADCS(theta=0.5)", "Uniform": "Uniform"}},
        {"data": "digits", "lr": 0.01, "steps": 3, "prox": 0.1, "server_optimizer": "adam"},
        {"data": "digits", "over_select": 1.3, "network": {"deadline": "adaptive"}},
        {"data": "digits", "mode": "buffered", "concurrency": 8, "staleness": "inverse"},
    ],
)
def test_the_command_makes_the_same_experiment(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, made = Experiment.of(**options), []

    def created(found: Experiment, *_: Any, **__: Any) -> None:
        made.append(found)
        raise ValueError("enough")

    monkeypatch.setattr("adcs.cli.compare._created", created)
    CliRunner().invoke(app, shlex.split(command_of(experiment))[1:])
    assert made == [experiment]


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]


def test_hostile_names_are_text(data: dict[str, Any]) -> None:
    changed = json.loads(json.dumps(data))
    changed["clients"]["names"] = [f"{HOSTILE}{i}" for i in range(10)]
    changed["title"] = changed["metric"]["name"] = HOSTILE
    text = document(changed, HOSTILE)
    parser = Elements()
    parser.feed(text)
    assert "img" not in parser.tags
    assert parser.tags.count("script") == 2
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert block is not None
    assert json.loads(block[1])["clients"]["names"][0] == f"{HOSTILE}0"
    assert not set(block[1]) & set("<>&\u2028\u2029")


def test_a_name_does_not_turn_the_text_after_it() -> None:
    for sign in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069":
        page = document({"verdict": [f"client {sign}evil with accuracy 0.5"]}, f"run {sign}")
        assert sign not in page
        assert "client \ufffdevil with" in page
    assert "\u0633\u0644\u0627\u0645" in json_text("\u0633\u0644\u0627\u0645")


def test_the_policy_names_the_script_and_the_style() -> None:
    text = document(with_reasons({"live": True}), "run")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert "connect-src 'self'" in policy[1]
    assert "connect-src" not in document({}, "run").partition("<style>")[0]


def test_scripts_use_no_markup() -> None:
    folder = Path(__file__).parents[2] / "src" / "adcs" / "experiments" / "page"
    for path in folder.glob("*.js"):
        text = path.read_text()
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, f"{path.name} has {word}"
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")


def test_json_has_no_nan() -> None:
    assert json_text({"a": float("nan"), "b": np.float32(0.5)}) == '{"a":null,"b":0.5}'


def test_report_names_seeds_and_folders(run: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    words = ["report", str(run.path), "--seed", "1", "--out", str(out)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert '"seed":1' in out.read_text()
    result = CliRunner().invoke(app, ["report", str(run.path), "--seed", "9"])
    assert result.exit_code == 2
    assert "seed must be one of the run's, 0, 1, 2; got 9" in result.stderr
    result = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert result.exit_code == 2


def test_a_run_of_an_earlier_version_has_a_page(run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(run.path, tmp_path / "old")
    shutil.rmtree(tmp_path / "old" / "selections")
    folder = RunFolder.open(tmp_path / "old")
    source = RunSource(folder)
    source.read()
    view = page_data(source)["views"]["ADCS"]
    codes = array(view["states"], "u1", len(view["rounds"]), 10)
    assert {REASONS[c].key for c in codes[0]} == {"selected", "left_out"}
    assert view["participation"] is None
    write_page(folder)


def test_a_run_without_records_has_a_page(tmp_path: Path) -> None:
    experiment = Experiment.of(data="synthetic", clients=10, m=4, rounds=20)
    folder = create_run(tmp_path / "run", experiment)
    text = write_page(folder).read_text()
    assert "No accuracy of clients is recorded yet." in text
    assert "Unfinished: " in text


def test_a_tail_follows_a_file_that_is_cut_and_written_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    tail = LineTail(path)
    lines = [{"scheduler": "U", "seed": 0, "server_round": r} for r in range(5)]
    texts = [json.dumps(line) + "\n" for line in lines]
    path.write_text("".join(texts[:3]) + texts[3][:5])
    assert tail.read()
    assert tail.lines == lines[:3]
    path.write_text("".join(texts[:1]))
    assert tail.read()
    assert tail.lines == lines[:1]
    other = json.dumps({"scheduler": "V", "seed": 0, "server_round": 0}) + "\n"
    path.write_text(other)  # of the same size
    assert tail.read()
    assert tail.lines[0]["scheduler"] == "V"
    assert not tail.read()


def federation(path: Path, rounds: int = 35) -> RunFolder:
    """A federation without any framework: client "b" fails, site B never trains."""
    groups = {"a": "A", 1: "A", "b": "B", HOSTILE: "A"}
    scheduler = Uniform(groups=groups)
    recorder = Recorder(path, scheduler, "example", {})
    for number in range(rounds):
        record = RoundRecord(cohort=Cohort.of(["a", "b"]), trained=["a"])
        record.failed = [{"client": "b", "stage": "training", "reason": "error"}]
        record.evaluation = {
            "eval_acc": {"a": 0.5 + number / 100, 1: 0.4, HOSTILE: 0.3},
            "eval_loss": {"a": 1.0, 1: 2.0, HOSTILE: 3.0},
        }
        recorder.announce(record, list(groups))
        recorder.close(record, list(groups))
    return RunFolder.open(path)


def test_a_federation_has_a_page(tmp_path: Path) -> None:
    folder = federation(tmp_path / "run")
    write_page(folder)
    source = RunSource(folder)
    source.read()
    found = page_data(source)
    assert found["clients"]["names"] == ["1", HOSTILE, "a", "b"]
    assert found["clients"]["group_names"] == ["A", "B"]
    assert found["alerts"] == [
        "Client b has failed 35 times in a row.",
        "Nobody of site B has trained for 35 rounds.",
    ]
    assert "Never trained so far: " in found["verdict"][-1]
    view = found["views"]["Uniform"]
    states = array(view["states"], "u1", 35, 4)
    assert [REASONS[c].word for c in states[0]][2:] == ["selected", "selected"]
    assert view["losses"]["high"] == 3.0


def grown(whole: RunFolder, path: Path, rng: np.random.Generator) -> Iterator[RunFolder]:
    """Yield a copy of a run folder again and again, as it grows; once it is cut and resumed."""
    path.mkdir()
    shutil.copy(whole.path / "config.json", path)
    growing = [*whole.path.glob("records/*.jsonl"), *whole.path.glob("selections/*")]
    held = {file: file.read_bytes() for file in growing}
    share = dict.fromkeys(growing, 0.0)
    for step in range(12):
        for file, data in held.items():
            cut = 0.5 if step == 6 else 1.0
            share[file] = cut * min(1.0, share[file] + rng.uniform(0, 0.3)) if step < 11 else 1.0
            copy = path / file.relative_to(whole.path)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(data[: int(share[file] * len(data))])
        yield RunFolder.open(path)


@pytest.mark.parametrize("kind", ["comparison", "federation"])
@pytest.mark.parametrize("number", range(3))
def test_a_page_made_again_is_one_made_anew(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, number: int
) -> None:
    monkeypatch.setattr(
        "adcs.experiments.page.views.VIEW_BYTES", 4_000
    )  # so that steps are left out
    whole = run if kind == "comparison" else federation(tmp_path / "whole")
    followed = None
    for folder in grown(whole, tmp_path / "run", np.random.default_rng(number)):
        followed = followed or RunSource(folder)
        followed.read()
        fresh = RunSource(folder)
        fresh.read()
        assert json_text(page_data(followed)) == json_text(page_data(fresh))
    assert followed is not None
    assert len(list(followed.records)) == len(list(whole.records()))


def test_what_is_made_of_lines_is_made_again_when_they_change(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {})
    with folder.writer("seed0") as writer:
        for done in range(3):
            writer.append({"scheduler": "U", "seed": 0, "server_round": done})
    source = RunSource(folder)
    source.read()
    made: list[int] = []

    def once(line: Any, given: int = 0) -> None:
        for record in source.records:
            source.once((record, line), given, lambda: made.append(record["server_round"]))  # noqa: B023

    once(None)
    once(None)
    assert made == [0, 1, 2]
    once({}, 0)  # another line that belongs to them
    once(source.config, 1)
    assert made == [0, 1, 2] * 3
    (path,) = (folder.path / "records").glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    source.read()
    once(source.config, 1)
    assert made == [0, 1, 2] * 3 + [0, 1]


@given(count=st.integers(0, 500), most=st.integers(2, 80))
def test_steps_that_are_shown_are_not_replaced_by_others(count: int, most: int) -> None:
    now, then = nested(count, most), nested(count + 1, most)
    assert now.size <= most
    assert now.size == count or now.size > most // 2 - 1
    assert set(then[:-1]) <= set(now) | {count}
    if count:
        assert (now[0], now[-1]) == (0, count - 1)


def test_the_status_of_a_federation(tmp_path: Path) -> None:
    folder = federation(tmp_path / "run", rounds=4)
    source = RunSource(folder)
    source.read()
    status = RunStatus(source)
    done = status.now()
    assert done == status.now()
    assert done["sentence"] == "4 rounds are done."
    recorder = Recorder(
        folder.path, Uniform(groups={"a": "A", 1: "A", "b": "B", HOSTILE: "A"}), "example", {}
    )
    record = RoundRecord(cohort=Cohort.of(["a"]), backing_off=["b"])
    recorder.announce(record, ["a", 1, "b"])
    now = dict(status.now()["states"])
    assert now == {"at work": ["a"], "waiting": ["1"], "failing": ["b"], "not connected": [HOSTILE]}


def test_the_status_of_a_comparison_moves_between_evaluations(run: RunFolder) -> None:
    source = RunSource(run)
    source.read()
    now = RunStatus(source).now()
    assert now["sentence"].startswith("Finished: 900 of 900 rounds of all schedulers, 3 seeds")
    assert all(run["done"] == 60 and len(run["cohort"]) == 4 for run in now["runs"].values())
    assert experiment_of(run).training.rounds == 60


def test_alerts_of_a_comparison() -> None:
    records = [{"scheduler": "ADCS", "seed": 3, "server_round": 5, "test_loss": None}]
    found = simulation_alerts(records, {"ADCS": [40, 3, 50]}, [0, 1, 0], ["cat", "dog"])
    assert found == [
        "The training of ADCS has diverged at seed 3.",
        "ADCS has selected nobody of group cat for 40 rounds.",
    ]
    assert federation_alerts([], [], None, []) == []
    assert client_states([], {}, ["a"], running=False)["waiting"] == ["a"]


def test_metrics_are_read_by_prometheus(tmp_path: Path, run: RunFolder) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    for folder in (run, federation(tmp_path / "run", rounds=4)):
        source = RunSource(folder)
        source.read()
        text = metrics_text(source, RunStatus(source).now())
        families = {f.name: f for f in parser.text_string_to_metric_families(text)}
        worst = {
            (s.labels["scheduler"], s.labels["seed"]): s.value
            for s in families["adcs_client_metric"].samples
            if s.labels["statistic"] == "worst"
        }
        last = {(r["scheduler"], str(r["seed"])): r["worst"] for r in folder.records()}
        assert worst == pytest.approx(last)
        assert families["adcs_updates"].type == "counter"
    failures = families["adcs_client_failures_in_a_row"].samples
    assert {s.labels["client"]: s.value for s in failures} == {"b": 4.0}


def test_hostile_labels_survive_prometheus() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    from adcs.experiments.page.status import _family

    name = 'a"b\\n\nc'
    text = "\n".join([*_family("adcs_x", "gauge", "x", [({"client": name}, 1.0)]), ""])
    (family,) = parser.text_string_to_metric_families(text)
    assert family.samples[0].labels["client"] == name
