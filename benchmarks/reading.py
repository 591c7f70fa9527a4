"""Data of kind `table`, compared with its lower limit: reading the same files with pyarrow.

Ours decodes, hashes strings, splits off the test part, shuffles, and creates batches; the limit only
decodes. Both use pyarrow's threads, and keep freed memory as `sparring train` does. Memory is
measured in a separate process that reads one epoch.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.scale import Scale

__all__ = ["measure"]

NUM_ROWS, NUM_LARGE_ROWS, NUM_COLUMNS, GROUP_ROWS = 500_000, 10_000_000, 10, 100_000
ROUNDS = 5
BATCH_SIZE = 4096
BARS = {"dictionary strings": 1.2, "plain strings": 1.2, "integers": 1.2}
NAMES = [f"c{number}" for number in range(NUM_COLUMNS)]

_EPOCH = """
import resource, sys
from benchmarks.reading import open_reader
data = open_reader(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = sum(len(batch) for batch in data.batches(0))
print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def measure(scale: Scale) -> list[Figure]:
    """Measures reading times relative to pyarrow, and memory."""
    if find_spec("sparring_train") is None:
        return [Figure("reading", "not measured", detail="needs sparring-train")]
    from sparring_train.run.allocator import keep_freed_memory

    keep_freed_memory()
    num_rows = scale.rows(NUM_ROWS)
    figures = []
    with TemporaryDirectory() as folder:
        for kind, bar in BARS.items():
            path = write_log(Path(folder) / f"{kind}.parquet", kind, num_rows)
            timings = alternate(
                {
                    "pyarrow": lambda path=path: _read_with_pyarrow(path),
                    "ours": lambda path=path: _read(path),
                    "in order": lambda path=path: _read(path, shuffle=False),
                },
                rounds=scale.rounds(ROUNDS),
                warm_up=1,
            )
            for name, what in (("ours", "shuffled"), ("in order", "shuffle: false")):
                found = median(ratios(timings[name], timings["pyarrow"]))
                figures.append(
                    Figure(
                        f"{NUM_COLUMNS} columns of {kind}, {what}",
                        f"{found:.2f} ×",
                        f"≤ {bar} ×",
                        found <= bar,
                        f"ParquetFile.iter_batches, {num_rows / timings[name].median / 1e6:.2f} M rows/s",
                        found,
                    )
                )
        figures.append(_memory(Path(folder), scale.rows(NUM_LARGE_ROWS)))
    return figures


def _memory(folder: Path, num_rows: int) -> Figure:
    path = write_log(folder / "large.parquet", "dictionary strings", num_rows)
    ran = subprocess.run(
        [sys.executable, "-c", _EPOCH, path], capture_output=True, text=True, check=True
    )
    rows, megabytes = ran.stdout.split()
    return Figure(
        f"an epoch of {num_rows:,} rows × {NUM_COLUMNS} columns",
        f"{megabytes} MiB",
        detail=f"{num_rows * NUM_COLUMNS * 8 >> 20:,} MiB of ids; {int(rows):,} rows trained on",
    )


def open_reader(path: str, **keys: Any) -> Any:
    """Opens the data set of a single process."""
    from sparring_train.config.sections.table import TableData
    from sparring_train.data.dataset import OpenRequest
    from sparring_train.data.table.dataset import open_table

    section = TableData(
        kind="table", path=path, label="y", categorical=NAMES, batch_size=BATCH_SIZE, **keys
    )
    return open_table(section, OpenRequest(seed=1, label="binary"))


def _read(path: str, **keys: Any) -> None:
    rows = sum(len(batch) for batch in open_reader(path, **keys).batches(0))
    assert rows > 0


def _read_with_pyarrow(path: str) -> None:
    from pyarrow import parquet

    for _ in parquet.ParquetFile(path).iter_batches(columns=[*NAMES, "y"]):
        pass


def write_log(path: Path, kind: str, num_rows: int) -> str:
    """Writes integers; or strings: 10,000 distinct ones with a dictionary, or all distinct."""
    import pyarrow
    from pyarrow import parquet

    writer = None
    for columns in _columns(kind, num_rows):
        table = pyarrow.table(columns)
        if writer is None:
            writer = parquet.ParquetWriter(
                path, table.schema, use_dictionary=kind.startswith("dictionary")
            )
        writer.write_table(table, row_group_size=GROUP_ROWS)
    assert writer is not None
    writer.close()
    return str(path)


def _columns(kind: str, num_rows: int) -> Iterator[dict[str, Any]]:
    import pyarrow

    random = np.random.default_rng(0)
    pool = pyarrow.array([f"value_{number:06d}" for number in range(10_000)])
    for begin in range(0, num_rows, GROUP_ROWS):
        count = min(GROUP_ROWS, num_rows - begin)
        columns: dict[str, Any] = {"y": random.integers(0, 2, count).astype(np.int8)}
        for name in NAMES:
            if kind == "integers":
                columns[name] = random.integers(0, 1_000_000, count)
            elif kind == "dictionary strings":
                places = np.minimum(random.zipf(1.2, count), len(pool)) - 1
                columns[name] = pool.take(pyarrow.array(places))
            else:
                numbers = random.integers(0, 2**63, count).tolist()
                columns[name] = [f"{number:016x}" for number in numbers]
        yield columns
