"""Pushes to a parameter service, compared with the engine's update in this process and a bare echo.

Server, echo and client are separate processes on one machine, over loopback. The echo receives requests
of the same size over the same gRPC, replies with as few bytes, and does nothing else. The engine's update
gets the same keys and gradients in this process. Rows are compared before anything is timed.

The push log is disabled for that. Two more servers show the cost of the log: with the defaults, and with
fsync before each acknowledgement.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import Figure, alternate
from benchmarks.scale import Scale
from benchmarks.serving import Echo, echo_server, server_process
from sparring import StepContainer
from sparring.contracts import MethodChoice
from sparring_serve import (
    ClientConfig,
    ParameterClient,
    ServingConfig,
    TableDeclaration,
    open_parameter_server,
)
from sparring_serve.server.heap import keep_freed_memory

__all__ = ["measure"]

TABLE_ROWS, BATCH, DIM, ROUNDS, BAR = 500_000, 8_192, 64, 100, 1.25
ANSWER_BYTES = 8
LOGS: dict[str, dict[str, Any]] = {
    "logged": {"push_log_bytes": 1 << 40},
    "not logged": {"push_log_bytes": 0},
    "synced": {"push_log_bytes": 1 << 40, "push_log_sync_milliseconds": 0},
}
LOG_BAR = 1.6
TABLE = {"dim": DIM, "update_method": "adagrad", "hyper": {"lr": 0.01}}


def measure(scale: Scale) -> list[Figure]:
    """Measures the ratio of a push to the sum of both, for Adagrad."""
    generator = np.random.default_rng(0)
    keys = generator.permutation(scale.rows(TABLE_ROWS)).astype(np.int64) * 7_919 - 2**40
    batch = min(BATCH, len(keys))
    ids = [generator.choice(keys, batch, replace=False) for _ in range(8)]
    gradients = generator.standard_normal((batch, DIM), dtype=np.float32)
    with ExitStack() as closing:
        clients = {name: _client(closing, **options) for name, options in LOGS.items()}
        client = clients["logged"]
        echo = Echo(closing.enter_context(server_process(echo_server, "")))
        closing.callback(echo.close)
        engine = _Engine(closing)
        for begin in range(0, len(keys), batch):
            some = keys[begin : begin + batch]
            engine.update(some, gradients[: len(some)])
            for each in clients.values():
                each.push({"item": (some, gradients[: len(some)])}, wait="applied")
        pulled = client.pull({"item": ids[0]}).rows["item"]
        if not np.array_equal(pulled, engine.rows(ids[0])):
            raise AssertionError("the service and the engine here have different rows")
        timings = alternate(
            {
                "push": _applied(client, ids, gradients),
                "push without a log": _applied(clients["not logged"], ids, gradients),
                "queued": _turns(ids, lambda some: client.push({"item": (some, gradients)})),
                "flush": client.flush,
                "engine": _turns(ids, lambda some: engine.update(some, gradients)),
                "echo": echo.call_of(batch * (8 + 4 * DIM), ANSWER_BYTES),
            },
            rounds=scale.rounds(ROUNDS),
            warm_up=5,
        )
        # Separately, because its writes would delay the writes of the others on the same disk.
        synced = alternate(
            {"push": _applied(clients["synced"], ids, gradients)},
            rounds=scale.rounds(ROUNDS),
            warm_up=5,
        )["push"]
    both = zip(
        timings["push without a log"].seconds,
        timings["engine"].seconds,
        timings["echo"].seconds,
        strict=True,
    )
    ratio = median(push / (update + echoed) for push, update, echoed in both)
    shown = ", ".join(
        f"{name} {each.median * 1e3:.2f} ms" for name, each in timings.items() if name != "flush"
    )
    plain = timings["push without a log"].seconds
    log_ratio = median(
        push / other for push, other in zip(timings["push"].seconds, plain, strict=True)
    )
    return [
        Figure(
            f"push of {batch:,} x {DIM}, applied, not logged, against update in process + bare echo",
            f"{ratio:.2f} x",
            f"<= {BAR}",
            ratio <= BAR,
            f"{shown}; {os.cpu_count()} cores",
            ratio,
        ),
        Figure(
            f"push of {batch:,} x {DIM}, applied, with the push log against without it",
            f"{log_ratio:.2f} x",
            f"<= {LOG_BAR}",
            log_ratio <= LOG_BAR,
            f"{batch * (8 + 4 * DIM) / 1e6:.1f} MB per push, fsync once per second; with "
            f"push_log_sync_milliseconds=0 a push took {synced.median * 1e3:.2f} ms",
            log_ratio,
        ),
    ]


def _client(closing: ExitStack, **parameters: Any) -> ParameterClient:
    """Returns a client of a separate server."""
    folder = closing.enter_context(tempfile.TemporaryDirectory())
    given = {"push_log": f"{folder}/log", **parameters}
    address = closing.enter_context(server_process(_serve, json.dumps(given)))
    return closing.enter_context(ParameterClient(address, ClientConfig(deadline_seconds=9)))


def _applied(client: ParameterClient, ids: list[Any], gradients: Any) -> Callable[[], object]:
    return _turns(ids, lambda some: client.push({"item": (some, gradients)}, wait="applied"))


def _turns(ids: list[Any], run: Callable[[Any], object]) -> Callable[[], object]:
    number = iter(range(1 << 60))
    return lambda: run(ids[next(number) % len(ids)])


class _Engine:
    """The table of the service, in this process."""

    def __init__(self, closing: ExitStack) -> None:
        declared = TableDeclaration.model_validate(TABLE)
        self._method, self._hyper = declared.method, declared.hyper_parameters
        self._steps = 0
        self._container = closing.enter_context(StepContainer())
        self._container.declare(declared.table("item"), declared.storage_choice)
        state = self._method.initial_state(DIM, self._hyper, np.float32)
        self._container.set_state("item", state, self._method.name)
        self._container.storage("item")

    def update(self, ids: Any, gradients: Any) -> None:
        self._steps += 1
        self._container.resources.accumulate_by_key("item", ids, gradients)
        choice = MethodChoice(self._method, self._hyper, self._steps)
        self._container.apply_methods({"item": choice})

    def rows(self, ids: Any) -> Any:
        found = self._container.lookup("item", ids, is_registered=False)
        return found.rows[found.inverse]


def _serve(given: str, connection: Connection) -> None:
    keep_freed_memory()
    config = ServingConfig.model_validate(
        {"parameters": {"tables": {"item": TABLE}, "start": None, **json.loads(given)}}
    )
    with open_parameter_server(config, address="127.0.0.1:0") as server:
        connection.send(server.address)
        connection.recv()
