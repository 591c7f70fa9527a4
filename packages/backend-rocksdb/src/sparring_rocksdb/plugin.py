"""The sparring plugin of this package. Importing it does not load the native library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparring.contracts import StorageDescriptor, hookimpl
from sparring_rocksdb.options import RocksdbOptions

if TYPE_CHECKING:
    from sparring.contracts import Storage, TableConfig
    from sparring_train import JoinStoreDescriptor


@hookimpl
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    return [
        StorageDescriptor(
            name="rocksdb",
            api_version=(1, 0),
            summary="Persistent tables in RocksDB on flash, which may be larger than memory.",
            options=RocksdbOptions,
            factory=_open,
            found=_found,
            estimate_bytes=_estimate,
        )
    ]


@hookimpl(optionalhook=True)
def sparring_register_join_stores() -> Sequence[JoinStoreDescriptor]:
    from sparring_rocksdb.join_store import RocksdbJoinOptions, RocksdbJoinStore
    from sparring_train import JoinStoreDescriptor

    return [
        JoinStoreDescriptor(
            name="rocksdb",
            api_version=(1, 0),
            summary="Open impressions in RocksDB, which may be larger than memory.",
            options=RocksdbJoinOptions,
            open=RocksdbJoinStore,
        )
    ]


def _open(table: TableConfig, options: RocksdbOptions) -> Storage:
    from sparring_rocksdb.backend import RocksdbStorage

    return RocksdbStorage(table, options)


def _estimate(table: TableConfig, options: RocksdbOptions, rows: int) -> Mapping[str, int]:
    from sparring_rocksdb.estimate import estimate_rocksdb_bytes

    return estimate_rocksdb_bytes(table, options, rows)


def _found(table: TableConfig, options: RocksdbOptions) -> TableConfig | None:
    from sparring_rocksdb.backend import found_table

    return found_table(table, options)
