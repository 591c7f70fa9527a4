"""Server processes killed, stopped and cut off: two shards of two replicas, 30 trials of each kind.

`sparring serve` runs four times, with the native server (if it was built) and the one in Python in each
shard, each behind a TCP relay that can be interrupted like a cable: data wait
and arrive after it is connected again. Two clients call continuously, one that raises and one that flags,
while one replica, or both of one shard, fail and return. No pull may exceed its deadline by more than
10 %, no row may be wrong without a flag, and within 5 seconds of the return of the replicas all rows must
be returned again. If one replica fails, the other must reply within the same deadline.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from reliability.report import Report
from reliability.served_rows import NUM_KEYS, TABLE, Watch, rows_of
from reliability.small_snapshots import scratch_folder
from sparring import StepContainer, StorageChoice
from sparring_serve import ClientConfig, LookupClient, ShardReplicas
from sparring_serve.publishing.publisher import PublisherOptions, publish_newest

__all__ = ["TRIALS", "run"]

KINDS = ("killed", "stopped", "cut")
SCOPES = ("one replica", "one shard")
TRIALS = 30 * len(KINDS) * len(SCOPES)

DEADLINE_SECONDS = 1.5
_RECOVERY_SECONDS = 5.0
_START_SECONDS = 60.0


def run(trials: int) -> Report:
    """Runs trials of all kinds alternately."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    total, slowest = Watch(), 0.0
    kinds = [(kind, scope) for kind in KINDS for scope in SCOPES]
    with scratch_folder(in_memory=True) as folder, ExitStack() as running:
        config = _published(folder)
        # Started together, and then waited for.
        replicas = [
            [
                running.enter_context(_Replica(config, f"{shard}/2", front_end))
                for front_end in ("auto", "python")
            ]
            for shard in (1, 2)
        ]
        for each in (one for shard in replicas for one in shard):
            each.await_ready()
        for trial in range(trials):
            kind, scope = kinds[trial % len(kinds)]
            draw = random.Random(trial)
            shard = draw.choice(replicas)
            broken = shard if scope == "one shard" else [draw.choice(shard)]
            watch = Watch()
            seconds = _trial(draw, replicas, broken, kind, watch)
            counts[f"{kind}, {scope}"] += 1
            slowest = max(slowest, seconds)
            failures += [f"trial {trial}, {kind}, {scope}: {each}" for each in watch.failures]
            total.add(watch)
    found = {**counts, **total.counts()}
    found["longest recovery, milliseconds"] = round(slowest * 1e3)
    return Report(trials, found, failures)


def _trial(
    draw: random.Random,
    replicas: Sequence[Sequence[_Replica]],
    broken: Sequence[_Replica],
    kind: str,
    watch: Watch,
) -> float:
    """Returns the seconds from the return of the replicas until all clients had all rows."""
    shards = ShardReplicas(tuple(tuple(one.address for one in shard) for shard in replicas))
    must = "" if len(broken) > 1 else "one replica was running"
    with ExitStack() as closing:
        askers = []
        for on_failure in ("raise", "flag"):
            config = ClientConfig(deadline_seconds=DEADLINE_SECONDS, on_failure=on_failure)
            client = closing.enter_context(LookupClient(shards, config))
            askers.append(closing.enter_context(_Asker(client, must, seed=draw.randrange(1 << 30))))
        time.sleep(0.1)
        with _broken(broken, kind, draw.uniform(0.2, 2 * DEADLINE_SECONDS)):
            pass
        back = time.monotonic()
        for each in askers:
            each.await_whole(back, _RECOVERY_SECONDS)
    recovered = [each.recovered for each in askers]
    for each in askers:
        watch.add(each.watch)
    if any(each is None for each in recovered):
        watch.failures.append(f"not recovered within {_RECOVERY_SECONDS:g} s")
        return _RECOVERY_SECONDS
    return max(each - back for each in recovered if each is not None)


@contextmanager
def _broken(replicas: Sequence[_Replica], kind: str, seconds: float) -> Iterator[None]:
    """Makes replicas fail for a while; they are running again at the end."""
    for each in replicas:
        each.fail(kind)
    try:
        time.sleep(seconds)
        yield
    finally:
        for each in replicas:
            each.come_back(kind)
        for each in replicas:
            each.await_ready()


