"""Runs core's kit on tables in separate folders, and on tables that share one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sparring.contracts import Storage, TableConfig
from sparring_rocksdb.backend import RocksdbStorage
from sparring_rocksdb.options import RocksdbOptions
from sparring_testing.storages.storage_tests import StorageTests


class TestRocksdb(StorageTests):
    """The defaults, with a separate folder for each table."""

    @pytest.fixture
    def make_storage(self, tmp_path: Path) -> Callable[..., RocksdbStorage]:
        numbers = count()

        def make(table: TableConfig, **options: Any) -> RocksdbStorage:
            folder = tmp_path / str(next(numbers))
            return RocksdbStorage(table, RocksdbOptions(path=folder, **options))

        return make

    @pytest.fixture
    def reopen_storage(self) -> Callable[[RocksdbStorage], Storage]:
        return lambda closed: RocksdbStorage(closed.table, closed.options)


@pytest.mark.slow  # the same kit with other options
class TestRocksdbWithLittleMemory(TestRocksdb):
    """Buffers that are flushed all the time, and a bound of few known keys."""

    @pytest.fixture
    def make_storage(self, tmp_path: Path) -> Callable[..., RocksdbStorage]:
        numbers = count()

        def make(table: TableConfig, **options: Any) -> RocksdbStorage:
            little = {
                "path": tmp_path / str(next(numbers)),
                "write_buffer_bytes": 1 << 16,
                "block_cache_bytes": 1 << 20,
                "known_keys_bytes": 1 << 13,
                "block_bytes": 512,
            }
            return RocksdbStorage(table, RocksdbOptions(**{**little, **options}))

        return make
