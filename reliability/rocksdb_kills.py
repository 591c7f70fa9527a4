"""RocksDB: kills a writing process at random moments; no acknowledged write may be lost.

`python -m reliability.rocksdb_kills [--trials N] [--seed N]`. In each trial a process opens the table of
the previous trial, reports that, and upserts, erases and clears in an endless loop; it reports each call
that has returned. It is killed (SIGKILL) some time after it started to write or, in every fourth trial,
to open. Then the table must contain exactly the result of the reported calls, optionally with the
complete result of the one call in progress, and its size must be the number of its rows.

Buffers are small, so flushes and compactions are in progress most of the time, and each trial replays a
log. Every other trial syncs each write.
"""

from __future__ import annotations

import argparse
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reliability.report import Report
from sparring import open_storage
from sparring.contracts import Storage, TableConfig

__all__ = ["TRIALS", "run"]

TRIALS = 300

TABLE = TableConfig("item", 32)
OPTIONS = {"write_buffer_bytes": 1 << 16, "block_cache_bytes": 1 << 20, "known_keys_bytes": 1 << 15}
NUM_KEYS = 5_000
MAX_SECONDS = 0.4
"""Maximum time between the start of writing, or of opening, and the kill."""
START_SECONDS = 60
"""Maximum time that a process may take to start."""

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the storage, completely determined by its number."""

    number: int
    kind: str
    keys: Keys

    @classmethod
    def of(cls, number: int, seed: int) -> Call:
        generator = np.random.default_rng((seed, number))
        kind = generator.choice(["upsert", "erase", "clear"], p=[0.79, 0.2, 0.01])
        count = int(generator.choice([1, 30, 400]))
        # Keys are spread over all of int64, including both ends.
        places = generator.choice(NUM_KEYS, count, replace=False)
        return cls(
            number,
            str(kind),
            np.linspace(-(2**63), 2**63 - 1025, NUM_KEYS)[places].astype(np.int64),
        )

    def make(self, storage: Storage) -> None:
        if self.kind == "upsert":
            storage.upsert(self.keys, rows_of(self.keys, self.number))
        elif self.kind == "erase":
            storage.erase(self.keys)
        else:
            storage.clear()

    def note(self, held: dict[int, int]) -> None:
        """Applies the call to `held`, which maps each key to the call that wrote its row."""
        if self.kind == "upsert":
            held.update(dict.fromkeys(self.keys.tolist(), self.number))
        elif self.kind == "erase":
            for key in self.keys.tolist():
                held.pop(key, None)
        else:
            held.clear()


def rows_of(keys: Keys, numbers: int | npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Returns ``(n, dim)`` rows whose elements all contain the key and the call that wrote them."""
    told = (keys // 2**40 % 1009 + np.asarray(numbers) * 1013) % 2**24
    return np.repeat(told[:, None], TABLE.dim, axis=1).astype(np.float32)


@dataclass
class Trials:
    """State and results of the trials so far."""

    folder: Path
    seed: int
    held: dict[int, int] = field(default_factory=dict)
    next_call: int = 0
    failures: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: {
            "processes killed before the table was open": 0,
            "calls acknowledged": 0,
            "calls in progress that were complete": 0,
            "acknowledged calls lost or mixed": 0,
        }
    )

    def make(self, trial: int) -> None:
        """Kills one process and checks the table."""
        is_synced = trial % 2 == 1
        acknowledged = kill_writer(
            self,
            is_synced=is_synced,
            after=b"o" if trial % 4 == 3 else b"w",
            chance=random.Random(f"{self.seed} {trial}"),
        )
        if not acknowledged.is_open:
            self.counts["processes killed before the table was open"] += 1
        self.counts["calls acknowledged"] += acknowledged.num_calls
        for number in range(self.next_call, self.next_call + acknowledged.num_calls):
            Call.of(number, self.seed).note(self.held)
        self.next_call += acknowledged.num_calls
        with_one_more = dict(self.held)
        Call.of(self.next_call, self.seed).note(with_one_more)
        problem = self.compare(with_one_more)
        if problem:
            self.counts["acknowledged calls lost or mixed"] += 1
            self.failures.append(
                f"seed {self.seed}, trial {trial}, call {self.next_call}: {problem}"
            )

    def compare(self, with_one_more: Mapping[int, int]) -> str:
        """Returns what is wrong with the table; empty if it is correct."""
        with open_storage("rocksdb", TABLE, path=self.folder, **OPTIONS) as storage:
            chunks = list(storage.scan())
            found = {
                key: row.tobytes()
                for chunk in chunks
                for key, row in zip(chunk.keys.tolist(), chunk.rows, strict=True)
            }
            if storage.size != len(found):
                return f"size {storage.size}, rows {len(found)}"
        for number, expected in enumerate((self.held, with_one_more)):
            keys = np.array(list(expected), np.int64)
            rows = rows_of(keys, np.array(list(expected.values()), np.int64))
            if found == {key: row.tobytes() for key, row in zip(expected, rows, strict=True)}:
                if number and with_one_more != self.held:
                    self.counts["calls in progress that were complete"] += 1
                if number:
                    self.held = dict(with_one_more)
                    self.next_call += 1
                return ""
        return (
            f"{len(found)} rows differ from the {len(self.held)} or {len(with_one_more)} expected"
        )


