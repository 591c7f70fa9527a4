"""Resizes a parameter service under load: `python -m reliability parameter_resizes`.

The servers, the store (Redis) and the command are separate processes. Each trial changes the number of
shards from 3 to 5 and to 2 while clients push and pull, and checks these promises:

calls     no push and no pull raises an error
once      each push is applied once to each of its keys, and a snapshot afterwards contains the same rows
p99       during the moves, 99 % of the calls take at most twice the time of 99 % of the calls before

Each push subtracts 1 from every element of its rows, which start at zero.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from reliability.report import Report
from sparring import open_snapshot, scan_rows
from sparring.errors import SparringError
from sparring_redis.testing.server import RedisServer, redis_server_missing
from sparring_serve import ParameterClient

__all__ = ["TRIALS", "run"]

TRIALS = 1
_NUM_IDS, _DIM, _CLIENTS, _BATCH = 100_000, 8, 3, 256
_QUIET_SECONDS = float(os.environ.get("RESIZE_QUIET_SECONDS", "15"))
_START_SECONDS = 240.0


class _Client(threading.Thread):
    """Pushes and pulls until `stop`."""

    def __init__(self, config: Path, seed: int) -> None:
        super().__init__(daemon=True)
        self._config, self._draw = config, np.random.default_rng(seed)
        self.stop = threading.Event()
        self.counts = np.zeros(_NUM_IDS, np.int64)
        self.failures: list[str] = []
        self.calls: list[tuple[float, str, float]] = []

    def run(self) -> None:
        gradients = np.ones((_BATCH, _DIM), np.float32)
        with ParameterClient.from_config(self._config) as client:
            while not self.stop.is_set():
                ids = self._draw.choice(_NUM_IDS, _BATCH, replace=False)
                try:
                    begin = time.monotonic()
                    client.push({"item": (ids, gradients)}, wait="applied", deadline_seconds=30)
                    middle = time.monotonic()
                    self.counts[ids] += 1
                    client.pull({"item": ids}, deadline_seconds=10)
                    end = time.monotonic()
                except SparringError as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                else:
                    self.calls += [(begin, "push", middle - begin), (middle, "pull", end - middle)]
                time.sleep(0.01)


class _Service:
    """Servers with files of 3, 5 and 2 shards."""

    def __init__(self, folder: Path, store: str) -> None:
        self._folder = folder
        addresses = [f"127.0.0.1:{_free_port()}" for _ in range(5)]
        self.servers: dict[int, subprocess.Popen[bytes]] = {}
        for size in (3, 5, 2):
            self.file(size).write_text(
                json.dumps(
                    {
                        "shards": [[each] for each in addresses[:size]],
                        "parameters": {
                            "folders": [str(folder / "saved")],
                            "save_seconds": 60,
                            "replication": {"store": store},
                            "tables": {
                                "item": {
                                    "dim": _DIM,
                                    "update_method": "sgd",
                                    "hyper": {"lr": 1.0},
                                    "initializer": "zeros",
                                }
                            },
                        },
                    }
                )
            )

    def file(self, size: int) -> Path:
        return self._folder / f"parameters-{size}.yaml"

    def start(self, shard: int, size: int) -> None:
        command = [sys.executable, "-m", "sparring", "serve", "--role", "parameters"]
        with (self._folder / f"server-{shard}.log").open("ab") as log:
            self.servers[shard] = subprocess.Popen(
                [*command, str(self.file(size)), "--shard", f"{shard + 1}/{size}"], stderr=log
            )

    def await_ready(self, size: int) -> None:
        end = time.monotonic() + _START_SECONDS
        while True:
            found: object = "some of the shards"
            try:
                with ParameterClient.from_config(self.file(size)) as client:
                    if len(client.describe(deadline_seconds=10.0).shards) == size:
                        return
            except SparringError as error:
                found = error
            if time.monotonic() > end:
                raise AssertionError(f"no servers within {_START_SECONDS} s: {found}")
            time.sleep(0.5)

    def resize(self, size: int) -> dict[str, Any]:
        command = [sys.executable, "-m", "sparring", "resize", str(self.file(size)), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"resize to {size} failed: {done.stderr[-2000:]}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def close(self) -> None:
        for each in self.servers.values():
            each.send_signal(signal.SIGTERM)
        for each in self.servers.values():
            each.wait()


def run(trials: int) -> Report:
    """Changes the number of shards from 3 to 5 and to 2 in each of `trials`."""
    if why := redis_server_missing():
        return Report(0, skipped=why)
    seen: Counter[str] = Counter()
    failures: list[str] = []
    for number in range(trials):
        with (
            tempfile.TemporaryDirectory(prefix="sparring-resizes-") as folder,
            RedisServer() as redis,
        ):
            _trial(_Service(Path(folder), redis.url), number, seen, failures)
    return Report(trials, seen, failures)


def _trial(service: _Service, number: int, seen: Counter[str], failures: list[str]) -> None:
    clients = [_Client(service.file(3), 100 * number + each) for each in range(_CLIENTS)]
    try:
        for shard in range(3):
            service.start(shard, 3)
        service.await_ready(3)
        for each in clients:
            each.start()
        # New servers start before the quiet time, because starting a process takes the CPU.
        for shard in (3, 4):
            service.start(shard, 5)
        service.await_ready(5)
        time.sleep(2.0)
        moments = [time.monotonic()]
        time.sleep(_QUIET_SECONDS)
        moments.append(time.monotonic())
        grown = service.resize(5)
        moments.append(time.monotonic())
        shrunk = service.resize(2)
        moments.append(time.monotonic())
        time.sleep(1.0)
        for each in clients:
            each.stop.set()
        for each in clients:
            each.join()
        for shard in (4, 3, 2):
            service.servers.pop(shard).terminate()
        with ParameterClient.from_config(service.file(2)) as client:
            rows = client.pull({"item": np.arange(_NUM_IDS)}, deadline_seconds=10).rows["item"]
            saved = client.save(f"after-{number}")
        counts = np.sum([each.counts for each in clients], axis=0)
        if not np.array_equal(rows, np.repeat(-counts[:, None], _DIM, axis=1)):
            failures.append(f"trial {number}: {np.sum(rows[:, 0] != -counts):,} rows differ")
        keys = np.concatenate([each.keys for each in scan_rows(open_snapshot(saved.url), "item")])
        if not np.array_equal(np.sort(keys), np.flatnonzero(counts)):
            failures.append(f"trial {number}: the snapshot contains other keys than were pushed")
        for each in clients:
            failures += [f"trial {number}: {why}" for why in each.failures]
        seen["rows moved"] += grown["rows"] + shrunk["rows"]
        _compare(clients, moments, number, seen, failures)
    finally:
        for each in clients:
            each.stop.set()
        service.close()


def _compare(
    clients: list[_Client],
    moments: list[float],
    number: int,
    seen: Counter[str],
    failures: list[str],
) -> None:
    begin, middle, _, end = moments
    for kind in ("push", "pull"):
        calls = [each for client in clients for each in client.calls if each[1] == kind]
        quiet = [seconds for at, _, seconds in calls if begin <= at < middle]
        moving = [seconds for at, _, seconds in calls if middle <= at < end]
        before, during = (1000 * float(np.quantile(each, 0.99)) for each in (quiet, moving))
        seen[f"{kind}es before" if kind == "push" else f"{kind}s before"] += len(quiet)
        seen[f"{kind}es during" if kind == "push" else f"{kind}s during"] += len(moving)
        seen[f"p99 of a {kind} before, µs"] = int(1000 * before)
        seen[f"p99 of a {kind} during, µs"] = int(1000 * during)
        seen[f"slowest {kind} during, µs"] = int(1e6 * max(moving))
        if during > 2 * before:
            failures.append(
                f"trial {number}: p99 of a {kind} is {during:.1f} ms during the moves and "
                f"{before:.1f} ms before"
            )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
