"""Time of `sparring blame` for one key over a chain of 1,000 deltas, if no file is in memory.

A container saves a table and then deltas over it, as a run with `snapshots.history` does. Before each
search, which runs in a new process, the pages of all files are removed from the page cache. The reference
reads the manifests and indexes of all deltas, and also the rows for a key that all of them contain, in
the same state and with as many threads, and ignores the bytes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from sparring import SaveOptions, StepContainer, StorageChoice, TableConfig

__all__ = ["measure"]

DIM, NUM_ROWS, NUM_DELTAS, CHANGED_ROWS, ROUNDS = 8, 10_000_000, 1_000, 5_000, 5
THREADS = 8
BAR_SECONDS = 1.0
_RARE_EVERY = 100
_RARE, _FREQUENT = 0, 1
"""Keys that every 100th delta contains, and every delta."""

_SEARCH = """
import json, sys, time
from sparring_train.run.row_changes import find_changes
began = time.perf_counter()
changes, versions = find_changes(sys.argv[1], "item", int(sys.argv[2]))
print(json.dumps([time.perf_counter() - began, len(changes), len(versions)]))
"""


def measure(scale: Scale) -> list[Figure]:
    """Returns the figures, with temporary files that are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="sparring-blame-") as folder:
        return measure_in(Path(folder), scale)


def measure_in(folder: Path, scale: Scale) -> list[Figure]:
    """Writes a chain to `folder`, unless it contains one already, and searches it."""
    deltas = 20 if scale.is_quick else NUM_DELTAS
    num_rows, changed = scale.rows(NUM_ROWS), scale.rows(CHANGED_ROWS)
    figures = []
    if not any(folder.iterdir()):
        seconds = _write(folder, num_rows, deltas, changed)
        files = [each for each in folder.glob("*/*") if each.is_file()]
        size = sum(each.stat().st_size for each in files)
        of_index = sum(each.stat().st_size for each in files if "changed_keys" in each.name)
        figures.append(
            Figure(
                f"save {deltas:,} deltas of {changed:,} rows over {num_rows:,} rows of dim {DIM}",
                f"{seconds:.1f} s, {size / 1e9:.3f} GB",
                detail=f"of these, {of_index / 1e6:.1f} MB are indexes",
            )
        )
    for key, kind in ((_RARE, f"every {_RARE_EVERY}th delta"), (_FREQUENT, "every delta")):
        names = "manifest.json", "*changed_keys*", *(["rows*"] if key == _FREQUENT else [])
        read = [each for name in names for each in folder.glob(f"*/{name}")]
        searches, limits = [], []
        for _ in range(scale.rounds(ROUNDS)):
            _drop(folder.glob("*/*"))
            searches.append(_search(folder, key, deltas))
            _drop(folder.glob("*/*"))
            limits.append(_read(read))
        seconds, limit = median(searches), median(limits)
        figures.append(
            Figure(
                f"search for a key of {kind}, cold",
                f"{seconds:.2f} s",
                bar=f"{BAR_SECONDS} s" if key == _RARE else None,
                is_reached=seconds <= BAR_SECONDS if key == _RARE else None,
                detail=f"{limit:.2f} s to read {len(read):,} files with {THREADS} threads",
            )
        )
    return figures


def _write(folder: Path, num_rows: int, num_deltas: int, changed: int) -> float:
    random = np.random.default_rng(7)
    began = time.perf_counter()
    options = SaveOptions(is_base=True, index_keys=True, share=1.0)
    with StepContainer() as container:
        container.declare(TableConfig("item", DIM), StorageChoice("memory"))
        storage = container.storage("item")
        for begin in range(0, num_rows, 1 << 20):
            keys = np.arange(begin, min(begin + (1 << 20), num_rows))
            storage.upsert(keys, np.ones((len(keys), DIM), np.float32))
        base = str(folder / f"step-{0:012d}")
        container.save(base, options=options)
        for step in range(1, num_deltas + 1):
            fixed = [_FREQUENT, *([_RARE] if step % _RARE_EVERY == 0 else [])]
            drawn = random.integers(2, num_rows, changed - len(fixed))
            keys = np.unique([*fixed, *drawn])
            storage.upsert(keys, random.random((len(keys), DIM), np.float32))
            url = str(folder / f"step-{step:012d}")
            container.save(url, base=base, options=options)
            base = url
    return time.perf_counter() - began


def _drop(paths: Iterable[Path]) -> None:
    """Removes the pages of files from the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _search(folder: Path, key: int, num_deltas: int) -> float:
    words = [sys.executable, "-c", _SEARCH, str(folder), str(key)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    seconds, num_changes, num_versions = json.loads(done.stdout)
    expected = num_deltas // _RARE_EVERY if key == _RARE else num_deltas
    # The first version contains the row, too.
    if (num_changes, num_versions) != (expected + 1, num_deltas + 1):
        raise AssertionError(
            f"found {num_changes} changes in {num_versions} versions, expected {expected + 1} in "
            f"{num_deltas + 1}"
        )
    return float(seconds)


def _read(paths: Iterable[Path]) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in threads.map(Path.read_bytes, paths):
            pass
    return time.perf_counter() - began
