"""Pushes to a shard with a follower, compared with the same pushes to one without.

Servers and client are separate processes on one machine, over loopback; Redis is the store. Both shards
have a push log. Rounds alternate, so that other load of the machine affects both.

The limit is the same number of bytes over bare gRPC, to a server that replies at once, and through it
to a second one.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import numpy as np

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from sparring.errors import SparringError
from sparring_redis.testing.server import RedisServer
from sparring_serve import ClientConfig, ParameterClient, ShardReplicas
from sparring_serve.transport_options import CHANNEL_OPTIONS

__all__ = ["measure"]

TABLE_ROWS, BATCH, DIM, ROUNDS = 500_000, 8_192, 64, 200
TIME_BAR, CPU_BAR = 1.5, 2.2
_TICKS = os.sysconf("SC_CLK_TCK")


class _Shard:
    """Server processes of one shard, and a client."""

    def __init__(self, folder: Path, num_replicas: int, store: str) -> None:
        self.addresses = tuple(f"127.0.0.1:{_free_port()}" for _ in range(num_replicas))
        config = folder / f"{num_replicas}.yaml"
        replication = (
            f"{{store: '{store}', without_follower: flag}}" if num_replicas > 1 else "null"
        )
        config.write_text(
            f"shards: [{list(self.addresses)}]\n"
            f"parameters:\n  folders: ['{folder / f'saved-{num_replicas}'}']\n"
            f"  push_log_bytes: {1 << 40}\n  replication: {replication}\n"
            f"  tables: {{item: {{dim: {DIM}, update_method: adagrad, hyper: {{lr: 0.01}}}}}}\n"
        )
        command = [sys.executable, "-m", "sparring", "serve", "--role", "parameters", str(config)]
        self.processes = [
            subprocess.Popen([*command, "--replica", str(each + 1)], stderr=subprocess.DEVNULL)
            for each in range(num_replicas)
        ]
        self.client = ParameterClient(
            ShardReplicas((self.addresses,)), ClientConfig(deadline_seconds=9)
        )
        self.seconds: list[float] = []

    def push(self, ids: np.ndarray, gradients: np.ndarray) -> bool:
        """Returns whether a follower has the push."""
        pushed = self.client.push(
            {"item": (ids, gradients[: len(ids)])}, wait="applied", deadline_seconds=60
        )
        return not pushed.unreplicated

    def cpu_seconds(self) -> float:
        """Processor time of all servers."""
        fields = [
            Path(f"/proc/{each.pid}/stat").read_text().rpartition(")")[2].split()
            for each in self.processes
        ]
        return sum(int(each[11]) + int(each[12]) for each in fields) / _TICKS

    def close(self) -> None:
        self.client.close()
        for each in self.processes:
            each.kill()
            each.wait()


class _Echo:
    """Two servers of bare gRPC. The first one sends each message to the second."""

    def __init__(self, num_bytes: int) -> None:
        ports = [_free_port(), _free_port()]
        targets = [str(ports[1]), ""]
        self._processes = [
            subprocess.Popen([sys.executable, "-m", "benchmarks.follower_pushes", str(port), to])
            for port, to in zip(ports, targets, strict=True)
        ]
        self._content = bytes(num_bytes)
        self._calls = [_call(port) for port in reversed(ports)]
        self.seconds: list[list[float]] = [[], []]
        """Times of calls with one hop, and with two."""
        for call in self._calls:
            call(self._content, timeout=60, wait_for_ready=True)

    def measure(self) -> None:
        for call, seconds in zip(self._calls, self.seconds, strict=True):
            begin = time.perf_counter()
            call(self._content, timeout=60)
            seconds.append(time.perf_counter() - begin)

    def close(self) -> None:
        for each in self._processes:
            each.kill()
            each.wait()


def _call(port: int) -> Any:
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS)
    return channel.unary_unary("/limit/Echo")


def _serve_echo(port: int, to: str) -> None:
    call = _call(int(to)) if to else None

    def answer(content: bytes, _: Any) -> bytes:
        if call is not None:
            call(content, timeout=60, wait_for_ready=True)
        return b""

    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.server(ThreadPoolExecutor(4), options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("limit", handlers),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


def measure(scale: Scale) -> list[Figure]:
    """Measures the time of a push of one client, and the processor time of all processes."""
    generator = np.random.default_rng(0)
    keys = generator.permutation(scale.rows(TABLE_ROWS)).astype(np.int64)
    batch, rounds = min(BATCH, len(keys)), scale.rounds(ROUNDS)
    ids = [generator.choice(keys, batch, replace=False) for _ in range(8)]
    gradients = generator.standard_normal((batch, DIM), dtype=np.float32)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = stack.enter_context(RedisServer())
        shards = [stack.enter_context(_shard(folder, each, redis.url)) for each in (1, 2)]
        for shard in shards:
            _await(partial(shard.push, ids[0], gradients))
            for begin in range(0, len(keys), batch):
                shard.push(keys[begin : begin + batch], gradients)
        echo = stack.enter_context(closing(_Echo(batch * (8 + 4 * DIM))))
        spent = [0.0, 0.0]
        for number in range(rounds):
            echo.measure()
            for each, shard in enumerate(shards):
                before = shard.cpu_seconds() + time.process_time()
                begin_seconds = time.perf_counter()
                for some in (ids[number % 8], ids[(number + 1) % 8]):
                    if not shard.push(some, gradients):
                        raise AssertionError("a push was not replicated")
                    now = time.perf_counter()
                    shard.seconds.append(now - begin_seconds)
                    begin_seconds = now
                spent[each] += shard.cpu_seconds() + time.process_time() - before
    alone, followed = (median(each.seconds) for each in shards)
    one, two = map(median, echo.seconds)
    detail = (
        f"{alone * 1e3:.2f} ms and {followed * 1e3:.2f} ms; "
        f"{spent[0] / rounds / 2 * 1e3:.2f} ms and {spent[1] / rounds / 2 * 1e3:.2f} ms of processor "
        f"time; bare gRPC: {one * 1e3:.2f} ms and {two * 1e3:.2f} ms; {os.cpu_count()} cores"
    )
    what = f"push of {batch:,} x {DIM}, applied, with a follower against without one"
    ratios = [
        (f"{what}: median time", followed / alone, TIME_BAR),
        (f"{what}: processor time of client and servers", spent[1] / spent[0], CPU_BAR),
    ]
    return [
        Figure(name, f"{ratio:.2f} x", f"<= {bar}", ratio <= bar, detail, ratio)
        for name, ratio, bar in ratios
    ]


@contextmanager
def _shard(folder: Path, num_replicas: int, store: str) -> Iterator[_Shard]:
    shard = _Shard(folder, num_replicas, store)
    try:
        yield shard
    finally:
        shard.close()


def _await(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            if is_done():
                return
        except SparringError:  # no server listens yet
            pass
        if time.monotonic() > end:
            raise AssertionError("no follower was in sync within 60 s")
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


if __name__ == "__main__":
    _serve_echo(int(sys.argv[1]), sys.argv[2])
