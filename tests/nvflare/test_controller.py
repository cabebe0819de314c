"""The controller and the filter on NVFlare's own classes, with clients in this process."""

from __future__ import annotations

import copy
import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs adcs[nvflare]")

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import FilterKey, FLContextKey, ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob

import adcs
from adcs.nvflare import ProbeFilter, ScheduledFedAvg
from adcs.run_folder import RunFolder

WIDTH, LR = 4, 0.5
SITES = [f"site-{i}" for i in range(1, 6)]
POINTS = dict(zip(SITES, np.random.default_rng(2).normal(size=(5, WIDTH)), strict=True))


class Engine:
    """The parts of NVFlare's server engine that FedAvg uses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[tuple[str, str | None]] = []
        self.contexts = FLContextManager(engine=self, identity_name="server", job_id="job")

    def get_clients(self) -> list[Client]:
        return [Client(name, name) for name in SITES]

    def new_context(self) -> Any:
        return self.contexts.new_context()

    def get_workspace(self) -> Any:
        return SimpleNamespace(get_run_dir=lambda job: str(self.folder))

    def get_component(self, name: str) -> None:
        return None

    def fire_event(self, event: str, fl_ctx: FLContext) -> None:
        peer = fl_ctx.get_peer_context()
        self.events.append((event, None if peer is None else peer.get_identity_name()))


class FakeCommunicator:
    """Runs a task in this process, with `ProbeFilter` around the clients' training."""

    def __init__(self, engine: Engine, kind: ParamsType, faults: dict[str, Any]) -> None:
        self.engine, self.kind, self.faults = engine, kind, faults
        self.filter = ProbeFilter()
        self.controller: Any = None
        self.trained: list[str] = []
        self.unanswered: list[Any] = []

    def broadcast(self, task: Any, fl_ctx: Any, targets: Any, *options: Any) -> None:
        for site in targets:
            each = SimpleNamespace(client=Client(site, site), task=task, id=f"{site}/{id(task)}")
            task.client_tasks.append(each)
            with self.engine.new_context() as context:
                peer = FLContext()
                peer.set_prop(ReservedKey.IDENTITY_NAME, site, private=False)
                context.set_peer_context(peer)
                if task.before_task_sent_cb is not None:
                    task.before_task_sent_cb(client_task=each, fl_ctx=context)
                each.result = self.perform(site, task)
                if each.result is None:
                    self.unanswered.append(each)
                else:
                    task.result_received_cb(client_task=each, fl_ctx=context)

    def perform(self, site: str, task: Any) -> Any:
        if site in self.faults:
            return self.faults[site](task)
        with self.engine.new_context() as context:
            context.set_prop(FLContextKey.FILTER_DIRECTION, FilterKey.IN)
            data = self.filter.process(copy.deepcopy(task.data), context)  # as NVFlare does
            result = self.train(site, FLModelUtils.from_shareable(data))
            context.set_prop(FLContextKey.FILTER_DIRECTION, FilterKey.OUT)
            return self.filter.process(result, context)

    def train(self, site: str, received: FLModel) -> Any:
        self.trained.append(site)
        w = received.params["w"]
        loss = float(0.5 * np.square(POINTS[site] - w).sum())
        change = LR * (POINTS[site] - w)
        reply = FLModel(
            params={"w": change if self.kind == ParamsType.DIFF else w + change},
            params_type=self.kind,
            metrics={"loss": loss},
            meta={"NUM_STEPS_CURRENT_ROUND": 10 + SITES.index(site)},
        )
        w += 1000.0  # what a script does to the arrays that it received
        return FLModelUtils.to_shareable(reply)

    def cancel_task(self, task: Any, *options: Any) -> None:
        task.completion_status = "cancelled"

    def get_num_standing_tasks(self) -> int:
        return 0

    def get_client_disconnect_time(self, name: str) -> None:
        return None


def run(
    controller: FedAvg,
    folder: Path,
    kind: ParamsType = ParamsType.FULL,
    faults: dict[str, Any] | None = None,
) -> tuple[Any, FakeCommunicator, Engine]:
    engine = Engine(folder)
    fake = FakeCommunicator(engine, kind, faults or {})
    fake.controller = controller
    controller.communicator = fake
    saved: list[Any] = []
    controller.save_model = lambda model: saved.append(np.array(model.params["w"]))
    with engine.new_context() as context:
        controller.engine, controller.fl_ctx = engine, context
        controller.abort_signal = Signal()
        controller.run()
    return saved[-1], fake, engine


