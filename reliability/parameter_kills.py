"""Kills servers of the parameter service during saves, pushes and loads: `python -m reliability
parameter_kills`.

Two servers are separate processes. Each trial starts a save, a push or a load, kills one server (SIGKILL)
at a random moment of it, starts it again, and checks these promises:

whole     each visible snapshot is complete, byte for byte
held      a snapshot whose save returned contains each push that was acknowledged before, once
once      a push that is sent again after the kill is applied once on each shard
again     an interrupted load can be repeated, and gives the rows of the snapshot

Each push subtracts 1 from every element of its rows, which start at zero, so a row contains the number of
pushes.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reliability.report import Report
from sparring import list_snapshots, open_snapshot, scan_rows
from sparring.errors import SparringError
from sparring_cli import verify_snapshot
from sparring_serve import ParameterClient, ShardReplicas

__all__ = ["TRIALS", "run"]

TRIALS = 300
KINDS = ("save", "push", "load")
_NUM_KEYS, _DIM, _START_SECONDS = 2_000, 8, 240.0
_KEYS = np.arange(_NUM_KEYS)

Counts = npt.NDArray[np.float32]


class _Service:
    """Two servers, and a client of them."""

    def __init__(self, folder: Path) -> None:
        ports = [_free_port() for _ in range(2)]
        self.config = folder / "parameters.yaml"
        self.folder = folder / "saved"
        self.config.write_text(
            f"shards: [['127.0.0.1:{ports[0]}'], ['127.0.0.1:{ports[1]}']]\n"
            f"parameters: {{folders: ['{self.folder}'], save_seconds: 60, tables: {{item: {{dim: {_DIM}, "
            "update_method: sgd, hyper: {lr: 1.0}, initializer: zeros}}}\n"
        )
        self.map = ShardReplicas(tuple((f"127.0.0.1:{each}",) for each in ports))
        self._servers = [self._start(0), self._start(1)]
        self.client = ParameterClient.from_config(self.config)
        self.await_ready()

    def _start(self, shard: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "sparring", "serve", "--role", "parameters"]
        with (self.config.parent / f"server-{shard}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, str(self.config), "--shard", f"{shard + 1}/2"], stderr=log
            )

    def kill(self, shard: int) -> None:
        self._servers[shard].send_signal(signal.SIGKILL)
        self._servers[shard].wait()

    def start_again(self, shard: int) -> None:
        self._servers[shard] = self._start(shard)

    def await_ready(self) -> None:
        end = time.monotonic() + _START_SECONDS
        while True:
            found: object = "only one of two shards"
            try:
                if len(self.client.describe(deadline_seconds=_START_SECONDS).shards) == 2:
                    return
            except SparringError as error:  # no server listens yet
                found = error
            if time.monotonic() > end:
                raise AssertionError(f"no servers within {_START_SECONDS} s: {found}")

    def push(self) -> None:
        gradients = np.ones((_NUM_KEYS, _DIM), np.float32)
        self.client.push({"item": (_KEYS, gradients)}, wait="applied", deadline_seconds=60)

    def counts(self) -> Counts:
        """Returns the number of pushes in each row."""
        return _counted(self.client.pull({"item": _KEYS}, deadline_seconds=10).rows["item"])

    def close(self) -> None:
        self.client.close()
        for each in self._servers:
            each.kill()
            each.wait()


def run(trials: int) -> Report:
    """Kills a server in each of `trials`: during a save, a push and a load, alternately."""
    seen: Counter[str] = Counter()
    failures: list[str] = []
    draw = random.Random(11)
    with tempfile.TemporaryDirectory(prefix="sparring-parameter-kills-") as folder:
        service = _Service(Path(folder))
        try:
            service.push()
            service.client.save("step-0")
            for number in range(trials):
                kind, shard = KINDS[number % len(KINDS)], draw.randrange(2)
                delay = draw.random() * {"save": 0.12, "push": 0.012, "load": 0.08}[kind]
                trial = {"save": _save, "push": _push, "load": _load}[kind]
                where = (
                    f"trial {number}: {kind}, shard {shard + 1} killed after {delay * 1e3:.1f} ms"
                )
                seen[f"killed during a {kind}"] += 1
                for each in trial(service, number, shard, delay, seen):
                    failures.append(f"{where}: {each}")
        finally:
            service.close()
    return Report(trials, seen, failures)


def _save(
    service: _Service, number: int, shard: int, delay: float, seen: Counter[str]
) -> list[str]:
    service.push()
    before = service.counts()
    url = f"{service.folder}/step-{number + 1}"
    saved = _killed_amid(service, shard, delay, lambda: service.client.save(url))
    service.await_ready()
    found, failures = list_snapshots(str(service.folder)), []
    for each in found:
        problems = verify_snapshot(open_snapshot(each)).problems
        if problems:
            failures.append(f"whole: {each} has {problems[0]}")
    if saved:
        seen["saves that returned"] += 1
        if not any(each.endswith(url.rpartition("/")[2]) for each in found):
            return [*failures, f"held: {url} does not exist"]
    if any(each.endswith(url.rpartition("/")[2]) for each in found):
        seen["visible snapshots"] += 1
        if not np.array_equal(_saved_counts(url), before):
            failures.append(
                "held: the pushes in the snapshot differ from those acknowledged before it"
            )
    return failures


def _push(
    service: _Service, number: int, shard: int, delay: float, seen: Counter[str]
) -> list[str]:
    if number:
        service.client.save(f"{service.folder}/step-{number + 1}")
    base = service.counts()
    done = _killed_amid(service, shard, delay, service.push)
    seen["pushes that returned"] += done
    service.await_ready()
    found, own = service.counts(), service.map.shard_of(_KEYS) == shard
    failures = []
    if done and not np.array_equal(found[~own], base[~own] + 1):
        failures.append("once: rows of the running shard do not contain the push exactly once")
    if not (
        np.isin(found[own] - base[own], (0, 1)).all() and len(set(found[own] - base[own])) == 1
    ):
        failures.append("once: rows of the killed shard contain the push more than once")
    return failures


def _load(service: _Service, _: int, shard: int, delay: float, seen: Counter[str]) -> list[str]:
    newest = list_snapshots(str(service.folder))[-1]
    service.push()
    done = _killed_amid(service, shard, delay, lambda: service.client.load(newest))
    seen["loads that returned"] += done
    service.await_ready()
    service.client.load(newest)
    if not np.array_equal(service.counts(), _saved_counts(newest)):
        return [f"again: rows differ from the rows of {newest}"]
    return []


def _killed_amid(service: _Service, shard: int, delay: float, call: Callable[[], object]) -> bool:
    """Kills a server while `call` runs, and starts it again; returns whether the call returned."""
    killer = threading.Timer(delay, _kill_and_start, (service, shard))
    killer.start()
    try:
        call()
    except SparringError:
        return False
    else:
        return True
    finally:
        killer.join()


def _kill_and_start(service: _Service, shard: int) -> None:
    service.kill(shard)
    service.start_again(shard)


def _saved_counts(url: str) -> Counts:
    rows = np.zeros((_NUM_KEYS, _DIM), np.float32)
    for chunk in scan_rows(open_snapshot(url), "item"):
        rows[chunk.keys] = chunk.rows
    return _counted(rows)


def _counted(rows: npt.NDArray[np.float32]) -> Counts:
    if not (rows == rows[:, :1]).all():
        raise AssertionError("a row is torn")
    counts: Counts = -rows[:, 0]
    return counts


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
