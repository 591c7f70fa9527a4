"""The ``hkv`` table: lookup compared with `torch.index_select` and with the cost of its cache lines,
pauses while it grows, and its memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import cycle
from pathlib import Path
from statistics import median

import numpy as np
import torch

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from benchmarks.threads import torch_threads
from sparring import open_storage
from sparring.contracts import Storage, TableConfig
from sparring.kernels import functions as kernels
from sparring.runtime.pool import configure_pool, num_threads

__all__ = ["measure"]

DIM, LOOKUP_ROWS, LOOKUP_KEYS, THREADS = 64, 4_000_000, 65_536, 2
TURNS, CALLS_PER_TURN, UNCOUNTED_CALLS = 30, 13, 3
GROWN_ROWS, UPSERT_KEYS = 10_000_000, 8_192
BAR_RATIO, BAR_GATHER, BAR_MILLISECONDS, BAR_MEMORY, BAR_LINES = 1.5, 1.25, 50, 1.25, 1.2
# Cache lines for finding a row, except its own: directory word (growing tables), digests, entry.
INDEX_LINES = {"growing": 3, "bounded": 2}
ROW_LINES = DIM * 4 // 64
# Copies memory in an endless loop between two arrays that are larger than the caches.
STREAM = """
import numpy as np
there, here = np.ones(2**25), np.ones(2**25)
print(flush=True)
while True:
    np.copyto(there, here)
"""
# Enough batches that none is in a cache from an earlier lookup.
NUM_BATCHES = 61


def measure(_scale: Scale) -> list[Figure]:
    """Measures lookup as the ratio of medians; pauses and memory of a table that grows from empty."""
    return [*_lookup(), *_lines(), *_growth()]


def _lookup() -> list[Figure]:
    generator = np.random.default_rng(0)
    storage = open_storage("hkv", TableConfig("lookup", DIM), validate=False)
    dense = torch.empty(LOOKUP_ROWS, DIM)
    generator.random(out=dense.numpy())
    _fill(storage, dense.numpy())
    batches = [generator.integers(0, LOOKUP_ROWS, LOOKUP_KEYS) for _ in range(NUM_BATCHES)]
    tensors = [torch.from_numpy(batch) for batch in batches]
    for batch, tensor in zip(batches[:3], tensors, strict=False):
        if not np.array_equal(storage.find(batch).rows, torch.index_select(dense, 0, tensor)):
            raise AssertionError("the rows found differ from those of torch.index_select")

    plain = dense.numpy()
    our_out = np.zeros((LOOKUP_KEYS, DIM), np.float32)
    their_out = torch.zeros(LOOKUP_KEYS, DIM)
    with torch_threads(THREADS):
        seconds = _in_turns(
            {
                "ours, out given": lambda i: storage.find(batches[i], out=our_out),
                "theirs, out given": lambda i: torch.index_select(
                    dense, 0, tensors[i], out=their_out
                ),
                "ours, fresh": lambda i: storage.find(batches[i]),
                "theirs, fresh": lambda i: torch.index_select(dense, 0, tensors[i]),
                "limit": lambda i: kernels.gather(plain, batches[i], our_out),
            }
        )
    storage.close()

    figures = []
    for output in ("out given", "fresh"):
        ours, theirs = seconds[f"ours, {output}"], seconds[f"theirs, {output}"]
        ratio = median(theirs) / median(ours)
        figures.append(
            Figure(
                what=f"lookup of {LOOKUP_KEYS:,} random keys in {LOOKUP_ROWS:,} x {DIM} float32, "
                f"{output}",
                value=f"{ratio:.2f} x torch.index_select",
                bar=f">= {BAR_RATIO} x",
                is_reached=ratio >= BAR_RATIO,
                detail=f"{_speed(ours)} against {_speed(theirs)}, {THREADS} threads",
            )
        )
    share = median(seconds["ours, out given"]) / median(seconds["limit"])
    figures.append(
        Figure(
            what="  lookup, time of a prefetched gather from the dense table, which hashes nothing",
            value=f"{share:.2f} x",
            bar=f"<= {BAR_GATHER} x",
            is_reached=share <= BAR_GATHER,
            detail=f"{_speed(seconds['limit'])}: what the memory allows with these threads",
        )
    )
    return figures


def _lines() -> list[Figure]:
    """Compares a lookup with the cost of its cache lines, each at the time of a line of a dense array in
    the same run, with and without a process that copies memory."""
    generator = np.random.default_rng(2)
    dense = generator.random((LOOKUP_ROWS, DIM), dtype=np.float32)
    storages = {
        "growing": open_storage("hkv", TableConfig("growing", DIM), validate=False),
        "bounded": open_storage(
            "hkv", TableConfig("bounded", DIM), policy="lru", capacity=LOOKUP_ROWS, validate=False
        ),
    }
    for storage in storages.values():
        _fill(storage, dense)
    batches = [generator.integers(0, LOOKUP_ROWS, LOOKUP_KEYS) for _ in range(NUM_BATCHES)]
    out = np.zeros((LOOKUP_KEYS, DIM), np.float32)
    runs: dict[str, Callable[[int], object]] = {
        "dense": lambda i: kernels.gather(dense, batches[i], out),
        "growing": lambda i: storages["growing"].find(batches[i], out=out),
        "bounded": lambda i: storages["bounded"].find(batches[i], out=out),
    }
    figures = []
    threads_before = num_threads()
    for threads in (1, THREADS):
        configure_pool(threads)
        for neighbor in (nullcontext, _streaming):
            with neighbor():
                seconds = _in_turns(runs)
            line = median(seconds["dense"]) / ROW_LINES
            for kind, index_lines in INDEX_LINES.items():
                touched = index_lines + ROW_LINES
                gathers = _ratio_of_turns(seconds[kind], seconds["dense"])
                found = gathers * ROW_LINES / touched
                figures.append(
                    Figure(
                        what=f"lookup in a {kind} table, on {threads} of {THREADS} cores"
                        + (", while a process copies memory" if neighbor is _streaming else ""),
                        value=f"{found:.2f} x the time of the lines touched",
                        bar=f"<= {BAR_LINES} x",
                        is_reached=found <= BAR_LINES,
                        detail=f"{gathers:.2f} x a gather of dense rows; {touched} lines of "
                        f"{line / LOOKUP_KEYS * 1e9:.1f} ns",
                    )
                )
    configure_pool(threads_before)
    for storage in storages.values():
        storage.close()
    return figures


def _ratio_of_turns(ours: list[float], theirs: list[float]) -> float:
    """Returns the median over rounds, because another process may use a core during some of them."""
    counted = CALLS_PER_TURN - UNCOUNTED_CALLS
    turns = [slice(begin, begin + counted) for begin in range(0, len(ours), counted)]
    return median(median(ours[turn]) / median(theirs[turn]) for turn in turns)


@contextmanager
def _streaming() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", STREAM], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()


def _fill(storage: Storage, rows: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
    """Fills the table: row i of the array is the row of key i."""
    for begin in range(0, len(rows), LOOKUP_KEYS):
        keys = np.arange(begin, min(begin + LOOKUP_KEYS, len(rows)))
        storage.upsert(keys, rows[begin : begin + len(keys)])


def _in_turns(contenders: dict[str, Callable[[int], object]]) -> dict[str, list[float]]:
    """Returns the seconds of each call. Contenders alternate after several calls, and the first calls of
    a turn are not counted: the threads of torch spin for a while after a call on cores that the other
    contender needs, and the caches contain data of the other."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    batch = cycle(range(NUM_BATCHES))
    for _ in range(TURNS):
        for name, run in contenders.items():
            for call in range(CALLS_PER_TURN):
                i = next(batch)
                start = time.perf_counter()
                run(i)
                elapsed = time.perf_counter() - start
                if call >= UNCOUNTED_CALLS:
                    seconds[name].append(elapsed)
    return seconds


