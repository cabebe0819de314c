"""Any Flower strategy, with its clients chosen by a scheduler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from adcs._types import ClientId
from adcs.flower import evaluation
from adcs.flower.client_registry import ClientRegistry
from adcs.flower.identity import Eligible, IdentityRegistry, node_name
from adcs.flower.logs import Once, log
from adcs.flower.probe_messages import make_probe
from adcs.flower.reading import Reader
from adcs.flower.recorder import Recorder, RoundRecord
from adcs.flower.replies import Model, ReplyChecks
from adcs.flower.round import ClientsPerRound, Round, again, places
from adcs.flower.transport import Owed, Purpose, Transport, clock_of
from adcs.flower.weights import innermost, weigh
from adcs.reports.report import ClientReport
from adcs.reports.sketch import Sketcher
from adcs.schedulers.base import Request, Scheduler


class Scheduled(Strategy):
    """Wraps a Flower strategy so that a scheduler chooses who trains.

    The strategy does all else as before: what is sent, how replies are aggregated, who
    evaluates. Give it `fraction_train=1.0`, so that it addresses every node; the scheduler
    chooses among the nodes that it addresses. Flower's round 1 is the scheduler's round 0.

    Parameters
    ----------
    strategy
        The strategy to wrap.
    scheduler
        Any scheduler of this library, or one of your own.
    clients_per_round
        A number of clients, a fraction of those connected and eligible (a float up to 1.0), or a
        function that returns either for Flower's round number.
    eligible
        A function of a client's id and Flower's `NodeInfo` that says whether the client may be
        asked at all.
    arrays
        Shell patterns, such as `["head.*"]`, of the arrays that make up the update which the
        scheduler is told. By default all floating-point arrays but normalisation statistics.
    loss_key
        The name of the loss in the metrics of training replies.
    probe_timeout
        Seconds to wait for probes; None waits as long as for training. A probe for whole updates
        is the training of its round, and is waited for as such.
    patience
        Seconds after the end of the wait in which a client that owes an answer is left alone.
    authenticated
        Whether the SuperLink authenticates nodes (`--enable-supernode-auth`). A node's key is
        its identity then.
    partition_ids
        Whether to ask each new node, once, for its partition id, by which it goes when nodes are
        not authenticated. Needs `probe_mod` at the client; False goes by node ids.
    max_examples
        The most examples that a client may claim; a reply that claims more is withheld.
    folder
        A run folder for a record of each round and for checkpoints. A folder that holds a
        checkpoint is gone on with.

    Examples
    --------
    >>> import adcs
    >>> from flwr.serverapp.strategy import FedAvg
    >>> strategy = Scheduled(FedAvg(), adcs.ADCS(theta=0.8), clients_per_round=18)
    >>> strategy.rounds_done
    0
    """

    def __init__(
        self,
        strategy: Strategy,
        scheduler: Scheduler,
        *,
        clients_per_round: ClientsPerRound,
        eligible: Eligible | None = None,
        arrays: Sequence[str] | None = None,
        loss_key: str = "train_loss",
        probe_timeout: float | None = None,
        patience: float = 600.0,
        authenticated: bool = False,
        partition_ids: bool = True,
        max_examples: float = 1e7,
        folder: str | Path | None = None,
    ) -> None:
        check_kinds(strategy, scheduler)
        if isinstance(arrays, str):
            raise ValueError(f"arrays must be a list of patterns, got the string {arrays!r}")
        if not callable(clients_per_round):
            places(clients_per_round, 1)
        for name, value in (("patience", patience), ("max_examples", max_examples)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ValueError(f"{name} must be a number >= 0, got {value!r}")
        self.strategy = strategy
        self.scheduler = scheduler
        self.clients_per_round = clients_per_round
        self.arrays = None if arrays is None else tuple(arrays)
        self.probe_timeout = probe_timeout
        inner = innermost(strategy)
        self._rules = ReplyChecks(
            weight_key=getattr(inner, "weighted_by_key", None),
            loss_key=loss_key,
            needed_loss_key=getattr(inner, "train_loss_key", None),
            max_examples=max_examples,
        )
        self._once = Once()
        self._exchange = Transport(patience)
        registry = IdentityRegistry(authenticated=authenticated, partitions=partition_ids)
        self._attendance = ClientRegistry(registry, self._exchange, eligible, self._once)
        self._reader = Reader(self._rules)
        per_round = "a function" if callable(clients_per_round) else clients_per_round
        config = {"strategy": type(strategy).__name__, "clients_per_round": per_round}
        self._recorder = Recorder(folder, scheduler, config)
        self._sketch: Sketcher | None = getattr(scheduler, "sketch", None)
        self._round: Round | None = None
        self._evaluating: tuple[list[Message], Callable[[], float]] = ([], time.monotonic)
        self._timeout: float | None = 3600.0
        self._evaluate_config = ConfigRecord()
        fraction = getattr(inner, "fraction_train", 1.0)
        if fraction < 1.0:
            self._once(
                "fraction",
                f"the strategy has fraction_train={fraction}: in each round the scheduler sees "
                "only the nodes that it draws; set fraction_train=1.0",
            )
        if scheduler.constraints.caps is not None and not authenticated:
            self._once(
                "caps",
                "caps hold for client ids, and without authenticated=True a node is not held to "
                "one: it may claim that of another client, or come back under a new one",
            )
        if self.rounds_done:
            log.info("going on after round %d of %s", self.rounds_done, folder)

    @property
    def rounds_done(self) -> int:
        """The rounds done so far, before a restart as well."""
        return self._recorder.rounds_done

    def summary(self) -> None:
        """Log the scheduler's settings, then the strategy's."""
        log.info("\t├──> Scheduled by %s", type(self.scheduler).__name__)
        log.info("\t│\t└── Clients per round: %s", self.clients_per_round)
        self.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the federation, as any Flower strategy does."""
        self._timeout = timeout
        self._evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Probe if the scheduler asks for it, choose, and return the cohort's messages."""
        self._close_round()  # One that was broken off is not counted, and is run again.
        current = self._round = Round(self.rounds_done, clock_of(grid))
        number, note = current.number, current.note
        late = self._exchange.collect(grid)
        messages = list(self.strategy.configure_train(number + 1, arrays, config, grid))
        if not messages:
            return []
        current.training = {message.metadata.dst_node_id: message for message in messages}
        current.model = Model(messages[0].content, self.arrays, self._recorder.keys)
        self._recorder.keys = current.model.keys
        current.nodes = self._attendance.call(
            grid, current.training, note, server_round=number, late=late, timeout=self._probe_wait()
        )
        self._hear(late, current)
        if not current.nodes:
            return []
        m = places(self.clients_per_round, len(current.nodes), number + 1)
        free = self._attendance.free(current.nodes)
        note.owing = [client for client in current.nodes if client not in set(free)]
        request = self.scheduler.request(number, free, m)
        in_vain = self._probe(grid, current, request) if request.clients else set()
        started = time.perf_counter()
        free = self._attendance.free(current.nodes)
        willing = tuple(client for client in free if client not in in_vain)
        note.cohort = self.scheduler.select(number, willing or free, m)
        note.schedule_seconds += time.perf_counter() - started
        self._recorder.explain(note, willing or free)
        current.sent = [
            again(current.training[current.nodes[client]])
            for client in note.cohort.clients
            if client not in current.held
        ]
        current.sent_at = current.clock()
        return current.sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, tell the scheduler, and let the strategy aggregate them."""
        current = self._round
        if current is None or current.model is None:
            result = self.strategy.aggregate_train(self.rounds_done + 1, replies)
            if current is not None:
                current.done = True
            return result
        number, note = current.number, current.note
        purpose = Purpose("training", number, current.model)
        answers = self._exchange.settle(current.sent, replies, purpose, current.clock())
        note.spent.seconds += current.clock() - current.sent_at
        current.charge(current.sent, answers, "training")
        held = {c: current.held[c] for c in note.cohort.clients if c in current.held}
        told = "training" in self.scheduler.observed_sources
        heard = {**current.by_client(answers), **held}
        read = self._reader.read(purpose, heard, note, sketch=self._sketch, update=told)
        self._enrol(number, read.reports)
        if told:
            self.scheduler.observe(number, read.reports, "training")
        known, key = self._recorder.sizes, self._rules.weight_key
        if not weigh(
            self.strategy, note.cohort, read.whole, current.model, key, known, current.nodes
        ):
            self._once(
                "weights",
                f"{type(self.strategy).__name__} aggregates without client weights: those of "
                f"{type(self.scheduler).__name__} are not used",
            )
        arrays: ArrayRecord | None = None
        metrics: MetricRecord | None = None
        if read.whole:  # Some strategies divide by the number of replies.
            errors = [reply for reply in answers.values() if reply.has_error()]
            usable = [*read.whole.values(), *errors]
            arrays, metrics = self.strategy.aggregate_train(number + 1, usable)
        if arrays is not None:
            note.trained = list(read.whole)
        contents = sum(reply.has_content() for reply in answers.values())
        note.spent.updates += contents
        note.spent.extra_updates += contents - len(note.trained)
        note.warn(number + 1)
        current.done = True
        combined = MetricRecord() if metrics is None else metrics
        for key, value in note.numbers().items():
            combined[key] = value
        return arrays, combined

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the strategy's messages, without those to nodes that owe an answer."""
        messages = self.strategy.configure_evaluate(self.rounds_done + 1, arrays, config, grid)
        owing = self._exchange.owing()
        sent = [message for message in messages if message.metadata.dst_node_id not in owing]
        self._evaluating = (sent, clock_of(grid))
        return sent

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy aggregate, and add worst, worst 20 % and average over clients."""
        sent, clock = self._evaluating
        purpose = Purpose("evaluation", self.rounds_done)
        answers = self._exchange.settle(sent, replies, purpose, clock())
        clients = self._attendance.clients
        note = RoundRecord() if self._round is None else self._round.note
        heard = {clients.get(node, node_name(node)): reply for node, reply in answers.items()}
        good = self._reader.evaluations(heard, note)
        note.warn(self.rounds_done + 1)
        errors = [reply for reply in answers.values() if reply.has_error()]
        metrics = self.strategy.aggregate_evaluate(
            self.rounds_done + 1, [*(reply for reply, _ in good.values()), *errors]
        )
        note.evaluation = evaluation.per_client(
            {client: reported for client, (_, reported) in good.items()}, self._rules.weight_key
        )
        if metrics is not None:
            evaluation.add_summaries(metrics, note.evaluation)
        self._close_round()
        return metrics

    def _probe(self, grid: Grid, current: Round, request: Request) -> set[ClientId]:
        """Probe, tell the scheduler, and return who was asked in vain."""
        assert current.model is not None
        note = current.note
        note.asked = request.clients
        if "update" in request.signals:
            self._sketch = request.sketch
        nodes = [current.nodes[client] for client in request.clients]
        probe = make_probe(
            request,
            current.number,
            {node: current.training[node] for node in nodes},
            current.model,
            rules=self._rules,
            evaluate_config=self._evaluate_config,
        )
        messages = [Message(probe.contents[node], node, probe.message_type) for node in nodes]
        began = current.clock()
        wait = self._timeout if probe.is_training else self._probe_wait()
        answers = self._exchange.send(grid, messages, wait, probe.purpose)
        note.spent.seconds += current.clock() - began
        current.charge(messages, answers, "probe")
        started = time.perf_counter()
        heard = current.by_client(answers)
        read = self._reader.read(probe.purpose, heard, note, sketch=self._sketch)
        self._enrol(current.number, read.reports)
        self.scheduler.observe(current.number, read.reports, "probe")
        note.schedule_seconds += time.perf_counter() - started
        current.held = read.whole
        note.answered = [report.client for report in read.reports]
        contents = sum(reply.has_content() for reply in answers.values())
        if probe.purpose.model is None:
            note.spent.loss_evaluations += contents
        else:
            note.spent.updates += contents
            note.spent.extra_updates += contents
        if probe.purpose.question is not None and read.whole:
            self._attendance.lacks_mod({c: current.nodes[c] for c in read.whole}, note)
        lossless = "loss" in request.signals and all(r.loss is None for r in read.reports)
        if lossless and read.reports:
            self._once(
                "loss",
                f"no client reported {self._rules.loss_key!r}: name the loss of your training "
                "replies with loss_key=",
            )
        return set(request.clients).difference(note.answered)

    def _hear(self, late: Iterable[tuple[Owed, Message]], current: Round) -> None:
        """Tell the scheduler the answers to earlier rounds that have come in since."""
        clients = current.clients
        for owed, reply in late:
            client, purpose = clients.get(owed.node), owed.purpose
            if client is None or purpose.kind == "identity":
                continue
            entry = {
                "client": client,
                "stage": purpose.kind,
                "server_round": purpose.server_round + 1,
            }
            current.note.late.append(entry)
            if purpose.kind != "evaluation":
                read = self._reader.read(
                    purpose, {client: reply}, current.note, sketch=self._sketch
                )
                current.charge_late(purpose, reply)
                self._enrol(current.number, read.reports)
                self.scheduler.observe(current.number, read.reports, purpose.kind)

    def _enrol(self, number: int, reports: Iterable[ClientReport]) -> None:
        """Tell the scheduler the sizes that are new; Flower's clients tell theirs in replies."""
        known = self._recorder.sizes
        new = {
            report.client: report.examples
            for report in reports
            if report.examples and known.get(report.client) != report.examples
        }
        known |= new
        if new:
            told = [ClientReport(client, number, examples=n) for client, n in new.items()]
            self.scheduler.observe(number, told, "enrolment")

    def _probe_wait(self) -> float | None:
        return self._timeout if self.probe_timeout is None else self.probe_timeout

    def _close_round(self) -> None:
        if self._round is not None and self._round.done:
            self._recorder.close(self._round.note, list(self._round.nodes))
        self._round = None


def check_kinds(strategy: object, scheduler: object) -> None:
    """Refuse what is no strategy of Flower's message API, or no scheduler, before a run begins."""
    if not isinstance(strategy, Strategy):
        raise ValueError(
            "strategy must be one of flwr.serverapp.strategy, got "
            f"{type(strategy).__module__}.{type(strategy).__name__}"
        )
    if not isinstance(scheduler, Scheduler):
        raise ValueError(f"scheduler must be a scheduler, such as adcs.ADCS(), got {scheduler!r}")
    if getattr(strategy, "accountant", None) is not None:
        raise ValueError(
            "a privacy accountant counts the nodes that its strategy addresses, which are all of "
            "them here; give the strategy no accountant"
        )
