"""Estimates the files and memory of a ``rocksdb`` table before it is created."""

from __future__ import annotations

from collections.abc import Mapping

from sparring.contracts import TableConfig
from sparring_rocksdb.options import RocksdbOptions

__all__ = ["estimate_rocksdb_bytes"]

_ROW_OVERHEAD = 16
"""Overhead per row in a compacted file without filters: key, sequence number, lengths, index."""
_KNOWN_BUCKET_BYTES, _KNOWN_SLOTS, _MOST_KNOWN_LOAD = 65, 8, 0.8
"""Constants of ``native/table/known_keys.h``."""


def estimate_rocksdb_bytes(
    table: TableConfig, options: RocksdbOptions, rows: int
) -> Mapping[str, int]:
    """Estimates the uncompressed files of a compacted table, and its maximum memory.

    The block cache is not included, because the tables of a folder share it.
    """
    row = table.row_bytes + _ROW_OVERHEAD + options.bloom_bits_per_key / 8
    buckets = 64
    while buckets * _KNOWN_SLOTS * _MOST_KNOWN_LOAD < rows:
        buckets *= 2
    while buckets * _KNOWN_BUCKET_BYTES > options.known_keys_bytes and buckets > 0:
        buckets //= 2
    written = min(options.write_buffer_bytes, int(rows * row))
    return {"host": buckets * _KNOWN_BUCKET_BYTES + written, "disk": int(rows * row)}