class _Asker:
    """A client that pulls on a separate thread until the end of the block."""

    def __init__(self, client: LookupClient, must: str, seed: int) -> None:
        self.watch = Watch()
        self.recovered: float | None = None
        """Start of the first complete pull after the return of the replicas."""
        self._client, self._must = client, must
        self._generator = np.random.default_rng(seed)
        self._back, self._end = threading.Event(), threading.Event()
        self._whole = threading.Event()
        # The first pull of a client also requests the tables.
        self._pull()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> _Asker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def await_whole(self, back: float, seconds: float) -> None:
        """Waits for a reply with all rows to a pull that ended after `back`."""
        self._back.set()
        self._whole.wait(max(0.0, back + seconds - time.monotonic()))

    def _pull(self) -> bool:
        count = int(self._generator.integers(1, NUM_KEYS))
        keys = self._generator.choice(NUM_KEYS, count).astype(np.int64)
        return self.watch.pull(self._client, keys, must=self._must)

    def _ask(self) -> None:
        while not self._end.is_set():
            is_back = self._back.is_set()
            if self._pull() and is_back and self.recovered is None:
                self.recovered = time.monotonic()
                self._whole.set()
            time.sleep(0.005)


def _published(folder: Path) -> Path:
    """Publishes all rows; returns the configuration file of the service."""
    keys = np.arange(NUM_KEYS, dtype=np.int64)
    with StepContainer() as container:
        container.declare(TABLE, StorageChoice("memory"))
        container.assign(TABLE.name, keys, rows_of(1, keys))
        container.save(str(folder / "runs/step-1"))
    publish_newest(folder / "runs", folder / "served", PublisherOptions({}))
    config = folder / "serving.yaml"
    # Servers know their shard; addresses are those of relays, which only clients need.
    config.write_text(
        f"snapshots: {folder / 'served'}\nshards: [['127.0.0.1:1'], ['127.0.0.1:2']]\n"
        "server: {threads: 2}\n"
    )
    return config


class _Replica:
    """One server process behind a relay."""

    def __init__(self, config: Path, shard: str, front_end: str) -> None:
        self._command = [sys.executable, "-m", "sparring", "serve", str(config), "--shard", shard]
        self._command.append(f"server.front_end={front_end}")
        self._relay: _Relay | None = None
        self._start("127.0.0.1:0")

    def __enter__(self) -> _Replica:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        if self._relay is not None:
            self._relay.close()

    @property
    def address(self) -> str:
        """Address of the relay."""
        assert self._relay is not None
        return self._relay.address

    def _start(self, address: str) -> None:
        self._process = subprocess.Popen(
            [*self._command, f"server.address={address}"], stderr=subprocess.PIPE, text=True
        )
        self._is_ready = False

    def await_ready(self) -> None:
        """Waits until the process listens."""
        if self._is_ready:
            return
        assert self._process.stderr is not None
        limit = threading.Timer(_START_SECONDS, self._process.kill)
        limit.start()
        said = []
        for line in self._process.stderr:
            said.append(line)
            if "ready on" in line:
                limit.cancel()
                self._server = line.split("ready on ")[1].split(": step")[0]
                self._is_ready = True
                break
        else:
            raise AssertionError(f"a server did not start: {''.join(said)}")
        if self._relay is None:
            self._relay = _Relay(self._server)

    def fail(self, kind: str) -> None:
        if kind == "cut":
            assert self._relay is not None
            self._relay.flows.clear()
        elif kind == "stopped":
            os.kill(self._process.pid, signal.SIGSTOP)
        else:
            self._process.kill()
            self._process.communicate()

    def come_back(self, kind: str) -> None:
        if kind == "cut":
            assert self._relay is not None
            self._relay.flows.set()
        elif kind == "stopped":
            os.kill(self._process.pid, signal.SIGCONT)
        else:
            self._start(self._server)


class _Relay:
    """Forwards TCP to a server. While `flows` is not set, data wait, as with a disconnected cable."""

    def __init__(self, server: str) -> None:
        host, _, port = server.rpartition(":")
        self._server = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.flows = threading.Event()
        self.flows.set()
        self._begin(self._accept)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.flows.set()

    def _begin(self, target: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._begin(self._connect, client)

    def _connect(self, client: socket.socket) -> None:
        self.flows.wait()
        try:
            server = socket.create_connection(self._server, 5.0)
        except OSError:
            # Not listening: the connection is closed at once, as the kernel of the other machine does.
            client.close()
            return
        server.settimeout(None)
        self._begin(self._pass_on, client, server)
        self._begin(self._pass_on, server, client)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                self.flows.wait()
                target.sendall(data)
        # The end of a connection is not forwarded either while nothing flows.
        self.flows.wait()
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
