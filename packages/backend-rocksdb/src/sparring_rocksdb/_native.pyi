from collections.abc import Sequence

__version__: str
rocksdb_version: str

class Table:
    """One open table of a database."""

    @property
    def capsule(self) -> object:
        """The table as a capsule of ``storage_abi.h``."""

    def close(self) -> None:
        """Waits for calls in progress. Later calls raise `ClosedError`."""

class Database:
    """One RocksDB database. All openings of its folder in this process share it.

    Raises:
        sparring.errors.InvalidArgumentError: the folder is open with other options, or contains
            other files.
        sparring.errors.StorageIOError: another process has opened the folder, or it cannot be
            created.
        sparring.errors.CorruptDataError: the checksums of its files do not match.
    """

    def __init__(
        self,
        folder: str,
        *,
        block_cache_bytes: int,
        write_buffer_bytes: int,
        block_bytes: int,
        bloom_bits_per_key: float,
        compression: str,
        direct_io: bool,
        rate_limit_bytes_per_second: int,
        max_open_files: int,
        background_threads: int,
        recovery: str,
        secondary: bool = False,
    ) -> None: ...
    def label(self, table: str) -> str | None:
        """Returns the label of a table's rows; None if the table does not exist."""

    def read_note(self, table: str, name: str) -> str | None:
        """Returns a text that is stored with a table, or None."""

    def write_note(self, table: str, name: str, text: str | None) -> None:
        """Stores a text with a table durably; None removes it."""

    def tables(self) -> list[str]:
        """Returns the names of all tables in the folder."""

    def open_table(
        self, name: str, *, label: str, row_bytes: int, sync_writes: bool, known_keys_bytes: int
    ) -> Table:
        """Opens a table, and creates it if it does not exist.

        Raises:
            sparring.errors.InvalidArgumentError: the table is already open in this process, or
                its rows have another label.
        """

    def checkpoint(self, folder: str) -> None:
        """Copies all tables in their present state to a new folder, by hard links."""

    def purge(self, table: str) -> None:
        """Rewrites the files of a table without the bytes of erased rows."""

    def close(self) -> None:
        """Closes this object. The database is closed with the last object that uses it."""

class TimedRecords:
    """Records by key and by time, for `RocksdbJoinStore`.

    Raises:
        sparring.errors.StorageIOError: the folder cannot be written, or another process has opened it.
        sparring.errors.CorruptDataError: the checksums of its files do not match.
    """

    def __init__(
        self, folder: str, *, block_cache_bytes: int, write_buffer_bytes: int, compression: str
    ) -> None: ...
    def get(self, keys: Sequence[bytes]) -> list[tuple[float, bytes] | None]: ...
    def write(
        self,
        removed: Sequence[tuple[bytes, float]],
        added: Sequence[tuple[bytes, float, bytes]],
    ) -> None: ...
    def scan(
        self, after: float, until: float, max_records: int
    ) -> list[tuple[float, bytes, bytes]]: ...
    def checkpoint(self, folder: str) -> None: ...
