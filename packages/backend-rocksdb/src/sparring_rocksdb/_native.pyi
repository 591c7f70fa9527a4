__version__: str
rocksdb_version: str

class Table:
    """One table of a database, open."""

    @property
    def capsule(self) -> object:
        """The table as a capsule of ``storage_abi.h``."""

    def close(self) -> None:
        """Waits for the calls under way; later ones find the table closed."""

class Database:
    """One RocksDB database, shared by all who have its folder open in this process.

    Raises:
        sparring.errors.InvalidArgumentError: the folder is open with other options, or holds
            something else.
        sparring.errors.StorageIOError: another process has it open, it cannot be made, …
        sparring.errors.CorruptDataError: its files fail their own checks.
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
        """What the rows of a table are; None where there is no such table."""

    def read_note(self, table: str, name: str) -> str | None:
        """A text that was kept with a table; None: there is none."""

    def write_note(self, table: str, name: str, text: str | None) -> None:
        """Keeps a text with a table, durably; None: forgets it."""

    def tables(self) -> list[str]:
        """The names of all tables in the folder."""

    def open_table(
        self, name: str, *, label: str, row_bytes: int, sync_writes: bool, known_keys_bytes: int
    ) -> Table:
        """Opens a table, or makes it.

        Raises:
            sparring.errors.InvalidArgumentError: it is open in this process already.
        """

    def checkpoint(self, folder: str) -> None:
        """Copies all tables as they are now into a new folder, by hard links."""

    def purge(self, table: str) -> None:
        """Rewrites the files of a table without the bytes of erased rows."""

    def close(self) -> None:
        """Lets go of it; the last one to do so closes the database."""
