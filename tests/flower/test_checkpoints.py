"""A restarted server continues with the model and the strategy's state."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedYogi

import adcs
from adcs.flower import Scheduled
from adcs.observers import Observer
from adcs.run_folder import InUse, RunFolder

STRATEGIES: dict[str, Any] = {
    "FedAvg": FedAvg,
    "FedAvgM": lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
    "FedAdam": lambda: FedAdam(eta=0.1),
    "FedYogi": lambda: FedYogi(eta=0.1),
    "FedAdagrad": lambda: FedAdagrad(eta=0.1),
}


class Momentum(FedAvg):
    """Keeps something between rounds, and says what."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = np.zeros(2)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        self.seen = self.seen + server_round
        return super().aggregate_train(server_round, replies)

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Forgetful(FedAvg):
    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        return super().aggregate_train(server_round, replies)


def make(base: Any, folder: Path | None) -> Scheduled:
    scheduler = adcs.LiveADCS(sketch=adcs.Sketcher(size=32), seed=1)
    return Scheduled(base, scheduler, clients_per_round=3, folder=folder)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_restarted_server_continues_with_model_and_moments(
    toy: Any, tmp_path: Path, name: str
) -> None:
    whole = toy.start(make(STRATEGIES[name](), None), toy.grid(), 6)
    for rounds in (2, 3, 1):
        # The server starts again with the initial model, as its code says.
        parts = toy.start(make(STRATEGIES[name](), tmp_path / "run"), toy.grid(), rounds)
    np.testing.assert_array_equal(parts.w, whole.w)


def test_a_server_that_dies_after_its_last_round_has_its_model(toy: Any, tmp_path: Path) -> None:
    whole = toy.start(make(FedAvg(), tmp_path / "run"), toy.grid(), 3)
    strategy = make(FedAvg(), tmp_path / "run")
    again = toy.start(strategy, toy.grid(), 3 - strategy.rounds_done)
    assert again.records == []
    np.testing.assert_array_equal(again.w, whole.w)


def test_strategies_with_state_and_load_state_are_restored(toy: Any, tmp_path: Path) -> None:
    for _ in range(2):
        base = Momentum()
        toy.start(make(base, tmp_path / "run"), toy.grid(), 2)
    assert base.seen.tolist() == [10.0, 10.0]


def test_strategies_without_them_are_named(toy: Any, tmp_path: Path, caplog: Any) -> None:
    make(Forgetful(), tmp_path / "run")
    assert "Forgetful has no methods state() and load_state()" in caplog.text
    caplog.clear()
    make(FedAdam(), tmp_path / "other")
    make(Momentum(), tmp_path / "third")
    assert "load_state" not in caplog.text


