"""Kills processes that compute parts of a result, and repeats them until the result is complete.

After each kill at a random moment, every part must have the same bytes as without a kill. When a result
is complete, the next trial begins in an empty folder.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from reliability.report import Report
from reliability.small_snapshots import scratch_folder
from sparring import Snapshot, SnapshotWriter, TableConfig, TableDescription
from sparring.contracts import ScanChunk

__all__ = ["TRIALS", "run"]

TRIALS = 200
_NUM_KEYS, _DIM, _PART_ROWS = 1_200, 16, 24

_CHILD = f"""
import sys
from sparring import open_snapshot
from sparring_train.recommend.all_rows import NeighborJob
from sparring_train.recommend.part_files import PartFolder
from sparring_train.recommend.part_jobs import compute_parts
url, output = sys.argv[1:]
job = NeighborJob(open_snapshot(url), "item", 8, "dot", {_PART_ROWS})
print("ready", flush=True)
compute_parts(job, PartFolder(output))
"""


def run(trials: int) -> Report:
    """Kills `trials` processes."""
    try:
        import sparring_packed  # noqa: F401 - the search is part of it
        import sparring_train  # noqa: F401 - computes the parts
    except ImportError as error:
        return Report(trials, skipped=f"requires {error.name}")
    counts = {"killed": 0, "ended before the kill": 0, "results complete": 0, "parts compared": 0}
    failures: list[str] = []
    with scratch_folder(in_memory=True) as folder:
        url = _save(folder / "step-000000001").url
        begin = time.monotonic()
        _run(url, folder / "whole", None)
        seconds = time.monotonic() - begin
        expected = _contents(folder / "whole")
        output = folder / "0"
        for trial in range(trials):
            kill_after = random.Random(trial).uniform(0, seconds / 4)
            is_killed = _run(url, output, kill_after)
            counts["killed" if is_killed else "ended before the kill"] += 1
            found = _contents(output)
            counts["parts compared"] += len(found)
            wrong = [name for name, data in found.items() if expected.get(name) != data]
            if wrong or (not is_killed and found != expected):
                failures.append(
                    f"trial {trial}, killed after {kill_after:.4f} s: {len(found)} of {len(expected)} "
                    f"files, other bytes in {', '.join(wrong) or 'none'}"
                )
            if not is_killed:
                counts["results complete"] += 1
                output = folder / str(trial + 1)
        _run(url, output, None)
        if _contents(output) != expected:
            failures.append("the last result differs from the first one")
    return Report(trials, counts, failures)


def _run(url: str, output: Path, kill_after: float | None) -> bool:
    """Runs a child, kills it after some seconds of computing, and returns whether it was killed."""
    command = [sys.executable, "-c", _CHILD, url, str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            status = child.wait(kill_after)
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
    if status not in {0, -9}:
        raise RuntimeError(f"a child ended with status {status}")
    return status != 0


def _contents(folder: Path) -> dict[str, bytes]:
    """Returns the complete files of a result."""
    if not folder.is_dir():
        return {}
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name[0] != "."}


def _save(path: Path) -> Snapshot:
    table = TableDescription.of(TableConfig("item", _DIM))
    rows = np.random.default_rng(0).standard_normal((_NUM_KEYS, _DIM), np.float32)
    writer = SnapshotWriter(str(path), step=1)
    chunk = ScanChunk(np.arange(_NUM_KEYS), rows, np.zeros(_NUM_KEYS, np.uint64))
    writer.write_table(table, [chunk], [])
    writer.finish()
    return writer.commit()
