"""Two servers of a published model, and a client that records which versions its replies contain."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from socket import socket
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.errors import SparringError
from sparring_serve import LookupClient, RowStatus

__all__ = ["READY_NAME", "Reply", "Servers", "array_hashes", "rows_hash"]

_START_SECONDS = 120.0
_PAUSE_SECONDS = 0.002
READY_NAME = "servers-ready"
"""File that exists when both servers have started."""

Reply = tuple[int, str, frozenset[str]]
"""Step of the version, `rows_hash` and `array_hashes` of a reply."""

Keys = Mapping[str, npt.NDArray[np.int64]]


class Servers:
    """Starts two replicas when a version is published, and calls them on a thread until `close`.

    Args:
        folder: folder for files of the servers.
        served: folder of serving snapshots.
        keys: table → keys that each call requests.
    """

    def __init__(self, folder: Path, served: Path, keys: Keys) -> None:
        self._folder, self._served, self._keys = folder, served, keys
        self.addresses = [f"127.0.0.1:{_free_port()}" for _ in range(2)]
        self._config = folder / "serving.yaml"
        server = {"poll_seconds": 0.2, "keep_versions": 5, "threads": 1}
        client = {"deadline_seconds": 5.0, "consistency": "one_version"}
        content = {
            "snapshots": str(served),
            "shards": [self.addresses],
            "server": server,
            "client": client,
        }
        self._config.write_text(json.dumps(content))
        self._processes: list[tuple[subprocess.Popen[bytes], Path]] = []
        self._num_starts = 0
        self.ready_file = folder / READY_NAME
        self._is_closed = threading.Event()
        self.replies: Counter[Reply] = Counter()
        self.errors: Counter[str] = Counter()
        """Name of an error → number of calls that reported it."""
        self.mixed: list[str] = []
        """Replies whose rows and parameters have different versions according to the servers."""
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def kill_one(self, draw: random.Random) -> bool:
        """Kills a server and starts it again. Returns False if one of the servers is not ready."""
        if len(self._processes) < 2 or not all(map(self._is_ready, (0, 1))):
            return False
        number = draw.randrange(2)
        process, _ = self._processes[number]
        process.kill()
        process.wait()
        self._processes[number] = self._start(number)
        return True

    def wait_for_step(self, step: int) -> bool:
        """Waits for a reply with the version of a step, and returns whether there was one."""
        end = time.monotonic() + _START_SECONDS
        while not any(each[0] == step for each in list(self.replies)):
            if time.monotonic() >= end or not self._thread.is_alive():
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        """Ends the servers; raises what the thread raised."""
        self._is_closed.set()
        self._thread.join()
        for process, _ in self._processes:
            process.kill()
            process.wait()
        if self._failure is not None:
            raise self._failure

    def _start(self, number: int) -> tuple[subprocess.Popen[bytes], Path]:
        self._num_starts += 1
        log = self._folder / f"server-{self._num_starts}.txt"
        # One replica is the native server, if it was built.
        front_end = ("auto", "python")[number]
        words = ["serve", str(self._config), "--replica", str(number + 1)]
        command = [sys.executable, "-m", "sparring", *words, f"server.front_end={front_end}"]
        with log.open("wb") as file:
            return subprocess.Popen(command, stdout=file, stderr=file), log

    def _is_ready(self, number: int) -> bool:
        process, log = self._processes[number]
        text = log.read_text()
        assert process.poll() is None, f"server {number + 1} has ended: {text[-3000:]}"
        return "ready on" in text

    def _run(self) -> None:
        try:
            while not any(self._served.glob("step-*")):
                if self._is_closed.wait(0.02):
                    return
            self._processes = [self._start(0), self._start(1)]
            end = time.monotonic() + _START_SECONDS
            while not all(map(self._is_ready, (0, 1))):
                assert time.monotonic() < end, "the servers are not ready"
                if self._is_closed.wait(0.02):
                    return
            self.ready_file.touch()
            with LookupClient.from_config(self._config) as client:
                while not self._is_closed.wait(_PAUSE_SECONDS):
                    with suppress(SparringError):
                        self._call(client)
        except Exception as error:  # `close` raises it.
            self._failure = error

    def _call(self, client: LookupClient) -> None:
        try:
            rows = client.pull(self._keys)
            model = client.model(version=rows.version.hash)
        except SparringError as error:
            self.errors[type(error).__name__] += 1
            raise
        allowed = (RowStatus.FRESH, RowStatus.ABSENT)
        flags = {name: np.isin(each, allowed).all() for name, each in rows.status.items()}
        if not all(flags.values()):
            self.errors["replies with flagged rows"] += 1
            return
        if model.version != rows.version:
            self.mixed.append(f"rows of {rows.version}, parameters of {model.version}")
        found = {name: each[rows.found[name]] for name, each in rows.rows.items()}
        keys = {name: each[rows.found[name]] for name, each in self._keys.items()}
        arrays = array_hashes(model.parameters)
        self.replies[rows.version.step, rows_hash(keys, found), arrays] += 1


def rows_hash(keys: Keys, rows: Mapping[str, npt.NDArray[Any]]) -> str:
    """Returns a hash of the rows of tables, by table and key."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(keys):
        order = np.argsort(keys[name])
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(keys[name][order]))
        digest.update(np.ascontiguousarray(rows[name][order]))
    return digest.hexdigest()


def array_hashes(arrays: Mapping[str, Any]) -> frozenset[str]:
    """Returns a hash of each array; names are ignored."""
    return frozenset(
        hashlib.blake2b(repr(each.shape).encode() + each.tobytes(), digest_size=16).hexdigest()
        for each in map(np.asarray, arrays.values())
    )


def _free_port() -> int:
    """Returns a port below the range that outgoing connections use, so that it remains free."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
