"""The ClientApp. Scheduling adds only the mod."""

from __future__ import annotations

import time

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from adcs.flower import probe_mod
from fashion.task import workload

app = ClientApp(mods=[probe_mod])


@app.train()
def train(message: Message, context: Context) -> Message:
    work = workload(context.run_config)
    client = int(context.node_config["partition-id"])
    # Flower's round 1 is the simulator's round 0.
    server_round = message.content["config"]["server-round"] - 1
    w, loss = work.train(message.content["arrays"]["w"].numpy(), client, server_round)
    # A slow device, for demonstrations: --node-config "... slow-seconds=30".
    time.sleep(float(context.node_config.get("slow-seconds", 0.0)))
    # The size of the mini-batch, which is the same for all clients: the paper's equal weights.
    metrics = {"train_loss": loss, "num-examples": work.federation.batch_size}
    content = {"arrays": ArrayRecord({"w": Array(w)}), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    work = workload(context.run_config)
    client = int(context.node_config["partition-id"])
    accuracy, loss, count = work.evaluate(message.content["arrays"]["w"].numpy(), client)
    metrics = {"eval_acc": accuracy, "eval_loss": loss, "num-examples": count}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
