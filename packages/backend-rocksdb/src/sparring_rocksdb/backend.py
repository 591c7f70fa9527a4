"""The ``rocksdb`` storage: tables in RocksDB behind the contract of core."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from sparring.contracts import Capabilities, NativeStorage, TableConfig
from sparring.errors import InvalidArgumentError, PluginError
from sparring_rocksdb.options import RocksdbOptions

if TYPE_CHECKING:
    from sparring_rocksdb import _native

__all__ = ["RocksdbOptions", "RocksdbStorage", "found_table"]


class RocksdbStorage(NativeStorage):
    """A table in a folder on flash. It is there again when the folder is opened again.

    Several tables may be open in one folder; they then share one RocksDB database, which the last
    one to be closed closes. A table can be open once in a process, and a folder in one process.

    Args:
        table: what the rows are.
        options: where they lie, and how.
        validate: see `sparring.contracts.storage.storage.Storage`.

    Raises:
        InvalidArgumentError: the table was made with rows of another kind (dim, dtype, optimizer's
            state), or is open already; the folder is open with other options, or holds something
            else.
        StorageIOError: the folder cannot be made or written to, or another process has it open.
        CorruptDataError: its files fail their own checks.
        PluginError: the native library cannot be loaded here.
    """

    capabilities = Capabilities(persistent=True, native=True, concurrent_reads=True, notes=True)

    def __init__(
        self, table: TableConfig, options: RocksdbOptions, *, validate: bool = True
    ) -> None:
        self._database = _open_database(options)
        try:
            label = self._database.label(table.name)
            if label is not None:
                table.check_row_label(label, options.path)
            self._table = self._database.open_table(
                table.name,
                # What is there keeps the label that it was made with.
                label=table.row_label if label is None else label,
                row_bytes=table.row_bytes,
                sync_writes=options.sync_writes,
                known_keys_bytes=options.known_keys_bytes,
            )
            super().__init__(
                self._table.capsule, table, capabilities=self.capabilities, validate=validate
            )
        except BaseException:
            self._database.close()
            raise
        self.options = options

    def checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Writes all tables of the folder, as they are now, into a new folder.

        Files that never change again are linked, not copied, where `path` is on the same file
        system: it takes little time and no space until the tables change. The new folder can be
        opened as any other. It appears when it is complete, or not at all.

        Raises:
            InvalidArgumentError: there is something at `path`.
            StorageIOError: it cannot be written.
            ClosedError: the storage was closed.
        """
        self._check_open()
        self._database.checkpoint(os.fspath(Path(path)))

    def purge(self) -> None:
        """Rewrites the files of the table, so that none has bytes of rows that were erased. The list
        of files, which has the first and last key of each, is rewritten when the folder is opened
        next.

        Raises:
            StorageIOError: they cannot be written.
            ClosedError: the storage was closed.
        """
        self._check_open()
        self._database.purge(self.table.name)

    def _write_note_impl(self, name: str, text: str | None) -> None:
        self._database.write_note(self.table.name, name, text)

    def _read_note_impl(self, name: str) -> str | None:
        return self._database.read_note(self.table.name, name)

    def _close_impl(self) -> None:
        super()._close_impl()
        # Others may hold the capsule still: they find the table closed, and the folder is free.
        self._table.close()
        self._database.close()


def found_table(table: TableConfig, options: RocksdbOptions) -> TableConfig | None:
    """Of which table the rows in the folder are; None where there are none. Makes no folder.

    Raises:
        PluginError, StorageIOError, CorruptDataError, InvalidArgumentError: as `RocksdbStorage`.
    """
    if not (options.path / "CURRENT").exists():
        return None
    database = _open_database(options)
    try:
        label = database.label(table.name)
    finally:
        database.close()
    return None if label is None else table.with_row_label(label)


def _open_database(options: RocksdbOptions) -> _native.Database:
    try:
        from sparring_rocksdb import _native
    except ImportError as error:
        raise PluginError(
            f"storage 'rocksdb': its native library cannot be loaded ({error}); install it again: "
            "pip install --force-reinstall sparring-rocksdb, or, where it was built from source, "
            "the library that it was built with: apt install librocksdb-dev",
            backend="rocksdb",
        ) from error
    _reject_foreign_folder(options.path)
    return _native.Database(
        str(options.path),
        block_cache_bytes=options.block_cache_bytes,
        write_buffer_bytes=options.write_buffer_bytes,
        block_bytes=options.block_bytes,
        bloom_bits_per_key=options.bloom_bits_per_key,
        compression=options.compression,
        direct_io=options.direct_io,
        rate_limit_bytes_per_second=options.rate_limit_bytes_per_second or 0,
        max_open_files=-1 if options.max_open_files is None else options.max_open_files,
        background_threads=options.background_threads,
        recovery=options.recovery,
        **({"secondary": True} if options.secondary else {}),
    )


# What a database has, also one that was killed while it was made.
_OUR_FILES = re.compile(
    r"(CURRENT|IDENTITY|LOCK|LOG(\.old(\.\d+)?)?|(MANIFEST|OPTIONS)-\d+|\d+\.(sst|log|blob)|.*\.dbtmp"
    r"|lost\+found|archive)\Z"
)


def _reject_foreign_folder(path: Path) -> None:
    """Raises where a folder holds something, and no database."""
    try:
        names = sorted(each.name for each in path.iterdir())
    except OSError:
        return  # missing, or RocksDB says what is wrong with it
    if "CURRENT" in names:
        return
    foreign = [name for name in names if not _OUR_FILES.match(name)]
    if foreign:
        raise InvalidArgumentError(
            f"storage 'rocksdb': the folder {path} holds no database, but {foreign[0]!r}"
            + (f" and {len(foreign) - 1:,} more that are none of RocksDB's" * (len(foreign) > 1))
            + "; name a folder of its own as path",
            path=str(path),
        )
