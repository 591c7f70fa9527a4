"""Replicas of a shard: pushes survive their leader, and a suspended leader answers nothing."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.errors import InvalidArgumentError
from sparring_redis.testing.server import RedisServer, redis_server_missing
from sparring_serve import ParameterClient, ShardReplicas
from sparring_testing.processes.waiting import free_ports, wait_until

pytestmark = pytest.mark.skipif(redis_server_missing() is not None, reason="needs redis-server")

_KEYS = np.arange(100)
_SECONDS = 240.0


class Shard:
    """Two replicas of one shard, each a process."""

    def __init__(self, folder: Path, store: str) -> None:
        self.addresses = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
        self.folder = folder
        self.config = folder / "parameters.yaml"
        self.config.write_text(
            f"shards: [[{', '.join(repr(each) for each in self.addresses)}]]\n"
            f"parameters:\n  folders: ['{folder / 'saved'}']\n"
            f"  replication: {{store: '{store}', without_follower: flag}}\n"
            "  tables: {item: {dim: 4, update_method: sgd, hyper: {lr: 1.0}, initializer: zeros}}\n"
        )
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        for each in range(2):
            self.start(each)

    def start(self, replica: int) -> None:
        command = [sys.executable, "-m", "sparring", "serve", str(self.config), "--role"]
        command += ["parameters", "--replica", str(replica + 1)]
        with (self.folder / f"log{replica}").open("ab") as log:
            self.processes[replica] = subprocess.Popen(command, stdout=log, stderr=log)

    def client(self) -> ParameterClient:
        return ParameterClient(ShardReplicas((self.addresses,)))

    def log(self) -> str:
        return "".join((self.folder / f"log{each}").read_text() for each in range(2))

    def close(self) -> None:
        for each in self.processes.values():
            each.send_signal(signal.SIGCONT)
            each.kill()
            each.wait()


@pytest.fixture
def shard(tmp_path: Path, own_redis_server: RedisServer, closing: ExitStack) -> Shard:
    return closing.enter_context(contextlib.closing(Shard(tmp_path, own_redis_server.url)))


def push(client: ParameterClient, **options: Any) -> Any:
    gradients = {"item": (_KEYS, -np.ones((len(_KEYS), 4)))}
    return client.push(gradients, wait="applied", deadline_seconds=_SECONDS, **options)


def wait_for_follower(client: ParameterClient) -> int:
    """Pushes until a follower is in sync; returns the number of pushes."""
    counts = itertools.count(1)
    wait_until(lambda: next(counts) and not push(client).unreplicated, _SECONDS)
    return next(counts) - 1


def rows(client: ParameterClient) -> set[float]:
    return set(client.pull({"item": _KEYS}, deadline_seconds=_SECONDS).rows["item"].ravel())


@pytest.mark.parametrize(
    "fault",
    [
        signal.SIGKILL,
        *(pytest.param(each, marks=pytest.mark.slow) for each in (signal.SIGSTOP, signal.SIGTERM)),
    ],
)
def test_acknowledged_pushes_survive_their_leader(shard: Shard, fault: signal.Signals) -> None:
    with shard.client() as client:
        count = wait_for_follower(client)
        leader = 0 if "leading shard 1" in (shard.folder / "log0").read_text() else 1
        for _ in range(20):
            push(client)
        count += 20
        os.kill(shard.processes[leader].pid, fault)
        push(client)
        assert rows(client) == {count + 1}
        if fault != signal.SIGSTOP:
            shard.processes[leader].wait()
            shard.start(leader)
        else:
            os.kill(shard.processes[leader].pid, signal.SIGCONT)
        count += 1 + wait_for_follower(client)
        # The former leader follows now, and takes over again.
        os.kill(shard.processes[1 - leader].pid, signal.SIGKILL)
        push(client)
        assert rows(client) == {count + 1}


@pytest.mark.slow  # test_replica.py and `reliability.follower_crashes` join followers without processes
def test_a_save_lets_a_follower_join_without_old_pushes(shard: Shard) -> None:
    with shard.client() as client:
        count = wait_for_follower(client)
        shard.processes[1].kill()
        shard.processes[1].wait()
        push(client)
        client.save("a")
        count += 1
        shard.start(1)
        count += wait_for_follower(client)
        folder = shard.folder / "saved.push-log"
        segments = [sorted(each.glob("*.log")) for each in (folder, folder / "replica-2")]
        assert len(segments) == 2
        shard.processes[0].kill()
        assert rows(client) == {count}


def test_a_client_cannot_exhaust_the_epochs(shard: Shard) -> None:
    with shard.client() as client:
        count = wait_for_follower(client)
        client._session.epochs.take(0, (1 << 63) - 1)
        with pytest.raises(InvalidArgumentError, match="start the client again"):
            client.pull({"item": _KEYS}, deadline_seconds=_SECONDS)
    with shard.client() as client:
        assert rows(client) == {count}