class LowersRate(FedAvg):
    """Changes the config in place, as Flower's advanced example does."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        if server_round == 3:
            config["lr"] = config["lr"] / 2
            del config["warm-up"]
        return super().configure_train(server_round, arrays, config, grid)

    def state(self) -> None:
        return None

    def load_state(self, state: None) -> None:
        pass


@pytest.mark.parametrize("parts", [(6,), (2, 4), (3, 3), (2, 2, 2)])
def test_changes_of_the_config_survive_a_restart(toy: Any, tmp_path: Path, parts: Any) -> None:
    for rounds in parts:
        config = ConfigRecord({"lr": 0.5, "warm-up": True, "key": b"secret"})
        strategy = make(LowersRate(), tmp_path / "run")
        toy.start(strategy, toy.grid(), rounds, train_config=config)
    seen = {each["server-round"]: each for each in toy.configs}
    assert [seen[t]["lr"] for t in range(1, 7)] == [0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
    assert [t for t in seen if "warm-up" in seen[t]] == [1, 2]
    assert all(each["key"] == b"secret" for each in toy.configs)


def test_another_config_after_a_restart_is_left_as_it_is(toy: Any, tmp_path: Path) -> None:
    for lr in (0.5, 0.1):
        config = ConfigRecord({"lr": lr, "warm-up": True})
        strategy = make(LowersRate(), tmp_path / "run")
        toy.start(strategy, toy.grid(), 4, train_config=config)
    assert {each["lr"] for each in toy.configs if each["server-round"] > 4} == {0.1}


def test_a_checkpoint_of_another_strategy_is_refused(toy: Any, tmp_path: Path) -> None:
    toy.start(make(FedAdam(), tmp_path / "run"), toy.grid(), 1)
    with pytest.raises(ValueError, match="checkpoint is of another strategy than FedAvg"):
        make(FedAvg(), tmp_path / "run")
    # FedYogi keeps arrays of the same names, which mean something else.
    with pytest.raises(ValueError, match=r"than FedYogi, that of FedAdam\.m_t, FedAdam\.v_t:"):
        make(FedYogi(), tmp_path / "run")

    class Own(FedAdam):
        def summary(self) -> None:
            pass

    make(Own(), tmp_path / "run")


def test_a_second_start_of_one_object_goes_on_as_a_new_object_does(
    toy: Any, tmp_path: Path
) -> None:
    strategy = make(FedAvg(), tmp_path / "run")
    toy.start(strategy, toy.grid(), 2)
    again = toy.start(strategy, toy.grid(), 2)
    new = make(FedAvg(), tmp_path / "other")
    toy.start(new, toy.grid(), 2)
    other = toy.start(make(FedAvg(), tmp_path / "other"), toy.grid(), 2)
    np.testing.assert_array_equal(again.w, other.w)


def test_the_state_of_another_class_is_not_taken_over(toy: Any, tmp_path: Path) -> None:
    class Counts(FedAvg):
        count = 0

        def state(self) -> Any:
            return {"count": self.count}

        def load_state(self, state: Any) -> None:
            self.count = state["count"]

    class Sums(Counts):
        pass

    toy.start(make(Counts(), tmp_path / "run"), toy.grid(), 1)
    with pytest.raises(ValueError, match=r"of another strategy than Sums, that of Counts\.state:"):
        make(Sums(), tmp_path / "run")


def test_moments_that_were_saved_without_names_are_restored(toy: Any, tmp_path: Path) -> None:
    strategy = make(FedAdam(), tmp_path / "run")
    toy.start(strategy, toy.grid(), 1)
    named = strategy._strategy_state()
    base = FedAdam()
    make(base, None)._restore_strategy(named["values"])
    assert base.m_t is named["values"][0]
    with pytest.raises(ValueError, match="another strategy than FedAvg: choose"):
        make(FedAvg(), None)._restore_strategy(named["values"])


def test_a_server_that_was_killed_while_it_made_the_folder_starts_again(
    toy: Any, tmp_path: Path
) -> None:
    (tmp_path / "run" / "records").mkdir(parents=True)
    (tmp_path / "run" / ".config.json.0123456789abcdef.part").write_text("{")
    toy.start(make(FedAvg(), tmp_path / "run"), toy.grid(), 1)
    assert len(list(RunFolder.open(tmp_path / "run").records())) == 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.part").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty and holds no run"):
        make(FedAvg(), tmp_path / "other")


def test_only_what_has_changed_is_written(toy: Any, tmp_path: Path) -> None:
    class Parts(Observer):
        seen: list[dict[str, Any]]

        def on_evaluation(self, event: Any) -> None:
            files = (tmp_path / "run" / "checkpoints").glob("flower.*")
            self.seen.append({f.name.split("-")[0]: (f.name, f.stat().st_mtime_ns) for f in files})

    parts = Parts()
    parts.seen = []
    scheduler = adcs.ADCS(refresh_every=100)
    strategy = Scheduled(
        FedAvg(), scheduler, clients_per_round=2, folder=tmp_path / "run", observers=[parts]
    )
    toy.start(strategy, toy.grid(), 3)
    assert [sorted(each) for each in parts.seen] == [
        ["flower.model", "flower.scheduler", "flower.strategy"]
    ] * 3
    assert len({each["flower.scheduler"] for each in parts.seen[1:]}) == 1
    assert len({each["flower.model"] for each in parts.seen}) == 3


@pytest.mark.parametrize("damage", ["missing", "damaged"])
def test_a_missing_part_is_named(toy: Any, tmp_path: Path, damage: str) -> None:
    toy.start(make(FedAvg(), tmp_path / "run"), toy.grid(), 1)
    [part] = (tmp_path / "run" / "checkpoints").glob("flower.model-*")
    part.write_bytes(b"damaged")
    if damage == "missing":
        part.unlink()
    with pytest.raises(ValueError, match=r"flower\.model-.*, a part of .*flower, cannot be read"):
        make(FedAvg(), tmp_path / "run")


def test_a_second_server_in_the_folder_is_refused(toy: Any, tmp_path: Path) -> None:
    idle = make(FedAvg(), tmp_path / "run")

    class Second(Observer):
        refused = 0

        def on_round(self, event: Any) -> None:
            with pytest.raises(InUse, match="is in use"):
                make(FedAvg(), tmp_path / "run")
            with pytest.raises(InUse, match="is in use"):
                idle.start(toy.grid(), toy.initial(), num_rounds=1)
            self.refused += 1

    second = Second()
    first = make(FedAvg(), tmp_path / "run")
    first.observers.append(second)
    toy.start(first, toy.grid(), 2)
    assert second.refused == 2
    # The folder has moved on since this server has read it.
    with pytest.raises(InUse, match="has 2 rounds and had 0"):
        idle.start(toy.grid(), toy.initial(), num_rounds=1)


SERVER = """
import json, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from conftest import Toy
import adcs
from adcs.flower import Scheduled
from flwr.app import Context, RecordDict
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAdam

