"""The sparring plugin of this package. Importing it does not import sqlite3."""

from sparring.contracts import Storage, StorageDescriptor, TableConfig, hookimpl
from sparring.errors import PluginError
from sparring_sqlite import SqliteOptions


def _open(table: TableConfig, options: SqliteOptions) -> Storage:
    try:
        from sparring_sqlite.backend import SqliteStorage
    except ImportError as error:
        raise PluginError("sqlite: cannot import sqlite3; run: apt install libsqlite3-0") from error
    return SqliteStorage(table, options)


@hookimpl
def sparring_register_storage() -> list[StorageDescriptor]:
    return [
        StorageDescriptor(
            name="sqlite",
            api_version=(1, 0),  # version of the storage contract, not of a package
            summary="Stores each table in one SQLite file.",
            options=SqliteOptions,
            factory=_open,
            # The cache, and the file: a row takes about 20 bytes more than its blob.
            estimate_bytes=lambda t, _, n: {"host": 8 << 20, "disk": n * (t.row_bytes + 20)},
        )
    ]
