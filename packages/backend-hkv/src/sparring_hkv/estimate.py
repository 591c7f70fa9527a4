"""Estimates the memory of an ``hkv`` table before it is created.

The growing table on the CPU uses extendible hashing, whose buckets split when they are full. If hashes
are uniformly distributed, the number of keys in a range of hashes has a Poisson distribution, which
determines the number of splits. The constants come from ``native/table/bucket.h`` and ``arena.h``
and, for the device table, from ``native/device_table``.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from sparring.contracts import TableConfig
from sparring.errors import CapacityError
from sparring_hkv.options import MAX_ROWS, HkvOptions

__all__ = ["estimate_hkv_bytes"]

_SLOTS, _ROWS_PER_FIXED_BUCKET = 60, 48
_BUCKET_BYTES, _SCORED_BUCKET_BYTES = 832, 1344
_SEGMENTS_BITS, _MAX_DEPTH = 8, 40
_PAGE, _HUGE_PAGE, _CHUNK = 4096, 2 << 20, 64 << 20
_TABLE_BYTES = 8 << 10

_DEVICE_SLOTS, _DEVICE_ROWS_PER_HEAD = 128, 96
_DEVICE_ENTRY_BYTES, _SCORE_BYTES, _LINK_BYTES, _LISTED_BYTES = 17, 8, 4, 4
_FIRST_DEVICE_CHUNK, _FIRST_OVERFLOW, _HEADS_PER_SPARE = 16 << 10, 16, 64
_RARE = 1e-3
"""If at least this many overflowing buckets are expected, the estimate includes memory for them."""

_LOG_FACTORIALS = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, _DEVICE_SLOTS + 1)))])


def estimate_hkv_bytes(table: TableConfig, options: HkvOptions, rows: int) -> Mapping[str, int]:
    """Estimates the bytes of a table with a number of rows, in host and GPU memory.

    A table of less than 2 MiB that was written in one call may take half as much.

    Raises:
        CapacityError: the number of rows exceeds the limit of a table.
    """
    bounded = options.capacity is not None or options.memory_bytes is not None
    if rows > MAX_ROWS and not (bounded and options.policy != "none"):
        raise CapacityError(
            f"hkv: a table can contain at most {MAX_ROWS:,} rows, requested {rows:,}; distribute it "
            "over more ranks, or set a bound and a policy that evicts"
        )
    if options.device == "cpu":
        return {"host": _estimate_cpu(table.row_bytes, options, rows)}
    total, index = _estimate_device(table.row_bytes, options, rows)
    budget = options.device_memory_bytes
    held = total if budget is None else min(total, max(budget, index))
    return {"gpu": held, "host": total - held} if held < total else {"gpu": total}


def _estimate_cpu(row_bytes: int, options: HkvOptions, rows: int) -> int:
    stride = max(row_bytes, 4)
    evicts = options.policy != "none"
    bucket = _SCORED_BUCKET_BYTES if evicts else _BUCKET_BYTES
    if options.capacity is not None:
        rows = min(rows, options.capacity)
    if options.memory_bytes is None and not (evicts and options.capacity is not None):
        buckets, words = _growing_index(rows)
        index = _committed_bytes(bucket, buckets, MAX_ROWS) + words
        return _TABLE_BYTES + index + _committed_bytes(stride, rows, options.capacity or MAX_ROWS)
    most = options.capacity or MAX_ROWS
    if options.memory_bytes is not None:
        row = stride + bucket / _ROWS_PER_FIXED_BUCKET + (0 if evicts else bucket / _SLOTS)
        most = min(most, max(1, int(options.memory_bytes / row)))
    heads = ceil(most / _ROWS_PER_FIXED_BUCKET)
    index = ceil(heads * bucket / _PAGE) * _PAGE  # allocated when the table is opened
    return _TABLE_BYTES + index + _committed_bytes(stride, min(rows, most), most)


def _growing_index(rows: int) -> tuple[int, int]:
    """Returns the expected number of buckets, and the bytes of the directory."""
    depth = np.arange(_MAX_DEPTH)
    splits = _chance_of_more(rows / 2.0**depth, _SLOTS)
    buckets = 1 + np.sum(2.0**depth * splits)
    # A segment has 2^d words if its deepest range was split d times.
    below = np.arange(_MAX_DEPTH - _SEGMENTS_BITS)
    at_most = (1 - splits[_SEGMENTS_BITS:]) ** (2.0**below)
    chance = np.diff(at_most, prepend=0.0)
    words = np.sum(2.0 ** below[1:] * chance[1:])
    return ceil(buckets), int(4 * words * 2**_SEGMENTS_BITS)


def _chance_of_more(mean: npt.NDArray[np.float64], slots: int) -> npt.NDArray[np.float64]:
    """Returns the Poisson probability that a range contains more keys than a bucket has slots."""
    counts = np.arange(slots + 1)
    safe = np.maximum(mean, 1e-300)[:, None]
    terms = np.exp(counts * np.log(safe) - safe - _LOG_FACTORIALS[: slots + 1])
    # Below a sixth of the slots the probability is less than 1e-20 and dominated by rounding.
    found: npt.NDArray[np.float64] = np.where(
        mean < slots / 6, 0.0, np.maximum(1 - terms.sum(axis=1), 0.0)
    )
    return found


def _committed_bytes(element_bytes: int, count: int, limit: int) -> int:
    """Returns the bytes of an arena of at most `limit`: small ones double, large ones add huge pages."""
    total = count * element_bytes
    most = ceil(limit * element_bytes / _PAGE) * _PAGE
    if total < _HUGE_PAGE:
        pages = max(1, ceil(total / _PAGE))
        return min(most, _PAGE * (1 << (pages - 1).bit_length()))
    elements = 1
    while 2 * elements * element_bytes <= _CHUNK:
        elements *= 2
    chunk = ceil(elements * element_bytes / _PAGE) * _PAGE
    whole, rest = divmod(count, elements)
    last = min(chunk, ceil(rest * element_bytes / _HUGE_PAGE) * _HUGE_PAGE)
    last_of_limit = ceil((limit - whole * elements) * element_bytes / _PAGE) * _PAGE
    return whole * chunk + min(last, last_of_limit)


def _estimate_device(row_bytes: int, options: HkvOptions, rows: int) -> tuple[int, int]:
    """Returns the total bytes and the bytes of the index."""
    stride = ceil(row_bytes / 16) * 16 if row_bytes >= 16 else 1 << (row_bytes - 1).bit_length()
    evicts = options.policy != "none"
    bounded = options.capacity is not None or options.memory_bytes is not None
    bucket = _DEVICE_SLOTS * _DEVICE_ENTRY_BYTES + (_DEVICE_SLOTS * _SCORE_BYTES if evicts else 0)
    if options.capacity is not None:
        rows = min(rows, options.capacity)
    if bounded and (evicts or options.memory_bytes is not None):
        per_head = _DEVICE_SLOTS if evicts else _DEVICE_ROWS_PER_HEAD
        bucket += 0 if evicts else _LINK_BYTES
        row = stride * (1 + 1 / 1024) + bucket / per_head
        row += 0 if evicts else (bucket + _LISTED_BYTES) / _DEVICE_SLOTS + _LISTED_BYTES
        most = options.capacity or MAX_ROWS
        if options.memory_bytes is not None:
            most = min(most, max(1, int(options.memory_bytes / row)))
        heads = ceil(most / per_head)
        index = bucket * heads
        if evicts:  # and allocates all its rows when it is opened
            return index + stride * most, index
        rows = min(rows, most)
        if _overflowing(rows, heads) >= _RARE:
            index += most // _DEVICE_SLOTS * (bucket + _LISTED_BYTES)
        return index + stride * min(most, _rows_in_chunks(stride, rows)), index
    bucket += _LINK_BYTES
    heads = 1 << max(0, ceil(log2(max(1.0, rows / _DEVICE_ROWS_PER_HEAD))))
    needed = max(heads / 2 // _HEADS_PER_SPARE, _overflowing(rows, heads))
    spare = 0 if needed < _RARE else _FIRST_OVERFLOW
    while 0 < spare < needed:
        spare *= 2
    index = bucket * (heads + spare) + _LISTED_BYTES * spare
    limit = options.capacity or MAX_ROWS
    return index + stride * min(limit, _rows_in_chunks(stride, rows)), index


def _overflowing(rows: int, heads: int) -> float:
    """Returns the expected number of GPU buckets that have more keys than slots."""
    return heads * float(_chance_of_more(np.asarray([rows / heads]), _DEVICE_SLOTS)[0])


def _rows_in_chunks(stride: int, rows: int) -> int:
    """Returns the number of rows in the chunks for `rows`, whose sizes double up to 64 MiB."""
    first, most = (
        1 if stride >= size else 1 << (int(size // stride).bit_length() - 1)
        for size in (_FIRST_DEVICE_CHUNK, _CHUNK)
    )
    if rows > most:
        return ceil(rows / most) * most
    while first < rows:
        first *= 2
    return first
