"""Kills a process that trains, saves a container, removes old snapshots, and compacts chains.

Like `snapshot_kills`, including everything around the snapshot writer: a child loads the newest snapshot,
changes a third of the rows in each step, and saves full snapshots and deltas alternately with
`container.save`, with retention; the chain of every fourth is compacted. In half of the trials two ranks,
threads of the child, save together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from reliability.report import Report
from reliability.snapshot_kills import run_kills
from sparring import (
    LocalGroup,
    Retention,
    SaveOptions,
    Snapshot,
    StepContainer,
    StorageChoice,
    scan_rows,
)
from sparring.contracts import Collective, TableConfig
from sparring.kernels import functions as kernels
from sparring.snapshot.retention import compact, latest_snapshot
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

__all__ = ["TRIALS", "run"]

TRIALS = 400
_TABLE = TableConfig("item", 4)
_KEYS = np.arange(240, dtype=np.int64)
_PARTS = 3
_SNAPSHOTS_OF_A_CHAIN = 3
_COMPACTED = 4
_KEPT = 2


def run(trials: int) -> Report:
    """Runs half of the trials on one rank, half on two."""
    counts: dict[str, int] = {}
    failures: list[str] = []
    for num_ranks, part in ((1, trials - trials // 2), (2, trials // 2)):
        if not part:
            continue
        report = run_kills(part, partial(_train, num_ranks), _check)
        for what, count in report.counts.items():
            counts[f"{what}, ranks: {num_ranks}"] = count
        failures += [f"ranks: {num_ranks}: {each}" for each in report.failures]
    return Report(trials, counts, failures)


def _train(
    num_ranks: int, folder: Path, steps: Iterable[int], acknowledge: Callable[[int], None]
) -> None:
    group = LocalGroup(num_ranks, deadline_seconds=30.0)
    with ThreadPoolExecutor(num_ranks) as threads:
        ranks = [
            threads.submit(_train_rank, group.join(rank), folder, list(steps), acknowledge)
            for rank in range(num_ranks)
        ]
        for rank in ranks:
            rank.result()


def _train_rank(
    collective: Collective, folder: Path, steps: list[int], acknowledge: Callable[[int], None]
) -> None:
    rendezvous = ThreadRendezvous(collective.world_size)
    mine = rendezvous.shard_map().owners[kernels.partition(_KEYS)] == collective.rank
    with StepContainer(collective=collective, rendezvous=rendezvous) as container:
        container.declare(_TABLE, StorageChoice("memory"))
        storage = container.storage("item")
        latest = latest_snapshot(folder)
        if latest is not None:
            container.load(latest.url, is_base=True)
        options = SaveOptions(
            retention=Retention(str(folder), _KEPT), is_base=True, deadline_seconds=30.0
        )
        for number, step in enumerate(steps):
            keys = _KEYS[mine & (step % _PARTS == _KEYS % _PARTS)]
            storage.upsert(keys, _rows(keys, np.full(len(keys), step)))
            container.counters.steps = step
            base = container.saves.base if number % _SNAPSHOTS_OF_A_CHAIN else None
            url = str(folder / f"step-{step:09d}")
            container.save(url, base=base, options=options)
            if collective.rank == 0:
                acknowledge(step)
                if number % _COMPACTED == _COMPACTED - 1:
                    compact(url, folder / f"whole-{step:09d}")


def _rows(keys: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Returns the rows of keys that were last written in the given steps."""
    return ((keys[:, None] * 31 + np.arange(_TABLE.dim) + steps[:, None] * 7) % 1009).astype(
        np.float32
    )


def _check(snapshot: Snapshot) -> None:
    """Raises AssertionError if the contents differ from those saved."""
    last_steps = snapshot.step - (snapshot.step - _KEYS) % _PARTS
    expected = _KEYS[last_steps > 0]
    found: list[int] = []
    for chunk in scan_rows(snapshot, "item"):
        assert (chunk.rows == _rows(chunk.keys, last_steps[chunk.keys])).all(), "other rows"
        found += chunk.keys.tolist()
    assert sorted(found) == expected.tolist(), f"{len(found)} keys"