folder, rounds, pause = Path(sys.argv[2]), 9, float(sys.argv[3])
toy, app = Toy(6), ServerApp()


class Slow(FedAdam):
    def aggregate_train(self, server_round, replies):
        print("round", server_round, flush=True)
        time.sleep(pause)
        return super().aggregate_train(server_round, replies)

    def state(self):
        return {"m_t": self.m_t, "v_t": self.v_t}

    def load_state(self, state):
        self.m_t, self.v_t = state["m_t"], state["v_t"]


@app.main()
def main(grid, context):
    scheduler = adcs.LiveADCS(sketch=adcs.Sketcher(size=32), seed=1)
    strategy = Scheduled(Slow(eta=0.1), scheduler, clients_per_round=3, folder=folder / "run")
    result = strategy.start(
        grid=grid, initial_arrays=toy.initial(), num_rounds=rounds - strategy.rounds_done
    )
    (folder / "result.json").write_text(json.dumps(result.arrays["w"].numpy().tolist()))


app(toy.grid(), Context(1, 1, {}, RecordDict(), {}))
"""


def serve(folder: Path, pause: float) -> subprocess.Popen[str]:
    script = folder / "server.py"
    script.write_text(SERVER)
    return subprocess.Popen(
        [sys.executable, str(script), str(Path(__file__).parent), str(folder), str(pause)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0"},
    )


def test_a_killed_server_app_finishes_after_restarts(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    assert serve(tmp_path / "whole", 0.0).wait(timeout=120) == 0
    for server_round in (3, 5, 7):
        process = serve(tmp_path / "killed", 0.2)
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == f"round {server_round}":
                time.sleep(0.05)
                process.send_signal(signal.SIGKILL)
                break
        assert process.wait(timeout=120) == -signal.SIGKILL
        lines = list(RunFolder.open(tmp_path / "killed" / "run").records())
        assert [line["server_round"] for line in lines] == list(range(1, server_round))
    assert serve(tmp_path / "killed", 0.0).wait(timeout=120) == 0
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "killed")
    ]
    assert results[0] == results[1]
    one, other = (list(RunFolder.open(tmp_path / n / "run").records()) for n in ("whole", "killed"))
    assert [line["chosen"] for line in other] == [line["chosen"] for line in one]
    assert [line["server_round"] for line in other] == list(range(1, 10))
