"""Rows of a message: measured once, the same on all ranks."""

from __future__ import annotations

import time

import numpy as np

from sparring.contracts.collective import Collective, WorkContext

__all__ = ["FEWEST_ROWS", "MOST_ROWS", "chunk_rows_for", "measure_chunk_rows"]

FEWEST_ROWS, MOST_ROWS = 1024, 65_536

_SMALL, _LARGE = 4 << 10, 1 << 20
_REPEATS = 5
_TAG = 17

_OVERHEAD_SHARE = 0.05
"""Share of a message's time that its fixed cost may take."""

_BUDGET_SECONDS = 0.5
"""No repeat begins after this time; a slow network shows at the first one."""


def measure_chunk_rows(collective: Collective, row_bytes: int) -> int:
    """Sends a few messages around the ring and chooses. All ranks call it together.

    Takes some milliseconds, on a slow network at most about a second.

    Args:
        row_bytes: of a typical row on the wire.
    """
    collective.context = WorkContext("tuning")
    small = _seconds(collective, _SMALL)
    large = _seconds(collective, _LARGE)
    mine = np.array([small, large], np.float64)
    # The same numbers on all ranks, and so the same choice.
    slowest = np.max(collective.all_gather(mine), axis=0)
    return chunk_rows_for(float(slowest[0]), float(slowest[1]), row_bytes)


def chunk_rows_for(small_seconds: float, large_seconds: float, row_bytes: int) -> int:
    """The choice, a power of two, from the times of a message of 4 KiB and one of 1 MiB.

    A message takes ``fixed + bytes * each``: both follow from the two times. It should be so large
    that the fixed part is a twentieth of it, and no larger, because overlap begins only when the
    first chunk is found.
    """
    per_byte = max((large_seconds - small_seconds) / (_LARGE - _SMALL), 1e-12)
    fixed = max(small_seconds - _SMALL * per_byte, 1e-7)
    rows = fixed / per_byte / _OVERHEAD_SHARE / max(1, row_bytes)
    exponent = round(np.log2(min(max(rows, FEWEST_ROWS), MOST_ROWS)))
    return int(2**exponent)


def _seconds(collective: Collective, num_bytes: int) -> float:
    """The least time to pass a message to the next rank, over some repeats."""
    rank, world_size = collective.rank, collective.world_size
    outgoing, incoming = np.zeros(num_bytes, np.uint8), np.empty(num_bytes, np.uint8)
    times = []
    begin = time.perf_counter()
    for _ in range(_REPEATS):
        start = time.perf_counter()
        coming = collective.receive(incoming, (rank - 1) % world_size, _TAG)
        going = collective.send(outgoing, (rank + 1) % world_size, _TAG)
        coming.wait()
        going.wait()
        times.append(time.perf_counter() - start)
        # All ranks must stop together, so the slowest decides.
        passed = np.array([time.perf_counter() - begin])
        if float(np.max(collective.all_gather(passed))) > _BUDGET_SECONDS:
            break
    return min(times)
