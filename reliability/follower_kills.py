"""Kills and suspends replicas and clients of a service with followers: `python -m reliability
follower_kills`.

Two or three replicas of a shard and two clients are separate processes; Redis is their store. Each
trial kills (SIGKILL), suspends (SIGSTOP, for longer than the lease) or ends (SIGTERM) one of them, or
restarts Redis with or without its data, while the clients push. These promises are checked:

kept      an acknowledged push is applied once; push n of a client adds 1 to a row of its own. With
          `acks: leader`, a push may be missing if `ShardRestartedError` contains its number
once      no row has more than one push, and the row of all pushes contains their number
errors    clients continue without an error, except `ShardRestartedError` if Redis lost its data or
          `acks` is `leader`
equal     at the end, the rows of two replicas are bit-identical

A killed client is replaced by one with another name. Its last push may be applied or not.
"""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from reliability.report import Report
from sparring.errors import SparringError
from sparring_redis.testing.server import RedisServer, redis_server_missing
from sparring_serve import ParameterClient, ShardReplicas, ShardRestartedError
from sparring_serve.replication.owner import shard_key
from sparring_serve.replication.records import ShardState
from sparring_serve.replication.store import open_store

__all__ = ["TRIALS", "run"]

TRIALS = 300
KINDS = (
    *("kill leader", "kill follower", "kill client", "stop leader", "stop follower", "end leader"),
    *("restart store", "empty store"),
)
_SERVICES = ((2, "follower"), (3, "follower"), (2, "leader"))
"""Number of replicas, and `acks`. Of ten trials, the first service has eight."""
_LEASE_SECONDS, _SECONDS = 1.0, 240.0
_CHECK_EVERY, _SAVE_EVERY = 10, 15
_PUSHES = 1 << 20
"""Keys per client: push n of client c has the key c * _PUSHES + n. Key 0 is in every push."""


