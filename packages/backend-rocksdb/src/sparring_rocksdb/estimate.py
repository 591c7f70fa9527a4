"""Estimates of the files and memory of a table of ``rocksdb``, before there is one."""

from __future__ import annotations

from collections.abc import Mapping

from sparring.contracts import TableConfig
from sparring_rocksdb.options import RocksdbOptions

__all__ = ["estimate_rocksdb_bytes"]

_ROW_OVERHEAD = 16
"""Bytes of a row in a compacted file but the row and its filter: key, sequence number, lengths, index."""
_KNOWN_BUCKET_BYTES, _KNOWN_SLOTS, _MOST_KNOWN_LOAD = 65, 8, 0.8
"""Of ``native/table/known_keys.h``."""


def estimate_rocksdb_bytes(
    table: TableConfig, options: RocksdbOptions, rows: int
) -> Mapping[str, int]:
    """Files of a table that was compacted, uncompressed, and the most memory of the table itself.

    The cache of blocks is left out: the tables of a folder share it.
    """
    row = table.row_bytes + _ROW_OVERHEAD + options.bloom_bits_per_key / 8
    buckets = 64
    while buckets * _KNOWN_SLOTS * _MOST_KNOWN_LOAD < rows:
        buckets *= 2
    while buckets * _KNOWN_BUCKET_BYTES > options.known_keys_bytes and buckets > 0:
        buckets //= 2
    written = min(options.write_buffer_bytes, int(rows * row))
    return {"host": buckets * _KNOWN_BUCKET_BYTES + written, "disk": int(rows * row)}
