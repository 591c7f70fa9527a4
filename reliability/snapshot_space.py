"""A full disk, and a disk on which any operation fails.

First a small file system in memory is filled to random degrees before each save, so that it runs out of
space at random places. Then each disk operation of a save fails in turn. Each time the error must be one
of sparring's, the older snapshot must load, and the next save, with free space, must succeed. Mounting
requires root; without it, only failing calls are tested.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reliability.report import Report
from reliability.small_snapshots import check_latest, save, scratch_folder
from sparring import retain
from sparring.errors import SnapshotIOError
from sparring_testing.faults.faulty_disk import faulty_disk

__all__ = ["TRIALS", "Outcomes", "continue_saving", "run", "save_acknowledged", "try_save"]

TRIALS = 600
_DISK_BYTES = 2 << 20


class Outcomes:
    """Results of the trials so far."""

    def __init__(self) -> None:
        self.counts = {
            "no space left on a small disk": 0,
            "a call that failed": 0,
            "saved despite the fault": 0,
            "typed errors": 0,
            "older snapshots loaded": 0,
            "saves after the failure": 0,
        }
        self.failures: list[str] = []
        self.acknowledged = 0
        self.step = 0


def run(trials: int) -> Report:
    """Half of the trials fill a disk, if mounting is possible; the others make a call fail."""
    outcomes = Outcomes()
    with scratch_folder() as parent:
        try:
            with _small_disk(parent / "disk") as disk:
                for trial in range(trials // 2):
                    _fill_and_save(disk, random.Random(trial), outcomes)
            rest = trials - trials // 2
        except PermissionError as error:
            outcomes.counts[f"small disk left out: {error}"] = 0
            rest = trials
    outcomes.acknowledged = 0
    with scratch_folder(in_memory=True) as folder:
        save_acknowledged(folder, outcomes)
        calls: list[str] = []
        with faulty_disk(calls.append):
            save(folder / "dry", 1)
        for trial in range(rest):
            number = errno.EIO if trial // len(calls) % 2 else errno.ENOSPC
            _fail_and_save(folder, trial % len(calls), number, outcomes)
    return Report(trials, outcomes.counts, outcomes.failures)


def _fill_and_save(disk: Path, seed: random.Random, outcomes: Outcomes) -> None:
    folder, ballast = disk / "runs", disk / "ballast"
    if not outcomes.acknowledged:
        save_acknowledged(folder, outcomes)
    # The free space is between nothing and slightly more than a save needs.
    free = _free_bytes(disk)
    ballast.write_bytes(bytes(max(0, free - seed.randrange(300 << 10))))
    try_save(folder, "no space left on a small disk", outcomes)
    ballast.unlink()
    continue_saving(folder, f"no space left, seed {seed}", outcomes)


def _fail_and_save(folder: Path, failing: int, number: int, outcomes: Outcomes) -> None:
    counter = itertools.count()

    def fail(point: str) -> None:
        if next(counter) == failing:
            raise OSError(number, "injected", point)

    with faulty_disk(fail):
        try_save(folder, "a call that failed", outcomes)
    continue_saving(folder, f"call {failing} failed with {errno.errorcode[number]}", outcomes)


def try_save(folder: Path, kind: str, outcomes: Outcomes) -> None:
    """Saves while there is a fault.

    Args:
        kind: the kind of fault, under which it is counted.
    """
    outcomes.step += 1
    try:
        save(folder, outcomes.step)
        outcomes.acknowledged = outcomes.step
        outcomes.counts["saved despite the fault"] += 1
    except SnapshotIOError:
        outcomes.counts[kind] += 1
        outcomes.counts["typed errors"] += 1
    # Any other error violates the promise.
    except Exception as error:
        outcomes.failures.append(f"{kind}: {type(error).__name__}: {error}")


def continue_saving(folder: Path, what: str, outcomes: Outcomes) -> None:
    """Checks that the newest acknowledged snapshot loads, and saves again without faults.

    Args:
        what: description of the fault, for failures.
    """
    wrong = check_latest(folder, outcomes.acknowledged)
    if wrong:
        outcomes.failures.append(f"{what}: {wrong}")
    else:
        outcomes.counts["older snapshots loaded"] += 1
    try:
        save_acknowledged(folder, outcomes)
        outcomes.counts["saves after the failure"] += 1
    except Exception as error:
        outcomes.failures.append(f"after {what}: {type(error).__name__}: {error}")
    retain(folder, 2, stale_seconds=0)


def save_acknowledged(folder: Path, outcomes: Outcomes) -> None:
    """Saves without faults."""
    outcomes.step += 1
    save(folder, outcomes.step)
    outcomes.acknowledged = outcomes.step


def _free_bytes(disk: Path) -> int:
    found = os.statvfs(disk)
    return found.f_bavail * found.f_frsize


@contextmanager
def _small_disk(path: Path) -> Iterator[Path]:
    """Mounts a file system in memory of two megabytes.

    Raises:
        PermissionError: mounting is not permitted.
    """
    path.mkdir()
    try:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", path],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise PermissionError(f"cannot run 'mount': {error}") from error
    if mounted.returncode:
        raise PermissionError(mounted.stderr.strip() or "mount failed")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)
