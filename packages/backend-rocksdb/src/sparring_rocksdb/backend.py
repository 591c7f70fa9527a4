"""The ``rocksdb`` storage."""

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
    """A persistent table in a folder on flash.

    Several tables may be open in one folder. They share one RocksDB database, which is closed with the
    last of them. A table can be open once per process, and a folder can be open in one process.

    Args:
        table: configuration of the table.
        options: folder, memory and durability.
        validate: see `sparring.contracts.storage.storage.Storage`.

    Raises:
        InvalidArgumentError: the stored table has a different dim, dtype or optimizer state, or is
            already open; the folder is open with different options, or contains other files.
        StorageIOError: the folder cannot be created or written, or another process has opened it.
        CorruptDataError: the checksums of its files do not match.
        PluginError: the native library cannot be loaded.
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
                # An existing table keeps the label with which it was created.
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
        """Copies all tables of the folder, in their present state, to a new folder.

        Immutable files are hard-linked if `path` is on the same file system, so the copy is fast and
        takes no space until the tables change. The new folder appears atomically and can be opened
        like any other.

        Raises:
            InvalidArgumentError: `path` already exists.
            StorageIOError: the new folder cannot be written.
            ClosedError: the storage was closed.
        """
        self._check_open()
        self._database.checkpoint(os.fspath(Path(path)))

    def purge(self) -> None:
        """Rewrites the files of the table without the bytes of erased rows.

        The list of files, which contains the first and last key of each file, is rewritten when the
        folder is opened the next time.

        Raises:
            StorageIOError: the files cannot be written.
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
        # Others may still have the capsule: for them the table is closed, and the folder can be reopened.
        self._table.close()
        self._database.close()


def found_table(table: TableConfig, options: RocksdbOptions) -> TableConfig | None:
    """Returns the configuration of the stored table, or None if there are no rows. Writes nothing.

    Raises:
        PluginError, StorageIOError, CorruptDataError, InvalidArgumentError: see `RocksdbStorage`.
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
            f"storage 'rocksdb': cannot load its native library ({error}); reinstall it: pip install "
            "--force-reinstall sparring-rocksdb, or, if it was built from source, install RocksDB: "
            "apt install librocksdb-dev",
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


# Files of a RocksDB database, including one whose creation was interrupted.
_OUR_FILES = re.compile(
    r"(CURRENT|IDENTITY|LOCK|LOG(\.old(\.\d+)?)?|(MANIFEST|OPTIONS)-\d+|\d+\.(sst|log|blob)|.*\.dbtmp"
    r"|lost\+found|archive)\Z"
)


def _reject_foreign_folder(path: Path) -> None:
    """Raises an error if a folder contains files, but no database."""
    try:
        names = sorted(each.name for each in path.iterdir())
    except OSError:
        return  # missing, or RocksDB reports the error
    if "CURRENT" in names:
        return
    foreign = [name for name in names if not _OUR_FILES.match(name)]
    if foreign:
        raise InvalidArgumentError(
            f"storage 'rocksdb': the folder {path} must be empty or contain a database, "
            f"found {foreign[0]!r}"
            + (f" and {len(foreign) - 1:,} more" * (len(foreign) > 1))
            + "; set path to another folder",
            path=str(path),
        )
