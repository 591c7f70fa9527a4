"""Estimates the memory of a table in Redis before it is created.

The constants are those of Redis 7 with jemalloc and default settings, as reported by MEMORY USAGE: a
small hash is one listpack, a large one is a hash table.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparring.contracts import TableConfig
from sparring_redis.description import DEFAULT_BUCKETS
from sparring_redis.options import RedisOptions

__all__ = ["estimate_redis_bytes"]

_KEY_BYTES = 8
_MOST_LISTPACK_ROWS, _MOST_LISTPACK_VALUE = 512, 64
"""``hash-max-listpack-entries`` and ``hash-max-listpack-value``."""
_BUCKET_BYTES = 80
"""Overhead of a bucket: its name, its object and its entry in the database."""
_LISTPACK_HEAD, _LISTPACK_KEY = 7, 10
_ENTRY_BYTES, _SLOT_BYTES = 24, 8


def estimate_redis_bytes(table: TableConfig, options: RedisOptions, rows: int) -> Mapping[str, int]:
    """Estimates the memory of the server for a number of rows, if this rank owns all buckets."""
    buckets = options.num_buckets or DEFAULT_BUCKETS
    each = rows / buckets
    if rows == 0:
        return {"remote": 0}
    if each <= _MOST_LISTPACK_ROWS and table.row_bytes <= _MOST_LISTPACK_VALUE:
        value = table.row_bytes + (2 if table.row_bytes < 64 else 3)
        size = _LISTPACK_HEAD + each * (_LISTPACK_KEY + value)
        # The sizes of buckets differ, so on average half of an allocator step is unused.
        return {"remote": int(buckets * (size + _step(size) / 2 + _BUCKET_BYTES))}
    slots = 4
    while slots < each:
        slots *= 2
    row = _ENTRY_BYTES + _string(_KEY_BYTES) + _string(table.row_bytes)
    return {"remote": int(rows * row + buckets * (slots * _SLOT_BYTES + _BUCKET_BYTES))}


def _string(length: int) -> int:
    """Returns the bytes of a string: a header of 1, 3 or 5 bytes, the text, and a zero byte."""
    size = length + 1 + (1 if length < 32 else 3 if length < 256 else 5)
    step = _step(size)
    return -(-size // step) * step


def _step(size: float) -> int:
    """Returns the distance of size classes of the allocator: a quarter of a power of two, at least 16."""
    return max(16, 1 << max(0, int(size - 1).bit_length() - 3))
