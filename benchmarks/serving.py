"""The lookup service, compared with a bare echo of the same bytes over gRPC, and with Redis.

Server and client are separate processes on one machine, over loopback. The echo replies to a request of
the same size with as many bytes in one call over the same gRPC, and does nothing else: it is the limit of
a service in Python. Redis is queried with pipelined HMGET in the layout of the storage `redis`, and its
replies stay a list of bytes. Ours is timed completely: from distinct ids to an array.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.scale import Scale
from sparring import StepContainer, StorageChoice, TableConfig
from sparring_serve import ClientConfig, LookupClient, LookupServer, ServingConfig, open_server
from sparring_serve.publishing.publisher import PublisherOptions, publish_newest
from sparring_serve.server.heap import keep_freed_memory
from sparring_serve.transport_options import CHANNEL_OPTIONS

__all__ = ["Echo", "echo_server", "keeps_serving", "measure", "process", "server_process"]

TABLE_ROWS, DIM, ROUNDS = 500_000, 64, 60
BATCHES = (100, 1_000, 65_536)
ECHO_BAR = 1.25
REDIS_BARS = {1_000: 1.5, 65_536: 5.0}
INT8_BAR = 2.5
_ECHO = "/echo/Echo"


def measure(scale: Scale) -> list[Figure]:
    """Measures ratios of times with 100, 1,000 and 65,536 ids."""
    figures = []
    generator = np.random.default_rng(0)
    keys = generator.permutation(scale.rows(TABLE_ROWS)).astype(np.int64) * 7_919 - 2**40
    rows = generator.random((len(keys), DIM), np.float32)
    with ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory())
        _publish(Path(folder), keys, rows)
        plain = closing.enter_context(server_process(_serve, f"{folder}/plain"))
        packed = closing.enter_context(server_process(_serve, f"{folder}/int8"))
        echo = Echo(closing.enter_context(server_process(echo_server, "")))
        closing.callback(echo.close)
        clients = {
            name: closing.enter_context(
                LookupClient(address, ClientConfig(deadline_seconds=9, row_dtype=dtype))
            )
            for name, address, dtype in (("ours", plain, "float32"), ("int8", packed, "int8"))
        }
        redis = _redis(closing, keys, rows)
        for batch in BATCHES:
            places = generator.choice(len(keys), min(batch, len(keys)), replace=False)
            figures += _measure(clients, echo, redis, (keys[places], rows[places]), scale)
    return figures


def _measure(
    clients: dict[str, LookupClient], echo: Echo, redis: Any, asked: Any, scale: Scale
) -> list[Figure]:
    ids, rows = asked
    contenders: dict[str, Callable[[], Any]] = {
        name: _pull_of(client, ids) for name, client in clients.items()
    }
    if not np.array_equal(contenders["ours"]().rows["item"], rows):
        raise AssertionError("the rows of the service differ from the published ones")
    if not np.allclose(contenders["int8"]().rows["item"], rows, atol=0.004):
        raise AssertionError("the error of int8 rows is larger than half a step")
    contenders["echo"] = echo.call_of(8 * len(ids), rows.nbytes)
    contenders["echo of int8"] = echo.call_of(8 * len(ids), len(ids) * (DIM + 4))
    if redis is not None:
        theirs = redis(ids, rows)
        if theirs.found() != rows.tobytes():
            raise AssertionError("Redis and the service return different rows")
        contenders["redis"] = theirs.find
    timings = alternate(contenders, rounds=scale.rounds(ROUNDS))
    shown = ", ".join(f"{name} {each.median * 1e3:.2f} ms" for name, each in timings.items())
    detail = f"{shown}; {os.cpu_count()} cores"
    what = f"{len(ids):,} ids x {DIM}"
    slower = median(ratios(timings["ours"], timings["echo"]))
    found = [
        Figure(
            f"{what}: time against a bare echo", f"{slower:.2f} x", f"<= {ECHO_BAR}",
            slower <= ECHO_BAR, detail,
        )
    ]  # fmt: skip
    if redis is not None:
        faster, bar = median(ratios(timings["redis"], timings["ours"])), REDIS_BARS.get(len(ids))
        found.append(
            Figure(
                f"{what}: against Redis, pipelined HMGET", f"{faster:.2f} x",
                None if bar is None else f">= {bar}", None if bar is None else faster >= bar,
                detail, faster,
            )
        )  # fmt: skip
    faster = median(ratios(timings["ours"], timings["int8"]))
    is_large = len(ids) == BATCHES[-1]
    found.append(
        Figure(
            f"{what}: int8 on the wire against float32", f"{faster:.2f} x",
            f">= {INT8_BAR}" if is_large else None, faster >= INT8_BAR if is_large else None,
            detail, faster,
        )
    )  # fmt: skip
    if is_large:
        faster = median(ratios(timings["echo"], timings["echo of int8"]))
        found.append(
            Figure(f"{what}: bare echoes of the bytes of both", f"{faster:.2f} x", detail=detail)
        )
    return found


def _pull_of(client: LookupClient, ids: Any) -> Callable[[], Any]:
    return lambda: client.pull({"item": ids})


def _publish(folder: Path, keys: Any, rows: Any) -> None:
    with StepContainer() as container:
        container.declare(TableConfig("item", DIM), StorageChoice("hkv"))
        for begin in range(0, len(keys), 1 << 16):
            end = begin + (1 << 16)
            container.assign("item", keys[begin:end], rows[begin:end])
        container.save(str(folder / "runs/step-1"))
    for name, quantize in (("plain", {}), ("int8", {"item": "int8"})):
        publish_newest(folder / "runs", folder / name, PublisherOptions(quantize))


@contextmanager
def process(target: Callable[[str, Connection], None], argument: str) -> Iterator[Connection]:
    """Runs `target` in a separate process, which gets "end" at the end; yields the connection to it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    running = context.Process(target=target, args=(argument, theirs), daemon=True)
    running.start()
    try:
        yield ours
    finally:
        ours.send("end")
        running.join(30)


