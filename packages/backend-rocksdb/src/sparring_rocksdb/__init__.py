"""A storage backend of sparring that stores rows in RocksDB on flash.

``sparring.open_storage("rocksdb", table, path="rows")`` opens or creates a table in the folder
``rows``. Rows persist when the process ends, and tables may be larger than memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_rocksdb.backend import RocksdbStorage
    from sparring_rocksdb.options import RocksdbOptions

__all__ = ["RocksdbOptions", "RocksdbStorage"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Imported on demand, so that importing the plugin module does not load the native library.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sparring_rocksdb import backend

    return getattr(backend, name)
