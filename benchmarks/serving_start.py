"""Time from start to the first reply of a serving snapshot: a large one, and 10 MB in as many files.

Files are mapped, manifest and headers are checked (``verify="open"``), and one id is looked up. For a
cold start, the system first drops the pages of the files. The snapshots are opened alternately in this
process, which has loaded the library. The cost per file is measured separately.
"""

from __future__ import annotations

import os
import shutil
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
FILES, DEFAULT_FILES = 8, 64
"""Number of files of both; and the default number of files for 10 GB."""
_ROW_BYTES = 8 + 4 * DIM


def measure(scale: Scale) -> list[Figure]:
    """Measures ratios of times, warm and cold. With `--full` the large snapshot has 10 GB."""
    if find_spec("sparring_packed") is None:
        return [Figure("start of serving", "not measured", detail="requires sparring-packed")]
    figures = []
    with tempfile.TemporaryDirectory(prefix="sparring-start-") as folder:
        count = ALL_ROWS if scale.is_full else scale.rows(ROWS)
        cuts = {"large": (count, FILES)}
        cuts |= {str(each): (SMALL_ROWS, each) for each in (1, FILES, DEFAULT_FILES)}
        urls = {name: _published(Path(folder) / name, *cut) for name, cut in cuts.items()}
        for is_cold in (False, True):
            times: dict[str, list[float]] = {name: [] for name in cuts}
            for _ in range(scale.rounds(ROUNDS)):
                for name, (rows, _) in cuts.items():
                    times[name].append(_first_answer(urls[name], rows, is_cold))
            found = {name: median(each) for name, each in times.items()}
            where = f"{'no page' if is_cold else 'all pages'} in memory"
            small = f"{SMALL_ROWS * _ROW_BYTES / 1e6:.0f} MB"
            ratio = found["large"] / found[str(FILES)]
            figures.append(
                Figure(
                    what=f"start to the first reply, {count * _ROW_BYTES / 1e9:.1f} GB, {where}",
                    value=f"{ratio:.2f} x ({found['large'] * 1e3:.2f} ms)",
                    bar=f"{BAR} x",
                    is_reached=ratio <= BAR,
                    detail=f"compared with {small} in the same number of files, {FILES}",
                    ratio=ratio,
                )
            )
            ratio = found[str(DEFAULT_FILES)] / found["1"]
            figures.append(
                Figure(
                    what=f"the same of {small} in {DEFAULT_FILES} files, {where}",
                    value=f"{ratio:.2f} x ({found[str(DEFAULT_FILES)] * 1e3:.2f} ms)",
                    detail="compared with one file; by default, 10 GB are divided into this many files",
                )
            )
    return figures


def _published(folder: Path, count: int, num_files: int) -> Path:
    import sparring_packed

    snapshot = write_snapshot(folder, count)
    url = folder / "served/step-1"
    # The writer counts 16 bytes per row for its key and position.
    file_bytes = count * (4 * DIM + 16) // num_files + 1
    options = sparring_packed.WriteOptions(file_bytes=file_bytes, filter_rate=None)
    sparring_packed.write(snapshot, url, options=options)
    assert len(list(url.glob("*.packed"))) == num_files
    shutil.rmtree(snapshot)
    os.sync()  # unwritten pages cannot be dropped
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
