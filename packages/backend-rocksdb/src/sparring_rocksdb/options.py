"""The options of the ``rocksdb`` storage."""

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
    """Where tables of ``rocksdb`` lie, what memory they take, and what survives what.

    All tables that are open in one folder share its caches and threads, so all options but
    `sync_writes` and `known_keys_bytes` must be the same for them.
    """

    path: Path
    """The folder, made if it is missing. Several tables may share it; one process at a time may
    have it open, and others as `secondary`. ``{rank}``, ``{world_size}`` and ``{table}`` stand for
    what they say."""
    block_cache_bytes: ByteCount = Field(default=256 << 20, ge=0)
    """Memory for blocks of rows that were read, indexes and bloom filters included; shared by the
    tables of the folder."""
    write_buffer_bytes: ByteCount = Field(default=64 << 20, ge=1 << 16, le=1 << 40)
    """Memory for rows that were written and are not in files yet, for each table. Up to twice as
    much while it is being written out."""
    known_keys_bytes: ByteCount = Field(default=64 << 20, ge=0)
    """Memory, for each table, for keys that are known to be in it: an upsert that knows its keys
    need not look for them to count rows. It takes 10 to 20 bytes a key, and holds the keys that
    were written last."""
    block_bytes: ByteCount = Field(default=4096, ge=512, le=1 << 28)
    """Size of a block: what one read from the disk brings, before compression."""
    bloom_bits_per_key: float = Field(default=10.0, ge=0, le=64)
    """Size of the filters that spare reads for keys that are not there; 10 let one in a hundred
    through. 0: no filters."""
    compression: Compression = "none"
    """Of the files. Rows of trained floats hardly shrink; ``zstd`` is worth trying for 16 bits."""
    direct_io: bool = False
    """Read and write files past the system's page cache, whose memory then stays free."""
    rate_limit_bytes_per_second: ByteCount | None = Field(default=None, ge=1)
    """The most that flushes and compactions write together; None: no limit."""
    max_open_files: WholeNumber | None = Field(default=None, ge=16, le=2**31 - 1)
    """File handles kept open; None: all files."""
    background_threads: WholeNumber = Field(default=2, ge=1, le=1024)
    """Threads for flushes and compactions."""
    sync_writes: bool = False
    """Durability of an acknowledged write. False: it survives the end of the process, however it
    ends; a power loss only after `flush` or `close`. True: it survives a power loss too; every
    call then waits for the disk."""
    recovery: Literal["strict", "point_in_time"] = "strict"
    """Handling of a log that is damaged before its end. ``strict``: refuse to open.
    ``point_in_time``: open with what was written before the damage; the rest is lost."""
    secondary: bool = False
    """Read only: rows that another process of this machine writes meanwhile, as it has written them
    when a call begins. The folder and the table are there already."""

    @field_validator("path")
    @classmethod
    def _names_what_is_known(cls, path: Path) -> Path:
        for name in _PLACEHOLDER.findall(str(path)):
            if name not in _PLACEHOLDERS:
                raise PydanticCustomError(
                    "unknown_placeholder",
                    "{name} stands for nothing, so a folder of that name would be made; write one "
                    "of {known}, or leave the braces out",
                    {"name": name, "known": ", ".join(_PLACEHOLDERS)},
                )
        return path
