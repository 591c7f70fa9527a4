"""Kills a process that saves: at random moments, and at every disk operation.

A child saves one snapshot after another, including deltas, until it is killed (SIGKILL), and reports each
one whose `commit` returned. Then each visible snapshot must be complete, and no acknowledged one may be
missing. The next child continues in the same folder.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from reliability.report import Report
from reliability.small_snapshots import check, check_latest, save, scratch_folder
from sparring import Snapshot, list_snapshots, open_snapshot, retain
from sparring.errors import SnapshotError
from sparring_testing.faults.faulty_disk import faulty_disk

__all__ = ["TRIALS", "run", "run_kills"]

TRIALS = 1_000
_SAVES = 4
"""Number of saves that reach each fault point."""
_MAX_SAVES = 10_000
"""Maximum number of saves of a child that is killed."""


SaveSteps = Callable[[Path, Iterable[int], Callable[[int], None]], None]
"""Saves one snapshot after another into a folder, and reports the step of each committed one."""


def run(trials: int) -> Report:
    """Tests the snapshot writer alone."""
    return run_kills(trials, _save, check)


def run_kills(
    trials: int, save_steps: SaveSteps, check_snapshot: Callable[[Snapshot], None]
) -> Report:
    """Kills children alternately at each fault point in turn and at random moments.

    Args:
        trials: number of children.
        save_steps: function that a child runs.
        check_snapshot: raises an error if a snapshot is wrong.
    """
    with scratch_folder(in_memory=True) as folder:
        _points(folder, save_steps)
        # In a folder with snapshots, as for all children except the first.
        points = Counter(_points(folder, save_steps))
        begin = time.monotonic()
        _points(folder, save_steps)
        whole_seconds = time.monotonic() - begin
    counts = {
        "killed at a named fault point": 0,
        "killed at a random moment": 0,
        "different fault points": len(points),
        "snapshots acknowledged": 0,
        "snapshots read back and compared": 0,
    }
    failures: list[str] = []
    named = itertools.cycle(sorted(points))
    with scratch_folder(in_memory=True) as folder:
        acknowledged = 0
        for trial in range(trials):
            seed = random.Random(trial)
            if trial % 2:
                kill_after, why = seed.uniform(0, whole_seconds), "at a random moment"
                saves = partial(save_steps, folder, _endless(acknowledged + 1))
                status, steps = _in_child(saves, lambda _: None, kill_after)
            else:
                point = next(named)
                skipped = seed.randrange(min(3, points[point]))
                why = f"at {point!r}, skipping {skipped}"
                saves = partial(save_steps, folder, _endless(acknowledged + 1))
                status, steps = _in_child(saves, _killer(point, skipped))
            is_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
            if is_killed:
                kind = "a random moment" if trial % 2 else "a named fault point"
                counts[f"killed at {kind}"] += 1
            else:
                failures.append(f"trial {trial}: the child ended by itself, not {why}: {status}")
            counts["snapshots acknowledged"] += len(steps)
            acknowledged = max([acknowledged, *steps])
            wrong = check_latest(folder, acknowledged, check_snapshot) or _check_all(
                folder, counts, check_snapshot
            )
            if wrong:
                failures.append(f"trial {trial}, killed {why}: {wrong}")
            # A snapshot may be complete although the child died before it reported it.
            acknowledged = max([acknowledged, *map(_step, list_snapshots(folder))])
            retain(folder, 2, stale_seconds=0)
    return Report(trials, counts, failures)


def _endless(first: int) -> range:
    return range(first, first + _MAX_SAVES)


def _check_all(
    folder: Path, counts: dict[str, int], check_snapshot: Callable[[Snapshot], None]
) -> str:
    for path in folder.iterdir():
        if path.name.startswith("."):
            continue
        try:
            check_snapshot(open_snapshot(path))
        except (SnapshotError, AssertionError) as error:
            return f"{path.name} is visible but not complete: {error}"
        counts["snapshots read back and compared"] += 1
    return ""


def _step(url: str) -> int:
    return open_snapshot(url).step


def _points(folder: Path, save_steps: SaveSteps) -> list[str]:
    """Returns the fault points of a few more saves into a folder."""
    points: list[str] = []
    first = max(map(_step, list_snapshots(folder)), default=0) + 1
    with faulty_disk(points.append):
        save_steps(folder, range(first, first + _SAVES), lambda _: None)
    return points


def _killer(point: str, skipped: int) -> Callable[[str], None]:
    seen = itertools.count()

    def kill(found: str) -> None:
        if found == point and next(seen) == skipped:
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def _save(folder: Path, steps: Iterable[int], acknowledge: Callable[[int], None]) -> None:
    base = None
    for step in steps:
        snapshot = save(folder, step, base=base)
        acknowledge(step)
        # Every other snapshot is a delta based on the previous one.
        base = None if base else snapshot.url


def _in_child(
    saves: Callable[[Callable[[int], None]], None],
    hook: Callable[[str], None],
    kill_after: float | None = None,
) -> tuple[int, list[int]]:
    """Returns how a child ended, and the steps that it acknowledged."""
    readable, writable = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            with faulty_disk(hook):
                saves(lambda step: _tell(writable, step))
            status = 0
        finally:
            os._exit(status)
    os.close(writable)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    told = b""
    while piece := os.read(readable, 4096):
        told += piece
    os.close(readable)
    return os.waitpid(child, 0)[1], [int(line) for line in told.split()]


def _tell(writable: int, step: int) -> None:
    os.write(writable, b"%d\n" % step)
