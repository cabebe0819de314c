"""NVFlare's FedAvg, with clients selected by a scheduler."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import Task
from nvflare.apis.fl_constant import FLContextKey
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg

from adcs._validation import check_int, check_number
from adcs.experiments.inputs import scheduler_spec
from adcs.experiments.specs import make_scheduler
from adcs.federated.messages import ALL_CHECKS
from adcs.federated.probes import QUESTION, ProbeQuestion
from adcs.federated.recorder import Recorder
from adcs.federated.replies import ReplyChecks
from adcs.federated.round import RoundDriver, cohort_size
from adcs.federated.warn_once import WarnOnce
from adcs.nvflare.replies import WEIGHT_KEY, FlareReply, finite_metrics, read_params
from adcs.nvflare.results import leave_out_adcs, read_result
from adcs.nvflare.rounds import Answers, Rounds, Settings
from adcs.reports.sketch import SKETCH_ABOVE
from adcs.schedulers.base import Scheduler

ENGINE = "nvflare"
"""The name of the framework in run folders."""


class Aborted(Exception):
    """The job was aborted while a task was under way."""


class _Exchange:
    """The results of a task, which other threads deliver; those after the end are late."""

    def __init__(self, expected: int, late: deque[tuple[str, FlareReply]]) -> None:
        self.complete = threading.Event()
        self._expected = expected
        self._late = late
        self._replies: dict[str, FlareReply] = {}
        self._ended = False
        self._lock = threading.Lock()

    def receive(self, client_task: Any, fl_ctx: Any) -> None:
        """Take the result of a client; NVFlare calls this."""
        reply = read_result(client_task.result, fl_ctx.get_peer_context())
        client_task.result = None
        with self._lock:
            if self._ended:
                self._late.append((client_task.id, reply))
                return
            self._replies[client_task.client.name] = reply
            if len(self._replies) == self._expected:
                self.complete.set()

    def end(self, client_tasks: Sequence[Any]) -> Answers:
        """End the wait, and return what has come until now."""
        with self._lock:
            self._ended = True
        fetched = {each.id: each.client.name for each in list(client_tasks)}
        unanswered = {key: name for key, name in fetched.items() if name not in self._replies}
        return Answers(self._replies, unanswered)


class ScheduledFedAvg(FedAvg):  # type: ignore[misc]
    """NVFlare's FedAvg, with clients selected by a scheduler.

    What is sent, how replies are averaged, early stopping and the saving of models are FedAvg's. A
    client's id is the name of its site. Add it to a job with `job.to_server`.

    Parameters
    ----------
    scheduler
        A scheduler of this library or your own, or its spec, such as "ADCS(theta=0.8)". A job holds
        the spec; the server makes the scheduler from it.
    timeout
        Seconds to wait for training and evaluation; 0 waits until every client has answered or
        NVFlare has found it dead.
    probe_timeout
        Seconds to wait for a probe; 0 waits as long as for training. A probe for whole updates is
        the training of its round and always waits as long as training.
    reply_patience
        Seconds after the end of the wait during which a client that has not answered is not asked
        again.
    folder
        A run folder at the server for a record of each round and for checkpoints. Resumes if the
        folder has a checkpoint. A relative path lies in the folder of the job's run, which a new
        job does not have: give an absolute one to resume. Empty writes nothing.
    evaluate_every
        After how many rounds all clients evaluate the new model, for the records; 0 never.
    evaluate_task_name
        The task of that evaluation, and of probes for losses: `flare.is_evaluate()` in a script.
    loss_key
        The name of the loss in the metrics of a reply.
    arrays
        Shell patterns of the arrays that make up the update which the scheduler observes. By
        default all floating-point arrays except normalisation statistics.
    checks
        What replies are checked for, names of `adcs.federated.CHECKS`; by default everything.
    max_examples
        The largest number of steps that a client may report; by default 100 times the median.
    sketch_above
        Updates of more numbers than this are sketched if the scheduler has no `sketch` of its own.
    stop_after
        After so many rounds in a row in which no client has trained, the job ends with the reasons;
        0 goes on.
    *args, **kwargs
        As of `FedAvg`: num_clients, the number of clients to select or a fraction of those that are
        connected; num_rounds, persistor_id, model, stop_cond, aggregator and others.

    Examples
    --------
    >>> import adcs
    >>> controller = ScheduledFedAvg(scheduler=adcs.ADCS(theta=0.5), num_clients=3, num_rounds=10)
    >>> controller.scheduler
    'ADCS(theta=0.5)'
    """

    def __init__(
        self,
        *args: Any,
        scheduler: Scheduler | str,
        timeout: int = 3600,
        probe_timeout: int = 0,
        reply_patience: float = 600.0,
        folder: str = "",
        evaluate_every: int = 0,
        evaluate_task_name: str = AppConstants.TASK_VALIDATION,
        loss_key: str = "loss",
        arrays: Sequence[str] | None = None,
        checks: Sequence[str] | None = None,
        max_examples: float | None = None,
        sketch_above: float = SKETCH_ABOVE,
        stop_after: int = 10,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        for name, value in (
            ("timeout", timeout),
            ("probe_timeout", probe_timeout),
            ("evaluate_every", evaluate_every),
            ("stop_after", stop_after),
        ):
            check_int(name, value, minimum=0)
        check_number("reply_patience", reply_patience, minimum=0)
        check_number("sketch_above", sketch_above, minimum=0)
        if max_examples is not None:
            check_number("max_examples", max_examples, minimum=0)
        if isinstance(arrays, str):
            raise ValueError(f"arrays must be a list of patterns, got the string {arrays!r}")
        unknown = sorted({*(checks or ())} - ALL_CHECKS)
        if unknown:
            raise ValueError(f"checks must be of {sorted(ALL_CHECKS)}, got {unknown[0]!r}")
        cohort_size(self.num_clients, 1)
        # A job is JSON, made of the attributes that have the names of arguments.
        self.scheduler = scheduler_spec(scheduler)
        make_scheduler(self.scheduler, seed=0)  # raises for a wrong one
        self.timeout = timeout
        self.probe_timeout = probe_timeout
        self.reply_patience = reply_patience
        self.folder = str(folder)
        self.evaluate_every = evaluate_every
        self.evaluate_task_name = evaluate_task_name
        self.loss_key = loss_key
        self.arrays = None if arrays is None else list(arrays)
        self.checks = None if checks is None else list(checks)
        self.max_examples = max_examples
        self.sketch_above = sketch_above
        self.stop_after = stop_after
        self._rounds: Rounds | None = None
        self._late: deque[tuple[str, FlareReply]] = deque()

    def add_to_fed_job(self, job: Any, ctx: Any, **kwargs: Any) -> None:
        """Add the controller to a job."""
        leave_out_adcs(job)
        super().add_to_fed_job(job, ctx, **kwargs)

    def run(self) -> None:
        """Run the rounds; with a folder that has a checkpoint, continue from it."""
        scheduler = make_scheduler(self.scheduler, seed=0)
        recorder = Recorder(
            Path(self.get_run_dir(), self.folder) if self.folder else None,
            scheduler,
            ENGINE,
            {"num_clients": self.num_clients, "num_rounds": self.num_rounds},
        )
        if recorder.model is not None:
            self.info(f"continuing after round {recorder.rounds_done} of {self.folder}")
            self.start_round = recorder.rounds_done
            self.model = FLModel(params=dict(recorder.model))
        driver: RoundDriver[FlareReply] = RoundDriver(
            scheduler,
            ReplyChecks(
                WEIGHT_KEY,
                self.loss_key,
                max_examples=self.max_examples,
                enabled=ALL_CHECKS if self.checks is None else frozenset(self.checks),
                equal_metrics=False,
            ),
            recorder,
            warn_once=WarnOnce(self.logger),
            unweighted=None if self.aggregator is None else type(self.aggregator).__name__,
            stop_after=self.stop_after or None,
            sketch_above=self.sketch_above,
        )
        settings = Settings(
            self.num_clients,
            self.task_name,
            self.evaluate_task_name,
            self.timeout,
            self.probe_timeout,
            self.evaluate_every,
            self.arrays,
        )
        self._rounds = Rounds(driver, self, settings, self.reply_patience)
        with recorder.locked():
            try:
                super().run()
            except Aborted:
                self.info("Abort signal triggered. Finishing FedAvg.")
            finally:
                driver.end()

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Return all clients: the scheduler selects from them when the model is sent."""
        return self.connected()

    def send_model(
        self,
        task_name: str = AppConstants.TASK_TRAIN,
        data: Any = None,
        targets: Sequence[str] | None = None,
        min_responses: int | None = None,
        timeout: int = 0,
        callback: Callable[[Any], Any] | None = None,
    ) -> None:
        """Train the model at the clients that the scheduler selects, and wait for them.

        Each usable reply is passed to `callback`, in the order of client ids. FedAvg calls this
        once a round; the task, the clients and the timeout are those of the settings.
        """
        assert self._rounds is not None
        assert callback is not None
        usable = self._rounds.train(data, read_params(data.params))
        self._expected_count = len(usable)  # for FedAvg's log
        trained = [
            client
            for client, reply in usable.items()
            if self._pass_on(client, reply, data, callback)
        ]
        self._rounds.finish_training(trained)

    def update_model(self, model: Any, aggr_result: Any) -> Any:
        """Return the new model; without usable replies that is the model as it was."""
        assert self._rounds is not None
        this_round = self._rounds.driver.round
        assert this_round is not None
        if this_round.record.trained:
            model = super().update_model(model, aggr_result)
        self._rounds.close(model, read_params(model.params))
        return model

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Any, fl_ctx: Any
    ) -> None:
        """Ignore a result that nobody waits for any more."""
        self.info(f"{client.name} has answered {task_name} too late: the result is not used")

    # What `Rounds` needs of NVFlare.

    def connected(self) -> list[str]:
        """Return the names of the clients that are not disconnected."""
        names = [client.name for client in self.engine.get_clients()]
        return [name for name in names if not self.get_client_disconnect_time(name)]

    def send(
        self,
        task: str,
        model: Any,
        clients: Sequence[str],
        timeout: float,
        question: ProbeQuestion | None = None,
    ) -> Answers:
        """Send a task to clients and wait for them."""
        self.set_fl_context(model)
        shareable = FLModelUtils.to_shareable(model)
        shareable.add_cookie(AppConstants.CONTRIBUTION_ROUND, model.current_round)
        if question is not None:
            shareable.set_header(QUESTION, question.encode())
        task_timeout = math.ceil(timeout + self.reply_patience) if timeout else 0
        exchange = _Exchange(len(clients), self._late)
        sent = Task(
            name=task,
            data=shareable,
            timeout=task_timeout,
            before_task_sent_cb=self._announce if task == self.task_name else None,
            result_received_cb=exchange.receive,
        )
        self.broadcast(task=sent, fl_ctx=self.fl_ctx, targets=list(clients), min_responses=0)
        deadline = time.monotonic() + (timeout or math.inf)
        while sent.completion_status is None and time.monotonic() < deadline:
            if self.abort_signal.triggered:
                self.cancel_task(sent)
                raise Aborted
            if exchange.complete.wait(min(self._task_check_period, timeout or math.inf)):
                break
        answers = exchange.end(sent.client_tasks)
        # The clients that have the task may still answer, and no other gets it.
        sent.targets = [each.client.name for each in sent.client_tasks]
        if not sent.targets:
            self.cancel_task(sent)
        return answers

    def get_num_standing_tasks(self) -> int:
        """Return 0: FedAvg waits for standing tasks, which late clients may still answer."""
        return 0

    def _announce(self, client_task: Any, fl_ctx: Any) -> None:
        self.fire_event_with_data(
            AppEventType.BEFORE_TRAIN_TASK,
            fl_ctx,
            AppConstants.TRAIN_SHAREABLE,
            client_task.task.data,
        )

    def late(self) -> list[tuple[str, FlareReply]]:
        """Return the results that have come too late since the last call."""
        return [self._late.popleft() for _ in range(len(self._late))]

    def _pass_on(
        self, client: str, reply: FlareReply, sent: Any, callback: Callable[[Any], Any]
    ) -> bool:
        """Pass a reply to FedAvg, between the events that NVFlare's components wait for."""
        model, result, peer = reply.origin
        model.params = reply.params
        model.metrics = None if model.metrics is None else finite_metrics(model.metrics)
        model.meta = {
            **model.meta,
            WEIGHT_KEY: reply.metrics[WEIGHT_KEY],
            "props": sent.meta,
            "client_name": client,
        }
        with self.engine.new_context() as fl_ctx:
            fl_ctx.set_prop(AppConstants.CURRENT_ROUND, self.current_round, True, False)
            fl_ctx.set_prop(AppConstants.TRAINING_RESULT, result, True, False)
            if peer is not None:
                peer.set_prop(FLContextKey.SHAREABLE, result, True)
                fl_ctx.set_peer_context(peer)
            self.fire_event(AppEventType.BEFORE_CONTRIBUTION_ACCEPT, fl_ctx)
            accepted = callback(model) is not False
            fl_ctx.set_prop(AppConstants.AGGREGATION_ACCEPTED, accepted, True, False)
            self.fire_event(AppEventType.AFTER_CONTRIBUTION_ACCEPT, fl_ctx)
        return accepted