def model() -> dict[str, Any]:
    return {"w": np.zeros(WIDTH)}


@pytest.mark.parametrize("kind", list(ParamsType))
def test_with_all_clients_it_is_fedavg(tmp_path: Path, kind: ParamsType) -> None:
    """The oracle is NVFlare's FedAvg."""
    common = {"num_clients": 5, "num_rounds": 4}
    theirs, _, _ = run(FedAvg(model=model(), **common), tmp_path, kind)
    ours, _, engine = run(
        ScheduledFedAvg(model=model(), scheduler="Uniform", **common), tmp_path, kind
    )
    np.testing.assert_array_equal(ours, theirs)
    accepted = [peer for event, peer in engine.events if "contribution_accept" in event]
    assert accepted == [site for _ in range(4) for site in SITES for _ in range(2)]


@pytest.mark.parametrize("kind", list(ParamsType))
def test_probes_for_sketches_and_for_whole_updates_select_alike(
    tmp_path: Path, kind: ParamsType
) -> None:
    """A count sketch of more numbers than the update has loses next to nothing."""
    chosen, trained = [], []
    for name, scheduler in {
        "whole": "ADCS(refresh_every=2)",
        "sketch": "ADCS(refresh_every=2, sketch=Sketcher(size=4096, dtype='float32'))",
    }.items():
        controller = ScheduledFedAvg(
            model=model(), scheduler=scheduler, num_clients=2, num_rounds=4, folder=name
        )
        _, fake, _ = run(controller, tmp_path, kind)
        lines = list(RunFolder.open(tmp_path / name).records())
        chosen.append([line["chosen"] for line in lines])
        trained.append(len(fake.trained))
        assert not any(line["refused"] or line["without_mod"] for line in lines)
    assert chosen[0] == chosen[1]
    # Two probes of five; the cohort of a whole-update probe does not train again.
    assert trained == [2 * 5 + 2 * 2, 2 * 5 + 4 * 2]


def test_errors_nan_and_silence_are_survived(tmp_path: Path) -> None:
    def nan(task: Any) -> Any:
        return FLModelUtils.to_shareable(FLModel(params={"w": np.full(WIDTH, np.nan)}))

    faults = {
        "site-1": lambda task: make_reply(ReturnCode.EXECUTION_EXCEPTION),
        "site-2": nan,
        "site-3": lambda task: None,
        "site-4": lambda task: make_reply(ReturnCode.OK),  # no content
    }
    controller = ScheduledFedAvg(
        model=model(),
        scheduler="Uniform",
        num_clients=5,
        num_rounds=3,
        folder="run",
        timeout=1,
    )
    w, fake, _ = run(controller, tmp_path, faults=faults)
    np.testing.assert_allclose(w, (1 - LR**3) * POINTS["site-5"])
    first = next(iter(RunFolder.open(tmp_path / "run").records()))
    assert first["failed"][0]["reason"] == "EXECUTION_EXCEPTION"
    assert {entry["client"] for entry in first["failed"]} == {"site-1", "site-4"}
    assert [entry["client"] for entry in first["refused"]] == ["site-2"]
    assert first["timed_out"] == {"training": ["site-3"]}
    assert len(fake.unanswered) == 1, "a client at work is not asked again"


def test_a_late_result_of_another_thread_reaches_the_scheduler(tmp_path: Path) -> None:
    controller = ScheduledFedAvg(
        model=model(),
        scheduler="LiveADCS",
        num_clients=5,
        num_rounds=3,
        folder="run",
        timeout=1,
    )
    fake: list[FakeCommunicator] = []

    def answer_late(communicator: FakeCommunicator) -> None:
        (each,) = communicator.unanswered
        each.result = FLModelUtils.to_shareable(FLModel(params={"w": np.full(WIDTH, 1e6)}))
        callback = each.task.result_received_cb
        thread = threading.Thread(target=callback, args=(each, FLContext()))
        thread.start()
        thread.join()

    def slow(task: Any) -> None:
        return None

    def other(task: Any) -> Any:
        communicator = controller.communicator
        if len(fake) == 1:  # its second task: the first one has timed out at site-1
            answer_late(communicator)
        fake.append(communicator)
        return make_reply(ReturnCode.EXECUTION_EXCEPTION)

    w, _, _ = run(controller, tmp_path, faults={"site-1": slow, "site-2": other})
    lines = list(RunFolder.open(tmp_path / "run").records())
    late = [entry["client"] for line in lines for entry in line["late"]]
    assert late == ["site-1"]
    assert np.abs(w).max() < 10


