"""Kills processes that compute parts of a result, and repeats them until the result is complete.

Half of the processes run `sparring recommend` for all users of a run, the others compute neighbors. After
each kill at a random moment, every part must have the same bytes as without a kill. When a result is
complete, the next trial begins in an empty folder.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from reliability.report import Report
from reliability.small_snapshots import scratch_folder
from sparring import Snapshot, SnapshotWriter, TableConfig, TableDescription
from sparring.contracts import ScanChunk

__all__ = ["TRIALS", "run"]

TRIALS = 200
_NUM_KEYS, _DIM, _PART_ROWS = 1_200, 16, 24

_NEIGHBORS = f"""
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
_RECOMMEND = f"""
import sys
import torch
from sparring_cli.application import main
url, output = sys.argv[1:]
print("ready", flush=True)
words = ["recommend", url, "--all-users", "--new", "-k", "8", "--part-users", "{_PART_ROWS}"]
sys.exit(main([*words, "--output", output]))
"""
_CONFIG = """
seed: 1
threads: 1
data: {kind: table, path: visits.csv, categorical: [user, item], required: [user, item]}
model: {kind: two_towers, embedding_dim: 16, user: [user], item: [item]}
storage: {backend: memory}
report: {path: null}
snapshots: {url: run}
training: {epochs: 1}
"""


def run(trials: int) -> Report:
    """Kills `trials` processes."""
    try:
        import sparring_packed  # noqa: F401 - the search is part of it
        import sparring_train  # noqa: F401 - computes the parts
    except ImportError as error:
        return Report(trials, skipped=f"requires {error.name}")
    counts: Counter[str] = Counter()
    failures: list[str] = []
    with scratch_folder(in_memory=True) as folder:
        jobs = [("neighbors", _NEIGHBORS, _save(folder / "step-000000001").url)]
        if find_spec("torch") is not None:
            jobs.append(("recommend", _RECOMMEND, _train(folder)))
        for number, (name, child, url) in enumerate(jobs):
            share = trials * (number + 1) // len(jobs) - trials * number // len(jobs)
            output = folder / name
            failures += _kill_processes(name, [child, url], output, share, counts)
    return Report(trials, dict(counts), failures)


def _kill_processes(
    name: str, child: Sequence[str], folder: Path, trials: int, counts: Counter[str]
) -> Iterator[str]:
    """Yields failures."""
    begin = time.monotonic()
    _run(child, folder / "whole", None)
    seconds = time.monotonic() - begin
    expected = _contents(folder / "whole")
    output = folder / "0"
    for trial in range(trials):
        kill_after = random.Random(trial).uniform(0, seconds / 2)
        is_killed = _run(child, output, kill_after)
        counts[f"{name}: {'killed' if is_killed else 'ended before the kill'}"] += 1
        found = _contents(output)
        counts[f"{name}: parts compared"] += len(found)
        wrong = [each for each, data in found.items() if expected.get(each) != data]
        if wrong or (not is_killed and found != expected):
            yield (
                f"{name}, trial {trial}, killed after {kill_after:.4f} s: {len(found)} of "
                f"{len(expected)} files, other bytes in {', '.join(wrong) or 'none'}"
            )
        if not is_killed:
            counts[f"{name}: results complete"] += 1
            output = folder / str(trial + 1)
    _run(child, output, None)
    if _contents(output) != expected:
        yield f"{name}: the last result differs from the first one"


def _run(child: Sequence[str], output: Path, kill_after: float | None) -> bool:
    """Runs a child, kills it after some seconds of computing, and returns whether it was killed."""
    command = [sys.executable, "-c", *child, str(output)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            process.communicate(timeout=kill_after)
        except subprocess.TimeoutExpired:
            process.kill()
        status = process.wait()
    if status not in {0, -9}:
        raise RuntimeError(f"a child ended with status {status}")
    return status != 0


def _contents(folder: Path) -> dict[str, bytes]:
    """Returns the complete files of a result."""
    if not folder.is_dir():
        return {}
    return {each.name: each.read_bytes() for each in folder.iterdir() if each.name[0] != "."}


def _train(folder: Path) -> str:
    """Trains a model of users and items, and returns the URL of its run."""
    pairs = np.random.default_rng(0).integers(0, (_NUM_KEYS, 4_000), (20_000, 2))
    lines = [f"{user},{item}\n" for user, item in pairs.tolist()]
    (folder / "visits.csv").write_text("".join(["user,item\n", *lines]))
    (folder / "run.yaml").write_text(_CONFIG)
    command = [sys.executable, "-m", "sparring", "train", "run.yaml"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return str(folder / "run")


def _save(path: Path) -> Snapshot:
    table = TableDescription.of(TableConfig("item", _DIM))
    rows = np.random.default_rng(0).standard_normal((_NUM_KEYS, _DIM), np.float32)
    writer = SnapshotWriter(str(path), step=1)
    chunk = ScanChunk(np.arange(_NUM_KEYS), rows, np.zeros(_NUM_KEYS, np.uint64))
    writer.write_table(table, [chunk], [])
    writer.finish()
    return writer.commit()
