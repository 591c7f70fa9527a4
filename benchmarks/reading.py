"""Data of kind `table`, compared with its lower limit: reading the same files with pyarrow.

Ours decodes, hashes strings, splits off the test part, shuffles, and creates batches; the limit only
decodes. For integers, a second limit also copies each row once, in random order. All use pyarrow's
threads, and keep freed memory as `sparring train` does. Memory is measured in a separate process that
reads one epoch.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.scale import Scale

__all__ = ["NAMES", "make_columns", "measure", "measure_memory", "peak_megabytes", "read_epoch"]

NUM_ROWS, NUM_LARGE_ROWS, NUM_COLUMNS, GROUP_ROWS = 500_000, 10_000_000, 10, 100_000
NUM_ROWS_OF_INTEGERS = 2_000_000
ROUNDS = 5
MAX_MEGABYTES = 1024
BATCH_SIZE = 4096
BARS = {"dictionary strings": 1.2, "plain strings": 1.2, "integers": 1.2}
NAMES = [f"c{number}" for number in range(NUM_COLUMNS)]

_EPOCH = """
import sys
from benchmarks.reading import peak_megabytes, read_epoch
from sparring_train.run.allocator import keep_freed_memory
keep_freed_memory()
print(read_epoch(sys.argv[1]), peak_megabytes())
"""


def measure(scale: Scale) -> list[Figure]:
    """Measures reading times relative to pyarrow, and memory."""
    if find_spec("sparring_train") is None:
        return [Figure("reading", "not measured", detail="needs sparring-train")]
    from sparring_train.run.allocator import keep_freed_memory

    keep_freed_memory()
    figures = []
    with TemporaryDirectory() as folder:
        for kind, bar in BARS.items():
            num_rows = scale.rows(NUM_ROWS_OF_INTEGERS if kind == "integers" else NUM_ROWS)
            path = write_log(Path(folder) / f"{kind}.parquet", kind, num_rows)
            contenders: dict[str, Callable[[], object]] = {
                "pyarrow": partial(_read_with_pyarrow, path),
                "ours": partial(read_epoch, path),
                "in order": partial(read_epoch, path, shuffle=False),
            }
            if kind == "integers":
                contenders["copies"] = partial(_read_and_shuffle, path)
            timings = alternate(contenders, rounds=scale.rounds(ROUNDS), warm_up=1)
            if kind == "integers":
                found = median(ratios(timings["copies"], timings["pyarrow"]))
                figures.append(Figure(f"{kind}, only decoded and copied", f"{found:.2f} ×"))
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
        num_rows = scale.rows(NUM_LARGE_ROWS)
        path = write_log(Path(folder) / "large.parquet", "dictionary strings", num_rows)
        figures.append(measure_memory(path, num_rows))
    return figures


def measure_memory(path: str, num_rows: int) -> Figure:
    """Measures the resident memory of a process that reads an epoch."""
    ran = subprocess.run(
        [sys.executable, "-c", _EPOCH, path], capture_output=True, text=True, check=True
    )
    rows, megabytes = ran.stdout.split()
    return Figure(
        f"an epoch of {num_rows:,} rows × {NUM_COLUMNS} columns",
        f"{megabytes} MiB resident",
        f"≤ {MAX_MEGABYTES} MiB",
        int(megabytes) <= MAX_MEGABYTES,
        f"{num_rows * NUM_COLUMNS * 8 >> 20:,} MiB of ids; {int(rows):,} rows trained on",
    )


def peak_megabytes() -> int:
    """Returns the peak of this process's resident memory. `getrusage` would include its parent's."""
    (line,) = (
        each for each in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in each
    )
    return int(line.split()[1]) // 1024


def open_reader(path: str, **keys: Any) -> Any:
    """Opens the data set of a single process."""
    from sparring_train.config.sections.table import TableData
    from sparring_train.data.dataset import OpenRequest
    from sparring_train.data.table.dataset import open_table

    section = TableData(
        kind="table", path=path, label="y", categorical=tuple(NAMES), batch_size=BATCH_SIZE, **keys
    )
    return open_table(section, OpenRequest(seed=1, label="binary"))


def read_epoch(path: str, **keys: Any) -> int:
    """Reads the training rows once, and returns their number."""
    rows = sum(len(batch) for batch in open_reader(path, **keys).batches(0))
    assert rows > 0
    return rows


def _read_with_pyarrow(path: str) -> None:
    from pyarrow import parquet

    for _ in parquet.ParquetFile(path).iter_batches(columns=[*NAMES, "y"]):
        pass


def _read_and_shuffle(path: str) -> None:
    """Decodes, and copies the rows of each block in random order. Batches are slices of the blocks."""
    from pyarrow import parquet

    random = np.random.default_rng(0)
    for block in parquet.ParquetFile(path).iter_batches(columns=[*NAMES, "y"]):
        order = random.permutation(block.num_rows)
        ids = np.empty((NUM_COLUMNS, block.num_rows), np.int64)
        for name, row in zip(NAMES, ids, strict=True):
            np.take(block[name].to_numpy(), order, out=row, mode="clip")
        np.take(block["y"].to_numpy(), order).astype(np.float32)


def write_log(path: Path, kind: str, num_rows: int) -> str:
    """Writes integers; or strings: 10,000 distinct ones with a dictionary, or all distinct."""
    import pyarrow
    from pyarrow import parquet

    writer = None
    for columns in make_columns(kind, num_rows):
        table = pyarrow.table(columns)
        if writer is None:
            writer = parquet.ParquetWriter(
                path, table.schema, use_dictionary=kind.startswith("dictionary")
            )
        writer.write_table(table, row_group_size=GROUP_ROWS)
    assert writer is not None
    writer.close()
    return str(path)


def make_columns(kind: str, num_rows: int) -> Iterator[dict[str, Any]]:
    """Yields the columns of each row group."""
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
