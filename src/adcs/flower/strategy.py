"""Any Flower strategy, with clients selected by a scheduler."""

from __future__ import annotations

import gc
import inspect
import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from adcs._types import ClientId
from adcs._validation import check_int, check_number
from adcs.federated.client_registry import ClientRegistry, PendingMessage, node_client_id
from adcs.federated.messages import Exchange, Purpose, SentModel
from adcs.federated.probes import plan_probe
from adcs.federated.recorder import Recorder, RoundRecord, evaluation_summaries
from adcs.federated.replies import ReplyChecks, has_weights
from adcs.federated.round import ClientsPerRound, Round, RoundDriver, cohort_size
from adcs.federated.waiting import Deadline, DeadlineSetting, Wait
from adcs.federated.warn_once import WarnOnce
from adcs.flower.buffered import make_training
from adcs.flower.over_selection import Received
from adcs.flower.own_start import call_start, has_own_start
from adcs.flower.receive import clock_of
from adcs.flower.strategies import (
    PRIVATE,
    CheckSetting,
    averages_by_weight,
    chain,
    check_kinds,
    check_mode,
    enabled_checks,
    explain_error,
    innermost,
    part_names,
    reads_metrics,
    stateful_parts,
    unsaved,
    uses_flowers_aggregation,
)
from adcs.flower.transport import (
    Addressed,
    FlowerReply,
    Transport,
    addressed_evaluations,
    are_equal,
    array_record,
    names_any,
    new_message,
    probe_messages,
    read_arrays,
    record_bytes,
    sent_bytes,
    sent_record,
    shapes_of,
)
from adcs.observers import Observer
from adcs.reports.sketch import SKETCH_ABOVE
from adcs.rounds import Buffered
from adcs.schedulers.base import Request, Scheduler

log = logging.getLogger("flwr.adcs")

Eligible = Callable[[ClientId, Any], bool]
"""Says whether a client may be asked, from its id and Flower's `NodeInfo` of its node."""

DEFAULT_TIMEOUT = 3600.0
"""Seconds that Flower waits for replies if `start` is not told otherwise."""


@dataclass
class _FlowerRound:
    """Flower's own state of a round.

    Attributes
    ----------
    clock
        The grid's clock.
    training
        The strategy's training message for each node that it addresses.
    nodes
        The node of each client that may be asked.
    connected
        The number of connected nodes.
    sent, sent_at
        The training messages of the cohort, and when they were sent.
    received
        The end of the training, where the round does not wait for all clients.
    """

    clock: Callable[[], float]
    training: Mapping[int, Message] = field(default_factory=dict)
    nodes: dict[ClientId, int] = field(default_factory=dict)
    connected: int = 0
    sent: list[Message] = field(default_factory=list)
    sent_at: float = 0.0
    received: Received | None = None

    def __post_init__(self) -> None:
        self.sent_at = self.clock()


