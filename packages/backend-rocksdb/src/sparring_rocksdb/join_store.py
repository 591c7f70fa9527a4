"""Open impressions of `sparring train` in RocksDB, for joins whose windows do not fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from sparring.contracts import ByteCount, Options
from sparring.errors import PluginError

if TYPE_CHECKING:
    from sparring_rocksdb import _native

__all__ = ["RocksdbJoinOptions", "RocksdbJoinStore"]


class RocksdbJoinOptions(Options):
    """Options of `data.join.storage: rocksdb`."""

    block_cache_bytes: ByteCount = Field(default=64 << 20, ge=0)
    """Memory for cached blocks, including indexes and filters."""
    write_buffer_bytes: ByteCount = Field(default=32 << 20, ge=1 << 16, le=1 << 40)
    """Memory for records that are not yet in files, for each of two column families. Up to twice as much
    is used while they are written."""
    compression: Literal["none", "snappy", "lz4", "zstd"] = "lz4"
    """Compression of the files."""


class RocksdbJoinStore:
    """See `sparring_train.JoinStore`.

    Args:
        folder: a folder that is empty or contains the files of a checkpoint.
        options: memory and compression.

    Raises:
        StorageIOError: the folder cannot be created or written.
        CorruptDataError: the checksums of its files do not match.
        PluginError: the native library cannot be loaded.
    """

    def __init__(self, folder: str, options: RocksdbJoinOptions) -> None:
        try:
            from sparring_rocksdb import _native
        except ImportError as error:
            raise PluginError(
                f"data.join.storage: rocksdb: cannot load its native library ({error}); reinstall it: "
                "pip install --force-reinstall sparring-rocksdb",
                backend="rocksdb",
            ) from error
        self._records: _native.TimedRecords | None = _native.TimedRecords(
            folder,
            block_cache_bytes=options.block_cache_bytes,
            write_buffer_bytes=options.write_buffer_bytes,
            compression=options.compression,
        )

    @property
    def _open(self) -> _native.TimedRecords:
        assert self._records is not None, "the store is closed"
        return self._records

    def get(self, keys: Sequence[bytes]) -> list[tuple[float, bytes] | None]:
        return self._open.get(keys)

    def write(
        self,
        removed: Sequence[tuple[bytes, float]],
        added: Sequence[tuple[bytes, float, bytes]],
    ) -> None:
        self._open.write(removed, added)

    def scan(
        self, after: float, until: float, max_records: int
    ) -> list[tuple[float, bytes, bytes]]:
        return self._open.scan(after, until, max_records)

    def checkpoint(self, folder: str) -> None:
        """Writes all records to a new folder, whose files are hard links if possible."""
        self._open.checkpoint(folder)

    def close(self) -> None:
        self._records = None