@dataclass(frozen=True, slots=True)
class Acknowledged:
    is_open: bool
    num_calls: int


def kill_writer(
    trials: Trials, *, is_synced: bool, after: bytes, chance: random.Random
) -> Acknowledged:
    """Starts a process that writes, kills it some time after it reported `after`, and returns its
    reports."""
    command = [sys.executable, "-m", "reliability.rocksdb_kills", "--write", str(trials.folder)]
    command += ["--seed", str(trials.seed), "--first", str(trials.next_call)]
    command += ["--sync"] if is_synced else []
    root = str(Path(__file__).parents[1])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    }
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        told = b""
        try:
            while after not in told:
                ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
                more = os.read(process.stdout.fileno(), 1) if ready else b""
                if not more:
                    raise RuntimeError(f"the writing process did not start: {command}")
                told += more
            time.sleep(chance.uniform(0, MAX_SECONDS))
        finally:
            process.send_signal(signal.SIGKILL)
        told += process.stdout.read()
    return Acknowledged(is_open=b"w" in told, num_calls=told.count(b"."))


def continue_writing(folder: Path, *, seed: int, first: int, is_synced: bool) -> None:
    """Runs in the process to kill. Reports ``o`` before it opens, ``w`` before it writes, and a dot for
    each call that has returned."""
    os.write(1, b"o")
    with open_storage("rocksdb", TABLE, path=folder, sync_writes=is_synced, **OPTIONS) as storage:
        os.write(1, b"w")
        number = first
        while True:
            Call.of(number, seed).make(storage)
            os.write(1, b".")
            number += 1


def run(trials: int, *, seed: int = 1) -> Report:
    """Kills `trials` processes one after another, all on one table."""
    if find_spec("sparring_rocksdb") is None:
        return Report(0, skipped="sparring-rocksdb is not installed")
    with tempfile.TemporaryDirectory(prefix="sparring-kills-") as folder:
        made = Trials(Path(folder) / "rows", seed)
        num_made = 0
        for trial in range(trials):
            num_made += 1
            made.make(trial)
            if made.failures:
                break  # the contents of the table are unknown
        return Report(num_made, made.counts, made.failures)


def main() -> int:
    """Returns 1 if a write was lost."""
    parser = argparse.ArgumentParser(prog="python -m reliability.rocksdb_kills")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--sync", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write is not None:
        continue_writing(given.write, seed=given.seed, first=given.first, is_synced=given.sync)
    report = run(given.trials, seed=given.seed)
    print(f"{report.trials} processes killed, {len(report.failures)} failures {report.skipped}")
    for what, count in report.counts.items():
        print(f"  {what}: {count:,}")
    for failure in report.failures:
        print(f"  FAILED: {failure}")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
