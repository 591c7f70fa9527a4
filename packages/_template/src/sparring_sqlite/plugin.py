"""Plugin of this package for sparring. Importing it imports no client library."""

from sparring.contracts import Storage, StorageDescriptor, TableConfig, hookimpl
from sparring.errors import PluginError
from sparring_sqlite import SqliteOptions


def _open(table: TableConfig, options: SqliteOptions) -> Storage:
    try:
        from sparring_sqlite.backend import SqliteStorage
    except ImportError as error:
        raise PluginError("sqlite: no sqlite3 here; run: apt install libsqlite3-0") from error
    return SqliteStorage(table, options)


@hookimpl
def sparring_register_storage() -> list[StorageDescriptor]:
    return [
        StorageDescriptor(
            name="sqlite",
            api_version=(1, 0),  # of the contract that this was written against, not of a package
            summary="Each table in one SQLite file: small, persistent, easy to look into.",
            options=SqliteOptions,
            factory=_open,
            # Its cache, and the file: a row takes about 20 bytes more than its blob.
            estimate_bytes=lambda t, _, n: {"host": 8 << 20, "disk": n * (t.row_bytes + 20)},
        )
    ]