class Scheduled(Strategy):
    """Wraps a Flower strategy so that a scheduler selects the clients that train.

    The strategy does everything else as before: what is sent, how replies are aggregated, who
    evaluates. Give it `fraction_train=1.0`, so that it addresses every node; the scheduler selects
    from the nodes that it addresses. Flower counts rounds from 1, schedulers from 0.

    Parameters
    ----------
    strategy
        The strategy to wrap.
    scheduler
        Any scheduler of this library, or your own.
    clients_per_round
        A number of clients, a fraction of those connected and eligible (a float up to 1.0), or a
        function of Flower's round number that returns either. `mode` sets it in its place.
    over_select
        Ask this many times `clients_per_round`, such as 1.3, and go on with the first
        `clients_per_round` usable replies; None waits for all that are asked.
    mode
        `adcs.rounds.Buffered` trains asynchronously: the model changes whenever a buffer of replies
        is full, and a round is a version of the model. None trains in synchronous rounds.
    deadline
        Seconds to wait for training, if less than `timeout` of `start`, or "adaptive": each
        client's deadline is learned from its own times.
    eligible
        A function of a client's id and Flower's `NodeInfo` that says whether the client may be
        asked at all.
    arrays
        Shell patterns, such as `["head.*"]`, of the arrays that make up the update which the
        scheduler observes. By default all floating-point arrays except normalisation statistics.
    loss_key
        The name of the loss in the metrics of training replies.
    probe_timeout
        Seconds to wait for probes; None waits as long as for training, at most `deadline` if that
        is a number. A probe for whole updates
        is the training of its round and always waits as long as training.
    patience
        Seconds after the end of the wait during which a client that has not answered is not asked
        again.
    authenticated
        Whether the SuperLink authenticates nodes (`--enable-supernode-auth`). A node's key is
        then its identity.
    partition_ids
        Whether to ask each new node, once, for its partition id, which is its identity when nodes
        are not authenticated. Needs `probe_mod` at the client; False uses node ids.
    max_examples
        The largest number of examples that a client may report; a larger one is refused. By
        default 100 times the median of the clients' numbers.
    checks
        What replies are checked for. "auto" is what the strategy needs, "strict" everything, and
        "lenient" only sizes, values, losses and numbers of examples; or a collection of names in
        `adcs.federated.CHECKS`.
    folder
        A run folder for a record of each round and for checkpoints. Resumes if the folder has a
        checkpoint: `start` then continues with the saved model. While `start` runs, the folder is
        locked.
    sketch_above
        Updates of more numbers than this are sketched if the scheduler has no `sketch` of its own.
    stop_after
        After so many rounds in a row in which no client has trained, the run stops with a
        RuntimeError that gives the reasons; None goes on.
    observers
        Observers of the run (`adcs.observers`).

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
        clients_per_round: ClientsPerRound | None = None,
        over_select: float | None = None,
        mode: Buffered | None = None,
        deadline: DeadlineSetting = None,
        eligible: Eligible | None = None,
        arrays: Sequence[str] | None = None,
        loss_key: str = "train_loss",
        probe_timeout: float | None = None,
        patience: float = 600.0,
        authenticated: bool = False,
        partition_ids: bool = True,
        max_examples: float | None = None,
        checks: CheckSetting = "auto",
        folder: str | Path | None = None,
        sketch_above: float = SKETCH_ABOVE,
        stop_after: int | None = 10,
        observers: Iterable[Observer] = (),
    ) -> None:
        check_kinds(strategy, scheduler)
        if any(isinstance(each, Scheduled) for each in chain(strategy)):
            raise ValueError(
                "strategy must not be Scheduled, which selects clients already: give the strategy "
                "inside it and one scheduler"
            )
        if isinstance(arrays, str):
            raise ValueError(f"arrays must be a list of patterns, got the string {arrays!r}")
        check_mode(strategy, clients_per_round, over_select, mode)
        if clients_per_round is not None and not callable(clients_per_round):
            cohort_size(clients_per_round, 1)
        for name, value in (
            ("patience", patience),
            ("probe_timeout", probe_timeout),
            ("max_examples", max_examples),
            ("sketch_above", sketch_above),
        ):
            if value is not None and value != math.inf:
                check_number(name, value, minimum=0)
        if stop_after is not None:
            check_int("stop_after", stop_after, minimum=1)
        if eligible is not None and not callable(eligible):
            raise ValueError(
                "eligible must be a function of a client's id and Flower's NodeInfo, got "
                f"{type(eligible).__name__}"
            )
        if not isinstance(loss_key, str):
            raise ValueError(f"loss_key must be the name of a metric, got {loss_key!r}")
        self.strategy = strategy
        self.scheduler = scheduler
        self.clients_per_round = clients_per_round
        self.mode = mode
        self.eligible = eligible
        self.arrays = None if arrays is None else tuple(arrays)
        self.probe_timeout = probe_timeout
        inner = innermost(strategy)
        weight_key = getattr(inner, "weighted_by_key", None)
        if max_examples is not None and weight_key is None:
            raise ValueError(
                f"max_examples needs a strategy with the attribute weighted_by_key, the metric "
                f"with the number of examples, and {type(inner).__name__} has none"
            )
        reply_checks = ReplyChecks(
            weight_key=weight_key,
            loss_key=loss_key,
            required_loss_key=getattr(inner, "train_loss_key", None),
            max_examples=max_examples,
            enabled=enabled_checks(checks, strategy),
            equal_metrics=uses_flowers_aggregation(strategy),
            reads_metrics=reads_metrics(strategy),
        )
        per_round = "a function" if callable(clients_per_round) else clients_per_round
        config: dict[str, Any] = {
            "strategy": type(strategy).__name__,
            "clients_per_round": per_round,
        }
        slow: dict[str, Any] = {"over_select": over_select, "deadline": deadline}
        slow |= {} if mode is None else {"mode": repr(mode)}
        config |= {name: value for name, value in slow.items() if value is not None}
        self._warn_once = WarnOnce(log)
        self._driver = RoundDriver[FlowerReply](
            scheduler,
            reply_checks,
            Recorder(folder, scheduler, "flower", config),
            observers=observers,
            warn_once=self._warn_once,
            stop_after=stop_after,
            sketch_above=sketch_above,
            unweighted=None if averages_by_weight(strategy) else type(strategy).__name__,
        )
        self._registry = ClientRegistry[int](
            authenticated=authenticated, partition_ids=partition_ids, patience=patience
        )
        self._transport = Transport(self._registry)
        self._deadline = Deadline(deadline, self.recorder.deadlines)
        self._training = make_training(
            self._driver, self._transport, over_select, mode, self._deadline
        )
        self._current: _FlowerRound | None = None
        self._evaluating: tuple[list[Message], Callable[[], float]] = ([], time.monotonic)
        self._without_mod: set[int] = set()
        self._own_start = has_own_start(strategy)
        self._private = [
            type(each).__name__ for each in chain(strategy) if isinstance(each, PRIVATE)
        ]
        self._timeout: float | None = DEFAULT_TIMEOUT
        self._knows_timeout = True  # False while a start of its own may wait for another time.
        self._evaluate_config = ConfigRecord()
        self._evaluations: dict[int, Addressed] = {}  # by node, in its last evaluation
        fraction = getattr(inner, "fraction_train", 1.0)
        if fraction < 1.0:
            self._warn_once(
                "fraction",
                f"the strategy has fraction_train={fraction}: in each round the scheduler sees "
                "only the nodes that it draws; set fraction_train=1.0",
            )
        if scheduler.constraints.caps is not None and not authenticated:
            self._warn_once(
                "caps",
                "caps apply to client ids, and without authenticated=True a node can claim the id "
                "of another client or return with a new one",
            )
        self._record_name: str = getattr(inner, "arrayrecord_key", "")
        self._stateful = stateful_parts(strategy)
        self._stateful_names = part_names(self._stateful)
        saved = self.recorder.model
        # The model of the checkpoint, until the strategy has aggregated a newer one.
        self._resumed = None if saved is None else array_record(saved)
        self._saved_config = self.recorder.train_config
        # Whether the hooks replace the strategy's model by the resumed one, as `start` cannot.
        self._hands_over = True
        self._given_config: dict[str, Any] | None = None  # the training config of this start
        self._started = False
        if self.rounds_done:
            log.info("resuming after round %d of %s", self.rounds_done, folder)
            if mode is not None:
                log.info("updates that were in flight when the server stopped are lost")
            self._restore_strategy(self.recorder.strategy_state)
        if self.recorder.saves and (names := unsaved(strategy)):
            log.warning(
                "%s has no methods state() and load_state(): a restart resumes with its model, "
                "without anything else that it keeps between rounds",
                ", ".join(names),
            )

    @property
    def rounds_done(self) -> int:
        """The number of rounds done, including those before a restart."""
        return self._driver.recorder.rounds_done

    @property
    def recorder(self) -> Recorder:
        """Costs, counts and numbers of examples of the run so far."""
        return self._driver.recorder

    @property
    def observers(self) -> list[Observer]:
        """The observers of the run; more can be added."""
        return self._driver.observers

    def summary(self) -> None:
        """Log the scheduler's settings, then the strategy's."""
        log.info("\t├──> Scheduled by %s", type(self.scheduler).__name__)
        per_round = self.clients_per_round if self.mode is None else self.mode
        log.info("\t│\t└── Clients per round: %s", per_round)
        self.strategy.summary()

    def start(self, *args: Any, **kwargs: Any) -> Result:
        """Run the federation: the strategy's own `start`, with clients that the scheduler selects.

        Parameters
        ----------
        *args, **kwargs
            As of the strategy's `start`: grid, initial_arrays, num_rounds, timeout, train_config,
            evaluate_config, evaluate_fn, and whatever else it takes.
        """
        named = bind_start(self.strategy, *args, **kwargs)
        if not self._own_start:
            check_start(named)
        self._timeout = named.get("timeout", DEFAULT_TIMEOUT)
        self._knows_timeout = "timeout" in named
        self._evaluate_config = named.get("evaluate_config") or ConfigRecord()
        if self._resumed is None and self.recorder.saves and self.recorder.model is not None:
            self._resumed = array_record(self.recorder.model)  # A second start of this object.
        if self._resumed is not None:
            log.info("continuing with the model of round %d", self.rounds_done)
        if self._resumed is not None and "initial_arrays" in named:
            self._name_another_model("initial_arrays", named["initial_arrays"], self._resumed)
            named["initial_arrays"] = self._resumed
            args, kwargs = (), named
        self._hands_over = "initial_arrays" not in named
        self._given_config = None
        with self.recorder.locked():
            self._started = True
            try:
                if self._own_start:
                    self._current = None
                    result = call_start(self.strategy, self, *args, **kwargs)
                    if self._current is None and getattr(result, "train_metrics_clientapp", None):
                        log.warning(
                            "start of %s has trained without calling configure_train of its self: "
                            "the scheduler has selected nobody",
                            type(self.strategy).__name__,
                        )
                else:
                    result = super().start(*args, **kwargs)
                if isinstance(result, Result) and not result.arrays and self._resumed is not None:
                    result.arrays = self._resumed  # No round has made a newer one.
                return result
            finally:
                self._started = False
                if self._training is not None:
                    self._training.end()
                self._driver.end()

    def configure_train(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        *args: Any,
        **kwargs: Any,
    ) -> Iterable[Message]:
        """Probe if the scheduler requests it, select, and return the cohort's messages.

        Further arguments, here and in the other hooks, are those that a strategy's own `start`
        gives to its hook.
        """
        if not self._started:
            # Training replies may come with the probe, unseen by the strategy outside.
            if str(sys._getframe(1).f_globals.get("__name__")).startswith("flwr."):
                raise ValueError(
                    "Scheduled cannot be inside another strategy, such as differential privacy, "
                    "which would not see all replies: put that strategy inside, as "
                    "Scheduled(Outer(FedAvg(), ...), scheduler, ...)"
                )
            if self.recorder.saves:
                self._warn_once("start", "rounds run without start: the folder is not locked")
        loop = sys._getframe(1)
        if not self._knows_timeout and loop.f_code is Strategy.start.__code__:
            # A start of its own has called Flower's, which has the timeout.
            self._timeout, self._knows_timeout = loop.f_locals["timeout"], True
        driver = self._driver
        this_round = driver.begin()
        current = self._current = _FlowerRound(clock_of(grid))
        late = self._transport.collect_late(grid)
        # After a restart `server_round` counts from 1 again; `rounds_done` does not.
        flower_round = this_round.server_round + 1
        self._continue_config(config)
        arrays = self._continue_model(arrays)
        messages = addressed(self.strategy, flower_round, arrays, config, grid, *args, **kwargs)
        self.recorder.train_config = [self._given_config or {}, plain_config(config)]
        if not messages:
            return []
        current.training = {message.metadata.dst_node_id: message for message in messages}
        self._set_model(current, this_round)
        current.nodes = self._resolve_clients(grid, current, late, this_round.record)
        this_round.clients = tuple(current.nodes)
        self._observe_late(late, current)
        if not current.nodes:
            return []
        needed = m = 0
        if self.clients_per_round is not None:
            needed = m = cohort_size(self.clients_per_round, len(current.nodes), flower_round)
            self._warn_of_few(current, needed)
        if self._training is not None:
            m = self._training.cohort_size(m)
        self._select(grid, current, m)
        current.sent = [
            new_message(current.training[current.nodes[client]])
            for client in this_round.record.cohort.clients
            if client not in this_round.early_replies
        ]
        current.sent_at = current.clock()
        if self._training is None:
            return current.sent
        clients = {node: client for client, node in current.nodes.items()}
        current.received = self._training.receive(
            grid, current.sent, clients, needed, self._timeout
        )
        return []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message], *args: Any, **kwargs: Any
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Check the replies, pass them to the scheduler, and let the strategy aggregate them."""
        driver, current, this_round = self._driver, self._current, self._driver.round
        if current is None or this_round is None or this_round.model is None:
            result = self.strategy.aggregate_train(self.rounds_done + 1, replies, *args, **kwargs)
            if this_round is not None:
                driver.finish_training(())
            return result
        purpose = this_round.training
        if current.received is None:
            answered = dict(self._transport.match(current.sent, replies, purpose, current.clock()))
            usable = driver.observe_training(self._exchange(current, answered))
            errors = [reply for reply in answered.values() if reply.error is not None]
        else:
            received = current.received
            usable = driver.observe_training(received.exchange, received.buffer)
            for client, reply in received.late:
                driver.observe_late(purpose, client, reply, outrun=True)
            errors = received.errors
        arrays: ArrayRecord | None = None
        metrics: MetricRecord | None = None
        if usable:  # Some strategies divide by the number of replies.
            self._warn_of_weights(this_round.record)
            messages = [reply.message for reply in (*usable.values(), *errors)]
            arrays, metrics = aggregated(
                self.strategy, this_round.server_round + 1, messages, *args, **kwargs
            )
            release_cycles()
        if arrays is not None:
            self._resumed = None
        self._explain_errors(this_round.record)
        if arrays is not None and self.recorder.saves:
            self.recorder.model = read_arrays(arrays)
            self.recorder.strategy_state = self._strategy_state()
        record = driver.finish_training(*(((), usable) if arrays is None else (usable, ())))
        combined = MetricRecord() if metrics is None else metrics
        for name, value in record.summary().items():
            # Flower keeps the metrics of all rounds: their names are kept once.
            combined[sys.intern(f"adcs-{name.replace('_', '-')}")] = value
        if isinstance(replies, list) and self._started and not self._own_start:
            # Flower's loop holds this list, and with it all models, until the next replies are in.
            replies.clear()
        return arrays, combined

    def configure_evaluate(
        self,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
        *args: Any,
        **kwargs: Any,
    ) -> Iterable[Message]:
        """Return the strategy's messages, without those to nodes with a pending answer."""
        arrays = self._continue_model(arrays)
        messages = self.strategy.configure_evaluate(
            self.rounds_done + 1, arrays, config, grid, *args, **kwargs
        )
        pending = self._registry.pending_nodes()
        sent = [message for message in messages if message.metadata.dst_node_id not in pending]
        self._evaluations |= addressed_evaluations(sent)
        self._evaluating = (sent, clock_of(grid))
        return sent

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message], *args: Any, **kwargs: Any
    ) -> MetricRecord | None:
        """Let the strategy aggregate, and add worst, worst 20 % and average over clients."""
        sent, clock = self._evaluating
        purpose = Purpose("evaluation", self.rounds_done)
        answered = self._transport.match(sent, replies, purpose, clock())
        usable, by_client = self._driver.observe_evaluations(
            [(self._registry.client_of(node), reply) for node, reply in answered]
        )
        if self._driver.round is not None:
            self._explain_errors(self._driver.round.record)
        errors = [reply for _, reply in answered if reply.error is not None]
        messages = [reply.message for reply in (*(reply for _, reply in usable), *errors)]
        metrics = evaluated(self.strategy, self.rounds_done + 1, messages, *args, **kwargs)
        if metrics is not None:
            for name, value in evaluation_summaries(by_client).items():
                metrics[name] = value
        self._driver.close()
        return metrics

    def _set_model(self, current: _FlowerRound, this_round: Round[FlowerReply]) -> None:
        """Set the model that nodes are sent, or that of each node where they are sent others."""
        sent = {
            node: sent_record(message.content, self._record_name)
            for node, message in current.training.items()
        }
        # Of parts of a model, the largest that has arrays to go by.
        records = {id(record): (name, record) for name, record in sent.values()}
        name, largest = max(
            records.values(),
            key=lambda each: (names_any(self.arrays, each[1]), record_bytes(each[1])),
        )
        model = self._driver.set_model(read_arrays(largest), self.arrays, name)
        others = {node: each for node, each in sent.items() if not are_equal(each[1], largest)}
        if not others:
            return

        def model_of(client: ClientId) -> SentModel:
            other = others.get(current.nodes.get(client, -1))
            if other is None:
                return model
            name, record = other
            return SentModel(read_arrays(record), self.arrays, model.keys, name, part=True)

        this_round.model_of = model_of
        if any(shapes_of(record) != shapes_of(largest) for _, record in others.values()):
            self._warn_once(
                "parts",
                "nodes are sent different parts of the model: updates of other parts than the "
                "largest are not compared; of these clients schedulers know losses and norms",
            )

    def _select(self, grid: Grid, current: _FlowerRound, m: int) -> None:
        """Probe if the scheduler requests it, and select m of the clients that are available."""
        driver = self._driver
        available, pending = self._split(grid, current)
        if not available or not m:
            assert driver.round is not None
            driver.round.record.pending = list(pending)
            return
        request = driver.request(available, pending, m)
        if request.clients:
            self._probe(grid, current, request)
            available, pending = self._split(grid, current)
        if self._training is not None:
            # Late replies are not aggregated, so that nobody need complement them.
            at_work = self._registry.at_work
            pending = tuple(client for client in pending if current.nodes[client] in at_work)
        if available:
            driver.select(available, pending, m)

    def _split(
        self, grid: Grid, current: _FlowerRound
    ) -> tuple[tuple[ClientId, ...], tuple[ClientId, ...]]:
        """Return the available clients and the pending ones.

        Where rounds do not wait for all clients, busy ones are never asked; if all are busy, the
        first of them to answer is waited for.
        """
        registry = self._registry
        if self._training is None:
            return registry.split(current.nodes)
        available, pending = registry.split(current.nodes, strict=True)
        if not available and not registry.at_work:
            self._observe_late(self._transport.wait_late(grid, self._timeout), current)
            available, pending = registry.split(current.nodes, strict=True)
        return available, pending

    def _resolve_clients(
        self,
        grid: Grid,
        current: _FlowerRound,
        late: Iterable[tuple[PendingMessage[int], FlowerReply]],
        record: RoundRecord,
    ) -> dict[ClientId, int]:
        """Return the node of each client that may be asked, after asking new nodes who they are."""
        registry = self._registry
        for message, reply in late:
            if message.purpose.stage == "identity":
                self._identify(message.node, reply)
        nodes, connected = current.training, list(grid.get_nodes())
        current.connected = len(connected)
        infos = {info.node_id: info for info in connected if info.node_id in nodes}
        training = {node: nodes[node] for node in registry.unidentified(infos)}
        purpose = Purpose("identity", self.rounds_done)
        wait = self._probe_wait() if training else None
        answered = self._transport.ask_partitions(grid, training, wait, purpose)
        without_mod = []
        for node, reply in answered.items():
            self._warn_of_order(node, reply)
            if not self._identify(node, reply):
                without_mod.append(node)
        before = registry.clients
        clients = registry.resolve({node: info.public_key for node, info in infos.items()})
        record.renamed = {
            before[node]: client
            for client, node in clients.items()
            if before.get(node) == node_client_id(node) != client
        }
        for old, client in record.renamed.items():
            log.info("%s is identified as %s", old, client)
        record.id_conflicts = dict(registry.id_conflicts)
        for client, reason in record.id_conflicts.items():
            self._warn_once(("id conflict", client), f"{client}: {reason}")
        if without_mod:
            self._record_without_mod({registry.client_of(n): n for n in without_mod}, record)
        if self.eligible is None:
            return clients
        return {c: node for c, node in clients.items() if self.eligible(c, infos[node])}

    def _identify(self, node: int, reply: FlowerReply) -> bool:
        """Take the partition id from a reply; return whether the node has the mod."""
        if reply.error is not None:
            # Without the mod, the user's handler is called with a message that it does not expect.
            if reply.raised:
                self._registry.identify(node)
            return not reply.raised
        answer = reply.answer
        self._registry.identify(node, None if answer is None else answer.get("partition-id"))
        return answer is not None

    def _record_without_mod(self, nodes: Mapping[ClientId, int], record: RoundRecord) -> None:
        """Record clients whose app lacks the mod, and log each of their nodes once."""
        record.without_mod = list(dict.fromkeys([*record.without_mod, *nodes]))
        new = [node for node in nodes.values() if node not in self._without_mod]
        self._without_mod.update(new)
        if new:
            log.warning(
                "no answer from probe_mod of node %s: it is missing, or a mod before it has "
                "changed its answer; put it first, as ClientApp(mods=[probe_mod, ...]). Until then "
                "nodes go by their node ids, and a probe costs a whole training reply "
                "(partition_ids=False stops the question for partition ids)",
                ", ".join(str(node) for node in new),
            )

    def _warn_of_few(self, current: _FlowerRound, needed: int) -> None:
        """Log once that the strategy addresses so few nodes that there is nothing to select."""
        count = len(current.training)
        if count <= needed < current.connected:
            self._warn_once(
                "few",
                f"{type(self.strategy).__name__} addresses {count} of {current.connected} nodes in "
                f"a round of {needed} clients: the scheduler has no choice",
            )

    def _warn_of_weights(self, record: RoundRecord) -> None:
        """Log once that a cohort's weights exceed what differential privacy has noise for."""
        if self._private and has_weights(record.cohort):
            self._warn_once(
                "private weights",
                f"the noise of {self._private[0]} is for clients of equal weight, and "
                f"{type(self.scheduler).__name__} gives them different ones: use a scheduler with "
                "equal weights, such as LiveADCS or Uniform",
            )

    def _warn_of_order(self, node: int, reply: FlowerReply) -> None:
        """Log once that `probe_mod` is not the first mod of a ClientApp."""
        answer = None if reply.error is not None else reply.answer
        if answer is not None and answer.get("first") is False:
            self._warn_once(
                "order",
                f"probe_mod of node {node} is not the first of its mods: the mods before it "
                "do not act on probed updates as on trained ones, and see the scheduler's "
                "messages; put it first, as ClientApp(mods=[probe_mod, ...])",
            )

    def _continue_config(self, config: ConfigRecord) -> None:
        """In the first round of a start, set the config to what the strategy had made of it.

        Strategies change it in place, for example to lower a learning rate. After a restart with
        the same config these changes are made again; another config is left as it is.
        """
        if self._given_config is not None:
            return
        self._given_config = plain_config(config)
        saved, self._saved_config = self._saved_config, None
        if saved is not None and saved[0] == self._given_config:
            for key in self._given_config.keys() - saved[1].keys():
                del config[key]
            config.update(saved[1])

    def _continue_model(self, arrays: ArrayRecord) -> ArrayRecord:
        """Return the model to send: the resumed one where `start` makes its own initial model."""
        if self._resumed is None or not self._hands_over:
            return arrays
        self._name_another_model("the model of start", arrays, self._resumed)
        return self._resumed

    def _name_another_model(self, name: str, given: ArrayRecord, resumed: ArrayRecord) -> None:
        """Log once that another model than the resumed one was given."""
        what = ""
        if not {*resumed} <= {*given}:  # Clients may return adapters only.
            what = str(sorted(resumed)[:3])
        for key in resumed.keys() & given.keys():
            ours, theirs = tuple(resumed[key].shape), tuple(given[key].shape)
            serialised = resumed[key].dtype == "uint8"  # Such as trees, which grow.
            if not what and ours != theirs and not serialised:
                what = f"whose array {key!r} has shape {ours}, not {theirs}"
        if what:
            self._warn_once(
                "model",
                f"{name} is another model than that of the folder, {what}: to train it, choose "
                "another folder",
            )

    def _strategy_state(self) -> dict[str, Any]:
        """Return what the strategy keeps between rounds, for a checkpoint."""
        values = [
            getattr(each, name) if name else each.state()  # type: ignore[attr-defined]
            for each, name in self._stateful
        ]
        return {"names": self._stateful_names, "values": values}

    def _restore_strategy(self, saved: Mapping[str, Any] | Sequence[Any] | None) -> None:
        """Give the strategy what it had kept at the last checkpoint."""
        if saved is None:
            return
        names = self._stateful_names
        # Earlier checkpoints have values without names.
        state = saved["values"] if isinstance(saved, Mapping) else saved
        held = saved["names"] if isinstance(saved, Mapping) else names
        if len(state) != len(names) or [*held] != names:
            others = f", that of {', '.join(held)}" if held and [*held] != names else ""
            raise ValueError(
                f"the checkpoint is of another strategy than {type(self.strategy).__name__}"
                f"{others}: choose another folder"
            )
        for (each, name), value in zip(self._stateful, state, strict=True):
            if name:
                setattr(each, name, value)
            else:
                each.load_state(value)  # type: ignore[attr-defined]

    def _explain_errors(self, record: RoundRecord) -> None:
        """Log what known errors of clients mean, once each."""
        for entry in record.failed:
            meaning = explain_error(entry["reason"])
            if meaning is not None:
                self._warn_once(meaning, meaning)

    def _observe_late(
        self, late: Iterable[tuple[PendingMessage[int], FlowerReply]], current: _FlowerRound
    ) -> None:
        """Pass late answers of clients that are still there on to the scheduler."""
        clients = {node: client for client, node in current.nodes.items()}
        for message, reply in late:
            if message.node not in clients or message.purpose.stage == "identity":
                continue
            client, purpose = clients[message.node], message.purpose
            usable = self._driver.observe_late(purpose, client, reply, outrun=message.outrun)
            if usable and message.sent_at is not None:
                self._deadline.record(client, current.clock() - message.sent_at)
        silent = [clients[node] for node in self._registry.pop_silent() if node in clients]
        if silent:
            self._driver.record_silent(silent)

    def _probe(self, grid: Grid, current: _FlowerRound, request: Request) -> None:
        """Send the probe that the scheduler requests, and pass the answers on to it."""
        driver, this_round = self._driver, self._driver.round
        assert this_round is not None
        assert this_round.model is not None
        probe = plan_probe(
            request, this_round.server_round, this_round.model, driver.checks, this_round.model_of
        )
        training = [current.training[current.nodes[client]] for client in request.clients]
        current.sent = probe_messages(probe, training, self._evaluate_config, self._evaluations)
        current.sent_at = current.clock()
        wait = self._timeout if probe.is_training else self._probe_wait()
        large = probe.is_training or self._without_mod
        clients = {node: client for client, node in current.nodes.items()}
        timed = probe.handler == "train" and self._training is not None
        if timed:
            longest = math.inf if wait is None else wait
            asked = request.clients
            limit = Wait(asked, len(asked), (), self._deadline, longest).seconds(usable=0)
            wait = None if limit == math.inf else limit
        answered = set()
        raised = 0
        for node, reply in self._transport.send(
            grid,
            current.sent,
            wait,
            probe.purpose,
            this_round.model.nbytes if large else 0,
        ):
            self._warn_of_order(node, reply)
            driver.read_answer(probe, clients[node], reply)
            answered.add(clients[node])
            raised += reply.raised
            if timed and reply.error is None:
                self._deadline.record(clients[node], current.clock() - current.sent_at)
        if timed:
            self._deadline.miss(client for client in request.clients if client not in answered)
        driver.observe_probe(probe, self._exchange(current, {}))
        first = probe.handler == "evaluate" and not self._evaluations
        if first and raised == len(current.sent):
            this_round.answerable = False
            self._warn_once(
                "evaluate",
                f"all {raised} evaluations that {type(self.scheduler).__name__} asked for failed: "
                "if the evaluate handler needs what configure_evaluate of "
                f"{type(self.strategy).__name__} puts into the config, give it to start as "
                "evaluate_config= for the first round; a handler of another name is known from "
                "the first evaluation on",
            )
        if probe.question is not None and this_round.early_replies:
            without_mod = {client: current.nodes[client] for client in this_round.early_replies}
            self._record_without_mod(without_mod, this_round.record)

    def _exchange(
        self, current: _FlowerRound, answered: Mapping[int, FlowerReply]
    ) -> Exchange[FlowerReply]:
        """Return the messages that were sent last and their replies, by client."""
        clients = {node: client for client, node in current.nodes.items()}
        return Exchange(
            clients=[clients[message.metadata.dst_node_id] for message in current.sent],
            replies={clients[node]: reply for node, reply in answered.items()},
            bytes_down=sent_bytes(current.sent),
            seconds=current.clock() - current.sent_at,
        )

    def _probe_wait(self) -> float | None:
        """Return how many seconds to wait for answers to questions and probes."""
        if self.probe_timeout is not None:
            return self.probe_timeout
        if isinstance(self._deadline.setting, (int, float)):
            longest = math.inf if self._timeout is None else self._timeout
            return min(float(self._deadline.setting), longest)
        if not self._knows_timeout:
            self._warn_once(
                "timeout",
                f"start of {type(self.strategy).__name__} has no parameter timeout: questions and "
                f"probes wait up to {self._timeout:g} s for nodes that do not answer; set "
                "probe_timeout=",
            )
        return self._timeout