def test_without_usable_replies_the_model_stays(tmp_path: Path) -> None:
    faults = {site: lambda task: make_reply(ReturnCode.EXECUTION_EXCEPTION) for site in SITES}
    controller = ScheduledFedAvg(model=model(), scheduler="Uniform", num_clients=5, num_rounds=2)
    w, _, _ = run(controller, tmp_path, faults=faults)
    np.testing.assert_array_equal(w, np.zeros(WIDTH))


def test_a_restart_continues_with_model_scheduler_and_round(tmp_path: Path) -> None:
    def controller(rounds: int, folder: str) -> ScheduledFedAvg:
        return ScheduledFedAvg(
            model=model(), scheduler="LiveADCS", num_clients=2, num_rounds=rounds, folder=folder
        )

    whole, _, _ = run(controller(6, "whole"), tmp_path)
    run(controller(3, "part"), tmp_path)
    second = controller(3, "part")
    part, _, _ = run(second, tmp_path)
    np.testing.assert_array_equal(part, whole)
    assert second.start_round == 3
    assert second.current_round == 5


def test_a_job_has_the_settings_and_not_the_library(tmp_path: Path) -> None:
    job = FedJob(name="made")
    scheduler = adcs.ADCS(theta=0.25, groups={"site-1": "a", "site-2": "a"}, caps=1)
    job.to_server(ScheduledFedAvg(scheduler=scheduler, num_clients=2, timeout=7, arrays=["head.*"]))
    job.to_clients(ProbeFilter())
    job.export_job(str(tmp_path))
    server = (tmp_path / "made" / "app" / "config" / "config_fed_server.json").read_text()
    assert '"timeout": 7' in server
    assert "head.*" in server
    assert "theta=0.25" in server
    assert "caps=1" in server
    client = (tmp_path / "made" / "app" / "config" / "config_fed_client.json").read_text()
    assert client.count("adcs.nvflare.probe_filter.ProbeFilter") == 2
    assert not list(tmp_path.rglob("*.py"))


def test_an_abort_ends_the_run(tmp_path: Path) -> None:
    controller = ScheduledFedAvg(
        model=model(), scheduler="Uniform", num_clients=5, num_rounds=3, folder="run"
    )

    def abort(task: Any) -> None:
        controller.abort_signal.trigger(True)

    saved = []
    with pytest.raises(IndexError):  # nothing was saved
        saved.append(run(controller, tmp_path, faults={"site-1": abort}))
    assert not saved
    assert not list(RunFolder.open(tmp_path / "run").records())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scheduler": "Unifrom"}, "did you mean Uniform"),
        ({"scheduler": 3}, "schedulers must each be"),
        ({"timeout": -1}, "timeout must be"),
        ({"num_clients": 1.5}, "clients_per_round must be a whole number"),
        ({"arrays": "head.*"}, "arrays must be a list of patterns"),
        ({"checks": ["nan"]}, "got 'nan'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ScheduledFedAvg(**{"scheduler": "Uniform", **settings})


def test_events_are_fired_for_accepted_replies_alone(tmp_path: Path) -> None:
    controller = ScheduledFedAvg(model=model(), scheduler="ADCS", num_clients=2, num_rounds=1)
    _, fake, engine = run(controller, tmp_path)
    assert len(fake.trained) == 5
    names = [name for name, _ in engine.events]
    assert names.count(AppEventType.BEFORE_CONTRIBUTION_ACCEPT) == 2


def test_the_page_makes_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "client.py").write_text("")
    page = (Path(__file__).parents[2] / "docs" / "tutorials" / "nvflare.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    exec(compile(block, "nvflare.md", "exec"), {"__name__": "page"})
    config = tmp_path / "jobs" / "digits" / "app" / "config" / "config_fed_server.json"
    assert "ADCS(theta=0.5" in config.read_text()
