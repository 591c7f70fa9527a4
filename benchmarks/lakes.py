"""Tables of lakehouses, compared with the scans of their own libraries: `data.path: delta://…`.

Ours decodes rows, splits off the test part, shuffles, and creates batches; the library only decodes the
same columns. Both keep freed memory, as `sparring train` does. Memory is measured in separate processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow

from benchmarks.measuring import Figure, alternate, ratios
from benchmarks.reading import NAMES, make_columns, measure_memory, read_epoch
from benchmarks.scale import Scale

__all__ = ["measure", "open_lake"]

NUM_ROWS, APPENDED_ROWS = 10_000_000, 1_000_000
ROUNDS = 3
COLUMNS = [*NAMES, "y"]

_SCAN = """
import sys
from benchmarks.lakes import open_lake
from benchmarks.reading import peak_megabytes
open_lake(*sys.argv[1:]).scan()
print(peak_megabytes())
"""


def measure(scale: Scale) -> list[Figure]:
    """Measures reading times relative to each library's scan, and memory."""
    if find_spec("sparring_train") is None:
        return [Figure("lakes", "not measured", detail="needs sparring-train")]
    figures: list[Figure] = []
    for package in _FORMATS:
        if find_spec(package) is None:
            figures.append(Figure(package, "not measured", detail=f"needs {package}"))
            continue
        # In its own process, because pyiceberg reads its settings only when it is imported.
        with (
            TemporaryDirectory() as folder,
            ProcessPoolExecutor(1, get_context("spawn")) as pool,
        ):
            figures += pool.submit(_measure, package, folder, scale).result()
    return figures


def _measure(package: str, folder: str, scale: Scale) -> list[Figure]:
    from sparring_train.run.allocator import keep_freed_memory

    keep_freed_memory()
    num_rows = scale.rows(NUM_ROWS)
    lake = open_lake(package, folder)
    for _ in range(0, num_rows, APPENDED_ROWS):
        size = min(APPENDED_ROWS, num_rows)
        lake.append(pyarrow.concat_tables(map(pyarrow.table, make_columns("integers", size))))
    timings = alternate(
        {package: lake.scan, "ours": lambda: read_epoch(lake.url)},
        rounds=scale.rounds(ROUNDS),
        warm_up=1,
    )
    ratio = median(ratios(timings["ours"], timings[package]))
    seconds = timings["ours"].median
    scan = [sys.executable, "-c", _SCAN, package, folder]
    ran = subprocess.run(scan, capture_output=True, text=True, check=True)
    return [
        Figure(
            f"{num_rows:,} rows × {len(NAMES)} columns of integers, {package}",
            f"{ratio:.2f} ×",
            detail=f"its scan, {num_rows / timings[package].median / 1e6:.2f} M rows/s; ours "
            f"{num_rows / seconds / 1e6:.2f} M rows/s",
            ratio=ratio,
        ),
        measure_memory(lake.url, num_rows),
        Figure(f"a scan of {package}", f"{int(ran.stdout)} MiB resident"),
    ]


class _Lake:
    """A table.

    Args:
        url: value of `data.path`.
        append: adds the rows of an Arrow table.
        batches: returns the record batches of a scan.
    """

    def __init__(self, url: str, append: Callable[[Any], None], batches: Callable[[], Any]) -> None:
        self.url, self.append, self._batches = url, append, batches

    def scan(self) -> None:
        for _ in self._batches():
            pass


def _delta(folder: Path) -> _Lake:
    import deltalake

    path = folder / "table"
    return _Lake(
        f"delta://{path}",
        lambda rows: deltalake.write_deltalake(path, rows, mode="append"),
        lambda: deltalake.DeltaTable(path).to_pyarrow_dataset().to_batches(columns=COLUMNS),
    )


def _iceberg(folder: Path) -> _Lake:
    # Also for the process that measures memory.
    os.environ["PYICEBERG_CATALOG__BENCHMARK__URI"] = f"sqlite:///{folder}/catalog.db"
    os.environ["PYICEBERG_CATALOG__BENCHMARK__WAREHOUSE"] = f"file://{folder}"
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("benchmark")
    catalog.create_namespace_if_not_exists("shop")

    def append(rows: Any) -> None:
        catalog.create_table_if_not_exists("shop.clicks", rows.schema).append(rows)

    def batches() -> Any:
        scan = catalog.load_table("shop.clicks").scan(selected_fields=tuple(COLUMNS))
        return scan.to_arrow_batch_reader()

    return _Lake("iceberg://benchmark/shop.clicks", append, batches)


def _lance(folder: Path) -> _Lake:
    import lance

    path = folder / "table.lance"

    def append(rows: Any) -> None:
        lance.write_dataset(rows, path, mode="append" if path.exists() else "create")

    return _Lake(f"lance://{path}", append, lambda: lance.dataset(path).to_batches(columns=COLUMNS))


_FORMATS = {"deltalake": _delta, "pyiceberg": _iceberg, "lance": _lance}


def open_lake(package: str, folder: str) -> _Lake:
    """Returns the table of a folder. It is created by the first rows that are added."""
    return _FORMATS[package](Path(folder))