@contextmanager
def server_process(target: Callable[[str, Connection], None], argument: str) -> Iterator[str]:
    """Runs a server in a block; yields its address."""
    with process(target, argument) as connection:
        if not connection.poll(60):
            raise AssertionError("a server did not start within 60 s")
        yield connection.recv()


def keeps_serving(
    config: ServingConfig, connection: Connection, described: Callable[[LookupServer], str]
) -> None:
    """Serves until it is told to end, as the command does; sends a description of the server."""
    keep_freed_memory()
    with open_server(config, address="127.0.0.1:0") as server:
        connection.send(described(server))
        connection.recv()


def _serve(folder: str, connection: Connection) -> None:
    keeps_serving(ServingConfig(snapshots=folder), connection, lambda server: server.address)


def echo_server(_: str, connection: Connection) -> None:
    keep_freed_memory()
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    answers: dict[int, bytes] = {}

    def answer(request: bytes, _: Any) -> bytes:
        size = int.from_bytes(request[:8], "little")
        if size not in answers:
            answers[size] = bytes(size)
        return answers[size]

    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.server(ThreadPoolExecutor(4), options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    connection.send(f"127.0.0.1:{port}")
    connection.recv()
    server.stop(1).wait()


class Echo:
    """A client of the echo."""

    def __init__(self, address: str) -> None:
        import grpc

        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._call = self._channel.unary_unary(_ECHO)

    def call_of(self, request_bytes: int, answer_bytes: int) -> Callable[[], Any]:
        request = answer_bytes.to_bytes(8, "little") + bytes(request_bytes - 8)
        return lambda: self._call(request, timeout=9)

    def close(self) -> None:
        self._channel.close()


def _redis(closing: ExitStack, keys: Any, rows: Any) -> Callable[[Any, Any], Any] | None:
    """Returns Redis with all rows, queried as in `benchmarks.redis`; None if it cannot run."""
    from benchmarks.redis import RawRedis
    from sparring_redis.testing.server import RedisServer, redis_server_missing

    if redis_server_missing():
        return None
    import redis

    server = closing.enter_context(RedisServer())
    client = closing.enter_context(redis.Redis(port=server.port))
    for begin in range(0, len(keys), 1 << 16):
        end = begin + (1 << 16)
        RawRedis(client, keys[begin:end], rows[begin:end]).upsert()
    return lambda ids, given: RawRedis(client, ids, given)