class _Service:
    """Replicas of one shard, their store, and clients that push."""

    def __init__(self, folder: Path, redis: RedisServer, replicas: int, acks: str) -> None:
        ports = [_free_port() for _ in range(replicas)]
        self.redis, self.acks, self.may_report_loss = redis, acks, acks == "leader"
        self.addresses = tuple(f"127.0.0.1:{each}" for each in ports)
        self.folder = folder
        self.config = folder / "parameters.yaml"
        self.config.write_text(
            f"shards: [{list(self.addresses)}]\n"
            f"parameters:\n  folders: ['{folder / 'saved'}']\n"
            f"  replication: {{store: '{redis.url}', acks: {acks}, "
            f"without_follower: fail, lease_seconds: {_LEASE_SECONDS}}}\n"
            "  tables: {item: {dim: 2, update_method: sgd, hyper: {lr: 1.0}, initializer: zeros}}\n"
        )
        self._store = open_store(redis.url, timeout_seconds=30)
        self._key = shard_key(str(folder / "saved"), 0, 1)
        self.servers = [self._start(each) for each in range(replicas)]
        self.client = ParameterClient(ShardReplicas((self.addresses,)))
        self.num_clients = 0
        self.clients = [self.start_client() for _ in range(2)]

    def _start(self, replica: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "sparring", "serve", "--role", "parameters"]
        command += [str(self.config), "--replica", str(replica + 1)]
        with (self.folder / f"server-{replica}.log").open("ab") as log:
            return subprocess.Popen(command, stderr=log, stdout=log)

    def start_again(self, replica: int) -> None:
        self.servers[replica] = self._start(replica)

    def start_client(self) -> subprocess.Popen[bytes]:
        self.num_clients += 1
        command = [sys.executable, "-m", "reliability.follower_kills", str(self.num_clients)]
        command += [str(self.acknowledged(self.num_clients)), *self.addresses]
        with (self.folder / "clients.log").open("ab") as log:
            return subprocess.Popen(command, stderr=log)

    def acknowledged(self, client: int) -> Path:
        return self.folder / f"client-{client}"

    def state(self) -> ShardState | None:
        value = self._store.read(self._key)
        return None if value is None else ShardState.decode(value)

    def await_follower(self) -> ShardState:
        """Waits until all replicas are in sync."""
        end = time.monotonic() + _SECONDS
        while True:
            state = self.state()
            if state is not None and len(state.in_sync) == len(self.servers):
                return state
            if time.monotonic() > end:
                raise AssertionError(f"no follower in sync within {_SECONDS} s: {state}")
            time.sleep(0.02)

    def await_push(self, ending: subprocess.Popen[bytes] | None = None) -> float:
        """Waits until a process, if one is given, has ended and is started again, and a client has one
        more acknowledged push.

        Returns:
            The longest time without a push.
        """
        before, last, longest = self.num_acknowledged(), time.monotonic(), 0.0
        while True:
            if ending is not None and ending.poll() is not None:
                # Without it, two replicas have no follower, so no push is acknowledged.
                self.start_again(self.servers.index(ending))
                ending = None
            count, now = self.num_acknowledged(), time.monotonic()
            if count > before:
                before, last, longest = count, now, max(longest, now - last)
                if ending is None:
                    return longest
            if now > last + _SECONDS:
                raise AssertionError(f"no push within {_SECONDS} s: {self.state()}")
            time.sleep(0.02)

    def num_acknowledged(self) -> int:
        files = [self.acknowledged(each + 1) for each in range(self.num_clients)]
        return sum(each.stat().st_size for each in files if each.exists())

    def read(self) -> tuple[dict[int, list[str]], dict[int, list[int]]]:
        """Returns errors and acknowledged pushes per client, without those that were reported lost."""
        lines = {
            each + 1: self.acknowledged(each + 1).read_text().splitlines()
            for each in range(self.num_clients)
            if self.acknowledged(each + 1).exists()
        }
        errors, pushes = {}, {}
        for client, each in lines.items():
            reports = [line for line in each if line.startswith("restarted")]
            lost = {int(number) for line in reports for number in line.split()[1:]}
            allowed = reports if self.may_report_loss else []
            errors[client] = [line for line in each if not line.isdecimal() and line not in allowed]
            pushes[client] = [
                int(line) for line in each if line.isdecimal() and int(line) not in lost
            ]
        return errors, pushes

    def rows(self) -> dict[int, float]:
        """Returns the rows of all keys that may exist."""
        _, pushes = self.read()
        keys = [0]
        for client, numbers in pushes.items():
            keys += [client * _PUSHES + each for each in range(1, max(numbers, default=0) + 3)]
        found = self.client.pull({"item": np.array(keys)}, deadline_seconds=120).rows["item"]
        return dict(zip(keys, (-found[:, 0]).tolist(), strict=True))

    def check(self) -> list[str]:
        """Checks the promises, except `equal`."""
        errors, pushes = self.read()
        rows = self.rows()
        failures = [f"errors: client {c}: {each[0]}" for c, each in errors.items() if each]
        for client, numbers in pushes.items():
            for each in numbers:
                if (count := rows[client * _PUSHES + each]) != 1:
                    failures.append(
                        f"kept: push {each} of client {client} was applied {count:g} times"
                    )
        failures += [
            f"once: row {key} has {count:g}" for key, count in rows.items() if key and count > 1
        ]
        return failures

    def close(self) -> None:
        self.client.close()
        for each in [*self.servers, *self.clients]:
            each.send_signal(signal.SIGCONT)
            each.kill()
            each.wait()
        self._store.close()


def run(trials: int) -> Report:
    """Makes `trials` kills and suspensions."""
    if missing := redis_server_missing():
        return Report(trials, skipped=missing)
    seen: Counter[str] = Counter()
    failures: list[str] = []
    draw = random.Random(5)
    few = trials // 10
    for (replicas, acks), some in zip(_SERVICES, (trials - 2 * few, few, few), strict=True):
        failures += _run_service(replicas, acks, some, draw, seen)
    return Report(trials, seen, failures)


