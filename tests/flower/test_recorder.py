"""The run folder of a Flower run, and restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg

import adcs
from adcs import Sketcher
from adcs.dpp.explain import explain
from adcs.dpp.greedy import greedy_map
from adcs.dpp.kernel import similarity, unit_rows
from adcs.flower import Scheduled
from adcs.observers import Observer
from adcs.run_folder import RunFolder
from adcs.schedulers.base import Cohort
from adcs.schedulers.choice import from_record

SKETCH = Sketcher(size=64)


def make(folder: Path | None, base: FedAvg | None = None, **options: Any) -> Scheduled:
    scheduler = adcs.ADCS(**{"refresh_every": 4, "sketch": SKETCH, "seed": 1, **options})
    return Scheduled(base or FedAvg(), scheduler, clients_per_round=2, folder=folder)


def test_the_folder_has_the_record_of_each_round(toy: Any, tmp_path: Path) -> None:
    run = toy.start(make(tmp_path / "run"), toy.grid(), 3)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.config["engine"] == "flower"
    assert folder.config["strategy"] == "FedAvg"
    assert folder.config["scheduler"]["name"] == "ADCS"
    assert folder.config["scheduler"]["spec"].startswith("ADCS(")
    lines = list(folder.records())
    assert [line["server_round"] for line in lines] == [1, 2, 3]
    assert {(line["scheduler"], line["seed"]) for line in lines} == {("ADCS", 1)}
    first, last = lines[0], lines[-1]
    assert first["probed"] == first["answered"] == [0, 1, 2, 3, 4, 5]
    assert lines[1]["probed"] == []
    assert first["chosen"] == list(run.records[0].cohort.clients)
    assert [client for client, _ in first["diagnostics"]["gains"]] == first["chosen"]
    assert last["clients"] == [0, 1, 2, 3, 4, 5]
    counts = [sum(c in record.trained for record in run.records) for c in range(6)]
    assert last["counts"] == counts
    assert last["updates"] == 6 + 2 * 3
    assert last["extra_updates"] == 6
    assert last["bytes_down"] > last["bytes_up"] > first["bytes_up"] > 0
    accuracy = 1.0 / (1.0 + np.arange(6))
    assert last["accuracy"] == accuracy.tolist()
    assert last["worst"] == accuracy.min()
    assert last["average"] == pytest.approx(accuracy.mean())
    assert last["evaluation"]["eval_loss"]["worst"] >= last["test_loss"]


def test_the_record_explains_why_clients_were_left_out(toy: Any, tmp_path: Path) -> None:
    run = toy.start(make(tmp_path / "run", sketch=None), toy.grid(), 5)
    lines = list(RunFolder.open(tmp_path / "run").records())
    w = toy.initial()["w"].numpy()
    updates = np.stack([toy.gradient(w, client) for client in range(6)])
    losses = np.array([toy.loss(w, client) for client in range(6)])
    cosines = similarity(unit_rows(updates))
    chosen = greedy_map(cosines, 2, quality=losses, theta=0.8).indices
    expected = explain(cosines, chosen, losses, 0.8)
    assert lines[0]["chosen"] == chosen.tolist() == list(run.records[0].cohort.clients)
    for line in lines:  # the kernel of round 1 is used for four rounds
        cohort = Cohort(tuple(line["chosen"]), tuple(line["weights"]))
        found = from_record(line["choice"], cohort)
        assert found.known == found.available == (0, 1, 2, 3, 4, 5)
        assert found.explanation is not None
        assert [pick.row for pick in found.explanation.picks] == line["chosen"]
        assert len(found.explanation.left_out) == 4
        if line["server_round"] <= 4:
            for miss, other in zip(found.explanation.left_out, expected.left_out, strict=True):
                assert (miss.row, miss.reason) == (other.row, other.reason)
                assert miss.similarity == pytest.approx(other.similarity, abs=1e-5)


def test_explain_shows_the_clients_left_out(toy: Any, tmp_path: Path) -> None:
    runner = pytest.importorskip("typer.testing").CliRunner()
    from adcs.cli.app import app

    def output(folder: Path, *more: str) -> str:
        result = runner.invoke(app, ["explain", str(folder), "--round", "2", *more])
        assert result.exit_code == 0, result.output
        return result.stdout

    toy.start(make(tmp_path / "adcs"), toy.grid(), 2)
    text = output(tmp_path / "adcs")
    assert "Left out" in text
    assert "reason" in text
    [line] = [x for x in RunFolder.open(tmp_path / "adcs").records() if x["server_round"] == 2]
    for client in map(str, range(6)):
        verb = "was pick" if int(client) in line["chosen"] else "was left out"
        assert f"Client {client} {verb}" in output(tmp_path / "adcs", "--client", client)
    assert "Client 9 was not available" in output(tmp_path / "adcs", "--client", "9")
    for scheduler, words in (
        (adcs.PowerOfChoice(), "Ranked by loss"),
        (adcs.Uniform(), "selects at random"),
        (adcs.LiveADCS(), "Left out"),
        (adcs.DivFL(), "nearest selected"),
    ):
        folder = tmp_path / type(scheduler).__name__
        toy.start(Scheduled(FedAvg(), scheduler, clients_per_round=2, folder=folder), toy.grid(), 2)
        assert words in output(folder)


def test_the_round_continues_if_a_choice_cannot_be_explained(
    toy: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Unexplained(adcs.Uniform):
        def _select(self, server_round: int, clients: tuple[Any, ...], m: int) -> Cohort:
            return Cohort.of(clients[:m], scores="not a list of pairs")

    strategy = Scheduled(FedAvg(), Unexplained(), clients_per_round=2, folder=tmp_path / "run")
    toy.start(strategy, toy.grid(), 1)
    [line] = RunFolder.open(tmp_path / "run").records()
    assert line["trained"] == [0, 1]
    assert "choice" not in line
    assert "the choice has no explanation" in caplog.text


def test_faults_are_in_the_record(toy: Any, tmp_path: Path) -> None:
    grid = toy.grid()
    grid.nodes[1].app = toy.plain_app
    grid.nodes[2].tamper = lambda reply: None
    strategy = make(tmp_path / "run")
    toy.start(strategy, grid, 1, timeout=30.0)
    [line] = RunFolder.open(tmp_path / "run").records()
    assert line["pending"] == [f"node:{grid.nodes[2].node_id}"]
    assert line["without_mod"] == [f"node:{grid.nodes[1].node_id}"]


class Cohorts(Observer):
    """Keeps the clients of every cohort."""

    def __init__(self) -> None:
        self.clients: list[tuple[Any, ...]] = []

    def on_selection(self, event: Any) -> None:
        self.clients.append(event.cohort.clients)


def test_a_restarted_server_continues_with_its_kernel(toy: Any, tmp_path: Path) -> None:
    """Cohorts, records and model are those of a run that was never stopped."""
    whole = toy.start(make(tmp_path / "whole"), toy.grid(), 7)

    grid, cohorts = toy.grid(), Cohorts()
    arrays: ArrayRecord = toy.initial()
    for rounds in (3, 2, 2):
        # As in a new process: a new strategy and a new scheduler; the user saves the model.
        strategy = make(tmp_path / "parts")
        strategy.observers.append(cohorts)
        arrays = strategy.start(grid, arrays, num_rounds=rounds).arrays
    assert strategy.rounds_done == 7
    assert cohorts.clients == [record.cohort.clients for record in whole.records]
    np.testing.assert_array_equal(arrays["w"].numpy(), whole.w)
    one = list(RunFolder.open(tmp_path / "whole").records())
    other = list(RunFolder.open(tmp_path / "parts").records())
    for line in (*one, *other):
        line.pop("schedule_seconds")
    assert other == one


def test_server_round_continues_after_a_restart(toy: Any, tmp_path: Path) -> None:
    for _ in range(2):
        toy.start(make(tmp_path / "run"), toy.grid(), 2)
    assert sorted({server_round for _, server_round in toy.trained}) == [1, 2, 3, 4]


def test_lines_of_an_unfinished_round_are_removed(toy: Any, tmp_path: Path) -> None:
    toy.start(make(tmp_path / "run"), toy.grid(), 2)
    with (tmp_path / "run" / "records" / "flower.jsonl").open("a") as file:
        file.write('{"scheduler": "ADCS", "seed": 1, "round": 3}\n{"sched')
    toy.start(make(tmp_path / "run"), toy.grid(), 1)
    lines = list(RunFolder.open(tmp_path / "run").records())
    assert [line["server_round"] for line in lines] == [1, 2, 3]
    assert "chosen" in lines[2]


def test_an_unfinished_round_is_repeated(toy: Any, tmp_path: Path) -> None:
    class Interrupted(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            if server_round == 2:
                raise KeyboardInterrupt
            return super().aggregate_train(server_round, replies)

    strategy = make(tmp_path / "run", base=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        strategy.start(toy.grid(), toy.initial(), num_rounds=2)
    assert make(tmp_path / "run", base=Interrupted()).rounds_done == 1


@pytest.mark.parametrize("method", ["on_selection", "on_round", "on_evaluation"])
def test_a_round_whose_observer_fails_is_recorded(toy: Any, tmp_path: Path, method: str) -> None:
    class Webhook(Observer):
        def fail(self, event: Any) -> None:
            if event.server_round == 2:
                raise ConnectionError("no route to host")

    setattr(Webhook, method, Webhook.fail)
    whole = toy.start(make(None), toy.grid(), 4)
    strategy = make(tmp_path / "run")
    strategy.observers.append(Webhook())
    with pytest.raises(ConnectionError) as caught:
        strategy.start(toy.grid(), toy.initial(), num_rounds=4)
    assert caught.value.__notes__[0] == f"raised by {method} of the observer Webhook"
    strategy = make(tmp_path / "run")
    # A round whose clients have not trained is repeated.
    assert strategy.rounds_done == (2 if method == "on_selection" else 3)
    again = toy.start(strategy, toy.grid(), 4 - strategy.rounds_done)
    np.testing.assert_array_equal(again.w, whole.w)
    lines = list(RunFolder.open(tmp_path / "run").records())
    assert [line["server_round"] for line in lines] == [1, 2, 3, 4]


def test_a_folder_of_another_scheduler_is_refused(toy: Any, tmp_path: Path) -> None:
    toy.start(make(tmp_path / "run"), toy.grid(), 1)
    with pytest.raises(ValueError, match="choose another folder"):
        make(tmp_path / "run", theta=0.5)
    with pytest.raises(ValueError, match="holds a run of"):
        Scheduled(FedAvg(), adcs.Uniform(), clients_per_round=2, folder=tmp_path / "run")


def test_nothing_is_written_without_a_folder(toy: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    toy.start(make(None), toy.grid(), 1)
    assert list(tmp_path.iterdir()) == []