def _growth() -> list[Figure]:
    generator = np.random.default_rng(1)
    rows = generator.random((UPSERT_KEYS, DIM), dtype=np.float32)
    keys = generator.permutation(GROWN_ROWS) * 7919
    before = _resident_bytes()
    storage = open_storage("hkv", TableConfig("growth", DIM), validate=False)
    seconds = []
    for begin in range(0, GROWN_ROWS, UPSERT_KEYS):
        part = keys[begin : begin + UPSERT_KEYS]
        start = time.perf_counter()
        storage.upsert(part, rows[: len(part)])
        seconds.append(time.perf_counter() - start)
    grown = _resident_bytes() - before
    _check_holds(storage, keys, rows)
    payload = GROWN_ROWS * (8 + storage.table.row_bytes)
    reported = storage.memory_bytes
    storage.close()

    middle, late, longest = np.percentile(np.array(seconds) * 1e3, [50, 99, 100])
    return [
        Figure(
            what=f"longest upsert of {UPSERT_KEYS:,}, growing to {GROWN_ROWS:,} x {DIM} float32",
            value=f"{longest:.1f} ms",
            bar=f"< {BAR_MILLISECONDS} ms",
            is_reached=bool(longest < BAR_MILLISECONDS),
            detail=f"median {middle:.1f} ms, 99 % below {late:.1f} ms; "
            f"{GROWN_ROWS / sum(seconds) / 1e6:.1f} M rows/s",
        ),
        Figure(
            what="resident memory at the end, compared with keys + rows",
            value=f"{grown / payload:.3f} x",
            bar=f"<= {BAR_MEMORY} x",
            is_reached=grown <= BAR_MEMORY * payload,
            detail=f"{grown / 1e6:,.0f} MB; the table reports {reported / 1e6:,.0f} MB",
        ),
    ]


def _check_holds(
    storage: Storage,
    keys: np.ndarray[tuple[int], np.dtype[np.int64]],
    rows: np.ndarray[tuple[int, int], np.dtype[np.float32]],
) -> None:
    """Checks that a sample of the keys has the written rows."""
    places = np.arange(0, len(keys), 997)
    found = storage.find(keys[places])
    if not (found.found.all() and np.array_equal(found.rows, rows[places % UPSERT_KEYS])):
        raise AssertionError("the grown table does not contain the written rows")


def _speed(seconds: list[float]) -> str:
    best, middle = np.percentile(seconds, [5, 50])
    return f"{LOOKUP_KEYS / middle / 1e6:.1f} M rows/s (best {LOOKUP_KEYS / best / 1e6:.1f})"


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no line VmRSS; this benchmark needs Linux")
