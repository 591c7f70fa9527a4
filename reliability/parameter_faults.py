"""Pushes whose replies are lost: `python -m reliability parameter_faults --trials 1000`.

A client pushes to two shards in this process, over a transport that loses, truncates, damages and rejects
messages, and sends the same push again. At the end each row must contain each push exactly once. Each
push subtracts 1 from every element of its rows, which start at zero.
"""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from reliability.report import Report
from sparring_serve import ParameterClient, ParametersConfig, ShardPosition, ShardReplicas
from sparring_serve.client.transport import Send
from sparring_serve.parameters.service import ParameterService
from sparring_serve.parameters.shard import ParameterShard
from sparring_serve.service import LookupService
from sparring_serve.testing import FaultyTransport

__all__ = ["TRIALS", "run"]

TRIALS = 1_000
FAULTS = ("lost", "lost", "lost", "cut", "damaged", "busy", "hang")
_DIM = 4
_TABLE = {"dim": _DIM, "update_method": "sgd", "hyper": {"lr": 1.0}, "initializer": "zeros"}


def run(trials: int) -> Report:
    """Pushes until `trials` replies were lost, or attempts failed otherwise."""
    draw = random.Random(5)
    seen: Counter[str] = Counter()
    config = ParametersConfig.model_validate({"tables": {"item": _TABLE}, "start": None})
    shards = ShardReplicas((("shard:0",), ("shard:1",)))
    services: dict[str, ParameterService] = {}

    def fault(send: Send) -> str:
        if send.method != "Push" or draw.random() < 0.5 or sum(seen.values()) >= trials:
            return ""
        chosen = draw.choice(FAULTS)
        seen[chosen] += 1
        return chosen

    transport = FaultyTransport(services, fault)
    for shard, (address,) in enumerate(shards.shards):
        position = ShardPosition(shards, shard)
        tables = ParameterShard(config, position)
        lookups = LookupService(tables, position, parameters=tables.describe())
        services[address] = ParameterService(tables, lookups, transport)
    keys = np.arange(500)
    expected = np.zeros(len(keys), np.float32)
    client = ParameterClient(shards, transport=transport, clock=transport.clock)
    num_pushes = 0
    while sum(seen.values()) < trials:
        some = np.array(draw.sample(range(len(keys)), 20))
        wait = draw.choice(["queued", "applied"])
        gradients = np.ones((len(some), _DIM), np.float32)
        client.push({"item": (some, gradients)}, wait=wait, deadline_seconds=600)
        expected[some] -= 1
        num_pushes += 1
    client.flush()
    found = client.pull({"item": keys}).rows["item"]
    for service in services.values():
        service.close()
        service.shard.close()
    wrong = np.flatnonzero((found != expected[:, None]).any(axis=1))
    failures = [
        f"key {key} has {-found[key]} pushes, expected {-expected[key]}" for key in wrong[:10]
    ]
    return Report(trials, {"pushes": num_pushes, **seen}, failures)
