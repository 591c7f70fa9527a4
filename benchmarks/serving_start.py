"""Start to the first answer of a serving snapshot: a large file next to one of 10 MB.

A file is mapped, manifest and header are checked (``verify="open"``), and one id is looked up. Cold: the
system is told before to forget the pages of the file. Both are opened in turn, in this process, which has
the library loaded.
"""

from __future__ import annotations

import os
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from benchmarks.serving_lookup import DIM, write_snapshot

__all__ = ["measure"]

SMALL_ROWS, ROWS, ALL_ROWS, ROUNDS, BAR = 36_000, 4_000_000, 38_000_000, 40, 1.2
_ROW_BYTES = 8 + 4 * DIM


def measure(scale: Scale) -> list[Figure]:
    """Ratios of times, with the pages in memory and without; the large file is of 10 GB with `--full`."""
    if find_spec("sparring_packed") is None:
        return [Figure("start of serving", "not measured", detail="needs sparring-packed")]
    figures = []
    with tempfile.TemporaryDirectory(prefix="sparring-start-") as folder:
        counts = (SMALL_ROWS, ALL_ROWS if scale.is_full else scale.rows(ROWS))
        small, large = (_published(Path(folder) / str(count), count) for count in counts)
        for is_cold in (False, True):
            times = [
                (_first_answer(large, counts[1], is_cold), _first_answer(small, counts[0], is_cold))
                for _ in range(scale.rounds(ROUNDS))
            ]
            ratio = median(large for large, _ in times) / median(small for _, small in times)
            figures.append(
                Figure(
                    what=f"start to the first answer, {counts[1] * _ROW_BYTES / 1e9:.1f} GB, "
                    f"{'no page' if is_cold else 'all pages'} in memory",
                    value=f"{ratio:.2f} x ({median(large for large, _ in times) * 1e3:.2f} ms)",
                    bar=f"{BAR} x",
                    is_reached=ratio <= BAR,
                    detail=f"the same of {counts[0] * _ROW_BYTES / 1e6:.0f} MB",
                    ratio=ratio,
                )
            )
    return figures


def _published(folder: Path, count: int) -> Path:
    import sparring_packed

    snapshot, _ = write_snapshot(folder, count)
    options = sparring_packed.WriteOptions(file_bytes=1 << 36, filter_rate=None)
    url = folder / "served/step-1"
    sparring_packed.write(snapshot, url, options=options)
    os.sync()  # a page that was not written yet cannot be forgotten
    return url


def _first_answer(url: Path, count: int, is_cold: bool) -> float:
    import sparring_packed

    if is_cold:
        for file in url.iterdir():
            opened = os.open(file, os.O_RDONLY)
            os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(opened)
    begin = time.perf_counter()
    with sparring_packed.open(url, verify="open") as tables:
        found = tables.find("item", np.array([count // 2])).found
        elapsed = time.perf_counter() - begin
    assert found.all()
    return elapsed