def addressed(strategy: Strategy, *args: Any, **kwargs: Any) -> list[Message]:
    """Return a strategy's training messages, one for each node; raise ValueError if there are more.

    Parameters
    ----------
    strategy
        The strategy.
    *args, **kwargs
        As of its `configure_train`.
    """
    messages = strategy.configure_train(*args, **kwargs)
    if messages is None:
        raise ValueError(
            f"configure_train of {type(strategy).__name__} must return messages, got None"
        )
    sent = list(messages)
    nodes = Counter(message.metadata.dst_node_id for message in sent)
    if len(nodes) < len(sent):
        node, count = nodes.most_common(1)[0]
        raise ValueError(
            f"configure_train of {type(strategy).__name__} must address a node once in a round, "
            f"got {count} messages to node {node}"
        )
    return sent


def aggregated(
    strategy: Strategy, *args: Any, **kwargs: Any
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """Return what a strategy makes of replies; raise ValueError if that is no model with metrics.

    Parameters
    ----------
    strategy
        The strategy.
    *args, **kwargs
        As of its `aggregate_train`.
    """
    result: Any = strategy.aggregate_train(*args, **kwargs)
    pair = isinstance(result, (tuple, list)) and len(result) == 2
    if not pair or not (
        isinstance(result[0], (ArrayRecord, NoneType))
        and isinstance(result[1], (MetricRecord, NoneType))
    ):
        kinds = [type(part).__name__ for part in (result if pair else [result])]
        raise ValueError(
            f"aggregate_train of {type(strategy).__name__} must return an ArrayRecord and a "
            f"MetricRecord, or None for either, got {' and '.join(kinds)}"
        )
    return result[0], result[1]


def evaluated(strategy: Strategy, *args: Any, **kwargs: Any) -> MetricRecord | None:
    """Return what a strategy makes of evaluations; raise ValueError if that is no metrics.

    Parameters
    ----------
    strategy
        The strategy.
    *args, **kwargs
        As of its `aggregate_evaluate`.
    """
    result: Any = strategy.aggregate_evaluate(*args, **kwargs)
    if not isinstance(result, (MetricRecord, dict, NoneType)):
        raise ValueError(
            f"aggregate_evaluate of {type(strategy).__name__} must return a MetricRecord or None, "
            f"got {type(result).__name__}"
        )
    return result  # type: ignore[return-value]  # A dict is taken for metrics, as Flower does.


def check_start(named: Mapping[str, Any]) -> None:
    """Raise ValueError for arguments of Flower's `start` of another kind than it needs.

    >>> check_start({"grid": None})
    Traceback (most recent call last):
    ...
    ValueError: grid must be a Grid, as in @server.main(), got NoneType
    """
    kinds: dict[str, tuple[type, str]] = {
        "grid": (Grid, "a Grid, as in @server.main()"),
        "initial_arrays": (ArrayRecord, "an ArrayRecord, such as ArrayRecord(net.state_dict())"),
        "train_config": (ConfigRecord, 'a ConfigRecord, such as ConfigRecord({"lr": 0.1})'),
        "evaluate_config": (ConfigRecord, 'a ConfigRecord, such as ConfigRecord({"batch": 32})'),
    }
    for name, (kind, meaning) in kinds.items():
        optional = name.endswith("config")
        if name in named and not isinstance(named[name], kind):
            if optional and named[name] is None:
                continue
            raise ValueError(f"{name} must be {meaning}, got {type(named[name]).__name__}")


def release_cycles() -> None:
    """Free what an aggregation has left in reference cycles, at once.

    Flower's views of a content, such as `content.array_records`, refer to themselves and to the
    content. Without this, the models of a round stay in memory until Python looks for cycles, which
    for a few large objects can take rounds. The views are new, so looking through the younger
    objects is enough, and takes little time.
    """
    gc.collect(1)


def plain_config(config: ConfigRecord) -> dict[str, Any]:
    """Return the entries of a config that a checkpoint can hold: numbers, text and lists of them.

    >>> plain_config(ConfigRecord({"lr": 0.1, "layers": ["a", "b"], "key": b"secret"}))
    {'lr': 0.1, 'layers': ['a', 'b']}
    """

    def is_plain(value: Any) -> bool:
        if isinstance(value, list):
            return all(map(is_plain, value))
        return isinstance(value, (int, str)) or (isinstance(value, float) and math.isfinite(value))

    return {key: value for key, value in config.items() if is_plain(value)}


def bind_start(strategy: Strategy, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the arguments of a call of a strategy's `start` by name, defaults included.

    A `start` that takes any arguments is taken to pass them on to Flower's.

    >>> from flwr.serverapp.strategy import FedAvg
    >>> bind_start(FedAvg(), "grid", "arrays", num_rounds=5)["timeout"]
    3600
    >>> bind_start(FedAvg(), "grid", "arrays", rounds=5)
    Traceback (most recent call last):
    ...
    TypeError: FedAvg.start: got an unexpected keyword argument 'rounds'
    """
    signature = inspect.signature(strategy.start)
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    try:
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            flowers = inspect.signature(Strategy.start)
            bound = flowers.bind(strategy, *args, **kwargs)
            del bound.arguments["self"]
        else:
            bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{type(strategy).__name__}.start: {error}") from None
    bound.apply_defaults()
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        keywords = bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
        named |= value if keywords else {name: value}
    named.pop("self", None)
    return named