def _run_service(
    replicas: int, acks: str, trials: int, draw: random.Random, seen: Counter[str]
) -> list[str]:
    failures: list[str] = []
    if not trials:
        return failures
    # A client that is killed cannot be told of its lost pushes.
    kinds = [each for each in KINDS if acks == "follower" or each != "kill client"]
    settings = {"appendonly": "yes", "appendfsync": "always"}
    with (
        tempfile.TemporaryDirectory(prefix="sparring-follower-kills-") as folder,
        RedisServer(settings) as redis,
    ):
        service = _Service(Path(folder), redis, replicas, acks)
        try:
            for number in range(trials):
                kind = draw.choice(kinds)
                service.await_follower()
                service.await_push()
                if number % _SAVE_EVERY == _SAVE_EVERY - 1:
                    service.client.save(f"trial-{number}", accept_loss=True, deadline_seconds=120)
                    seen["saves"] += 1
                time.sleep(draw.random() * 0.2)
                seconds = _fault(service, kind, draw)
                seen[kind] += 1
                what = f"ms without a push, longest: {kind}"
                seen[what] = max(seen[what], round(1000 * seconds))
                if number % _CHECK_EVERY == _CHECK_EVERY - 1:
                    failures += [f"trial {number}: {each}" for each in service.check()]
            failures += _end(service, seen)
        except AssertionError as error:
            failures.append(f"{replicas} replicas, acks {acks}: {error}")
            for each in range(replicas):
                print(Path(folder, f"server-{each}.log").read_text()[-3000:], file=sys.stderr)
        finally:
            service.close()
    return failures


def _fault(service: _Service, kind: str, draw: random.Random) -> float:
    """Returns the longest time without an acknowledged push after the fault, in seconds."""
    what, _, whom = kind.partition(" ")
    pause = 0.0
    if whom == "store":
        service.redis.kill()
        if what == "empty":
            service.may_report_loss = True
            shutil.rmtree(service.redis.folder / "appendonlydir")
        time.sleep(_LEASE_SECONDS * draw.choice([0, 0.3, 2.0]))
        service.redis.start()
    elif whom == "client":
        victim = draw.randrange(2)
        service.clients[victim].kill()
        service.clients[victim].wait()
        service.clients[victim] = service.start_client()
    else:
        pause = _fault_of_server(service, what, whom, draw)
    return max(pause, service.await_push())


def _fault_of_server(service: _Service, what: str, whom: str, draw: random.Random) -> float:
    leader = service.addresses.index(service.await_follower().leader)
    followers = [each for each in range(len(service.servers)) if each != leader]
    replica = leader if whom == "leader" else draw.choice(followers)
    process = service.servers[replica]
    if what == "stop":
        process.send_signal(signal.SIGSTOP)
        time.sleep(_LEASE_SECONDS * draw.choice([0.3, 1.5, 3.0]))
        process.send_signal(signal.SIGCONT)
        return 0.0
    process.terminate() if what == "end" else process.kill()
    return service.await_push(process)


def _end(service: _Service, seen: Counter[str]) -> list[str]:
    service.await_follower()
    for each in service.clients:
        each.terminate()
        each.wait()
    failures = service.check()
    rows = service.rows()
    seen["acknowledged pushes"] += sum(len(each) for each in service.read()[1].values())
    applied = sum(count for key, count in rows.items() if key)
    if applied != rows[0]:
        failures.append(f"once: {rows[0]:g} pushes were applied, and the rows contain {applied:g}")
    state = service.await_follower()
    leader = service.addresses.index(state.leader)
    # With SIGTERM, a leader waits until its followers have all records.
    service.servers[leader].terminate() if service.acks == "leader" else service.servers[
        leader
    ].kill()
    service.servers[leader].wait()
    if service.rows() != rows:
        failures.append("equal: the rows of the follower differ from those of its leader")
    return failures


def _push_forever(client: int, addresses: tuple[str, ...], path: Path) -> None:
    draw = random.Random(client)
    stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stop.append(number))
    with (
        path.open("a", buffering=1) as acknowledged,
        ParameterClient(ShardReplicas((addresses,))) as service,
    ):
        number = 0
        while not stop:
            number += 1
            keys = np.array([0, client * _PUSHES + number])
            wait = draw.choice(["queued", "applied"])
            try:
                service.push(
                    {"item": (keys, np.ones((2, 2)))}, wait=wait, deadline_seconds=_SECONDS
                )
                print(number, file=acknowledged)
            except ShardRestartedError as error:
                print(number, file=acknowledged)  # the push itself was completed
                reported: Any = error.lost
                lost = [each for some in reported.values() for each in some]
                print("restarted", *lost, file=acknowledged)
            except SparringError as error:
                print(f"push {number}: {error}".replace("\n", " "), file=acknowledged)
            time.sleep(0.02)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


if __name__ == "__main__":
    _push_forever(int(sys.argv[1]), tuple(sys.argv[3:]), Path(sys.argv[2]))
