"""Options of the ``rocksdb`` storage."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from sparring.contracts import ByteCount, Options, WholeNumber

__all__ = ["Compression", "RocksdbOptions"]

_PLACEHOLDERS = ("{rank}", "{world_size}", "{table}")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")

Compression = Literal["none", "snappy", "lz4", "zstd"]


class RocksdbOptions(Options):
    """Options of the ``rocksdb`` storage: location, memory and durability of tables.

    All open tables of a folder share its caches and threads, so all options except `sync_writes` and
    `known_keys_bytes` must be the same for them.
    """

    path: Path
    """Folder of the tables; it is created if it does not exist. Several tables may share it. Only
    one process at a time may open it for writing; others can open it as `secondary`. ``{rank}``,
    ``{world_size}`` and ``{table}`` are replaced by their values."""
    block_cache_bytes: ByteCount = Field(default=256 << 20, ge=0)
    """Memory for cached blocks of rows, including indexes and bloom filters. The tables of the folder
    share it."""
    write_buffer_bytes: ByteCount = Field(default=64 << 20, ge=1 << 16, le=1 << 40)
    """Memory per table for rows that are not yet written to files. Up to twice as much is used during a
    flush."""
    known_keys_bytes: ByteCount = Field(default=64 << 20, ge=0)
    """Memory per table for a set of recently written keys, 10 to 20 bytes per key. An upsert of keys in
    this set does not read them to count the rows."""
    block_bytes: ByteCount = Field(default=4096, ge=512, le=1 << 28)
    """Size of a block, the unit of reads from the disk, before compression."""
    bloom_bits_per_key: float = Field(default=10.0, ge=0, le=64)
    """Size of the bloom filters, which avoid reads for missing keys; with 10 bits, about 1 % of these
    reads are not avoided. 0 disables the filters."""
    compression: Compression = "none"
    """Compression of the files. Trained float32 rows hardly compress; try ``zstd`` for 16-bit rows."""
    direct_io: bool = False
    """Whether to bypass the page cache of the system, which leaves its memory free."""
    rate_limit_bytes_per_second: ByteCount | None = Field(default=None, ge=1)
    """Maximum rate of writes by flushes and compactions together; None for no limit."""
    max_open_files: WholeNumber | None = Field(default=None, ge=16, le=2**31 - 1)
    """Maximum number of open files; None to keep all files open."""
    background_threads: WholeNumber = Field(default=2, ge=1, le=1024)
    """Number of threads for flushes and compactions."""
    sync_writes: bool = False
    """Durability of an acknowledged write. False: it survives a crash of the process, but a power
    failure only after `flush` or `close`. True: it also survives a power failure; every call waits for
    the disk."""
    recovery: Literal["strict", "point_in_time"] = "strict"
    """Handling of a log that is damaged before its end. ``strict``: raise an error. ``point_in_time``:
    open the table with the writes before the damage; later writes are lost."""
    secondary: bool = False
    """Whether to open an existing table read-only while another process of this machine writes it. Each
    call reads the rows that were written before it started."""

    @field_validator("path")
    @classmethod
    def _names_what_is_known(cls, path: Path) -> Path:
        for name in _PLACEHOLDER.findall(str(path)):
            if name not in _PLACEHOLDERS:
                raise PydanticCustomError(
                    "unknown_placeholder",
                    "must contain no placeholders other than {known}",
                    {"name": name, "known": ", ".join(_PLACEHOLDERS)},
                )
        return path
