"""The ``rocksdb`` storage, compared with C++ loops over RocksDB's API on one database."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median

from benchmarks.measuring import Figure, Timing, ratios
from benchmarks.programs import build_program, run_program
from benchmarks.scale import Scale

__all__ = ["measure"]

NUM_ROWS, ROW_BYTES, NUM_KEYS, THREADS = 1_000_000, 256, 65_536, 2
ROUNDS, WARM_UP = 15, 3
LARGE_CACHE_BYTES = 1 << 30
COLD_FRACTION = 20
BAR_RATIO, BAR_THREADS = 0.9, 1.8
PACKAGE = Path(__file__).parent.parent / "packages/backend-rocksdb"


@dataclass(frozen=True)
class Answer:
    """Result of one workload."""

    nanoseconds: float
    """Nanoseconds per row."""
    bytes_read: float
    """Bytes read from files per row."""


def measure(scale: Scale) -> list[Figure]:
    """Measures the speedup over plain loops, the scaling with threads, and the cost of cold reads."""
    if shutil.which("cmake") is None or shutil.which("ninja") is None:
        return [Figure("rocksdb", "not measured", detail="requires cmake and ninja")]
    if find_spec("sparring_rocksdb") is None:
        return [Figure("rocksdb", "not measured", detail="requires librocksdb-dev")]
    with tempfile.TemporaryDirectory(prefix="sparring-rocksdb-") as folder:
        program = build_program(
            "plain_loops", PACKAGE, Path(folder) / "build", ["-DSPARRING_ROCKSDB_BENCHMARKS=ON"]
        )
        return [*_warm(program, Path(folder), scale), *_cold(program, Path(folder), scale)]


def _warm(program: Path, folder: Path, scale: Scale) -> list[Figure]:
    figures = []
    for known_keys_bytes, what in ((1 << 26, "keys known"), (0, "keys looked up first")):
        place = folder / f"warm {known_keys_bytes}"
        with _running(program, place, scale, LARGE_CACHE_BYTES, known_keys_bytes) as run:
            filled = {name: run(name).nanoseconds for name in ("fill", "fill_plain")}
            run("check")
            run("settle")
            if known_keys_bytes:
                found = _alternate(run, ("find", "find_plain", "find_threads"), scale)
                figures += _finds(found)
                figures.append(_filling(filled))
            written = _alternate(run, ("upsert", "upsert_plain"), scale)
        figures.append(_upsert(written, what, bar=bool(known_keys_bytes)))
    return figures


def _finds(found: dict[str, Timing]) -> list[Figure]:
    one, plain, two = found["find"], found["find_plain"], found["find_threads"]
    what = f"find of {NUM_KEYS:,} random keys in {NUM_ROWS:,} x {ROW_BYTES} bytes, all cached"
    return [
        _ratio(what, plain, one, BAR_RATIO, "MultiGet of keys that were sorted before"),
        _ratio(f"  with {THREADS} threads", one, two, BAR_THREADS, "ours with one"),
    ]


def _filling(filled: dict[str, float]) -> Figure:
    ratio = filled["fill_plain"] / filled["fill"]
    return Figure(
        what=f"filling an empty table with {NUM_ROWS:,} rows, in random order",
        value=f"{ratio:.2f} x",
        detail=f"{1e9 / filled['fill']:,.0f} rows/s; WriteBatch of 4,096 rows in a loop: "
        f"{1e9 / filled['fill_plain']:,.0f}",
        ratio=ratio,
    )


def _upsert(written: dict[str, Timing], what: str, *, bar: bool) -> Figure:
    return _ratio(
        f"upsert of {NUM_KEYS:,} random rows, {what}",
        written["upsert_plain"],
        written["upsert"],
        BAR_RATIO if bar else None,
        "WriteBatch of 4,096 rows in a loop",
    )


def _cold(program: Path, folder: Path, scale: Scale) -> list[Figure]:
    """Measures a database `COLD_FRACTION` times as large as its cache, without the page cache."""
    cache_bytes = NUM_ROWS * ROW_BYTES // COLD_FRACTION
    with _running(program, folder / "cold", scale, cache_bytes, 1 << 26, direct_io=True) as run:
        for work in ("fill", "fill_plain", "check", "settle"):
            run(work)
        answers: dict[str, list[Answer]] = {"find": [], "find_plain": []}
        for _ in range(scale.rounds(5)):
            for work, some in answers.items():
                some.append(run(work))
    read = {work: median(each.bytes_read for each in some) for work, some in answers.items()}
    speed = {
        work: 1e9 / median(each.nanoseconds for each in some) for work, some in answers.items()
    }
    return [
        Figure(
            what=f"cold find, {COLD_FRACTION} times as many bytes of rows as of cache",
            value=f"{read['find']:,.0f} bytes read for a row of {ROW_BYTES}",
            detail=f"MultiGet: {read['find_plain']:,.0f}. {speed['find']:,.0f} rows/s, MultiGet "
            f"{speed['find_plain']:,.0f}, one thread, direct I/O",
        )
    ]


def _ratio(what: str, theirs: Timing, ours: Timing, bar: float | None, other: str) -> Figure:
    found = ratios(theirs, ours)
    return Figure(
        what=what,
        value=f"{median(found):.2f} x",
        bar=None if bar is None else f">= {bar} x",
        is_reached=None if bar is None else median(found) >= bar,
        detail=f"{other}: {1 / theirs.median:,.0f} rows/s, ours {1 / ours.median:,.0f}; rounds "
        f"{min(found):.2f}-{max(found):.2f}",
        ratio=median(found),
    )


def _alternate(
    run: Callable[[str], Answer], works: tuple[str, ...], scale: Scale
) -> dict[str, Timing]:
    """Runs workloads alternately; returns the seconds per row of each."""
    timings = {work: Timing() for work in works}
    for number in range(scale.rounds(WARM_UP + ROUNDS)):
        for work in works:
            answer = run(work)
            if number >= WARM_UP or scale.is_quick:
                timings[work].seconds.append(answer.nanoseconds * 1e-9)
    return timings


@contextmanager
def _running(
    program: Path,
    folder: Path,
    scale: Scale,
    cache_bytes: int,
    known_keys_bytes: int,
    *,
    direct_io: bool = False,
) -> Iterator[Callable[[str], Answer]]:
    """Runs the program; yields a function that runs a workload. The tables are deleted afterwards."""
    sizes = (scale.rows(NUM_ROWS), ROW_BYTES, min(NUM_KEYS, scale.rows(NUM_ROWS)))
    numbers = (*sizes, THREADS, cache_bytes, known_keys_bytes, int(direct_io))
    with run_program(program, folder, *numbers) as run:
        yield lambda work: Answer(*run(work))
    shutil.rmtree(folder)
