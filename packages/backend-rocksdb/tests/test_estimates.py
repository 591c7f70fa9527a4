"""Estimates of tables on flash against their files and their memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparring.contracts import TableConfig
from sparring_rocksdb.backend import RocksdbStorage
from sparring_rocksdb.estimate import estimate_rocksdb_bytes
from sparring_rocksdb.options import RocksdbOptions


@pytest.mark.parametrize("dim", [2, 16, 64])
def test_estimate_is_the_size_of_compacted_files(tmp_path: Path, dim: int) -> None:
    options = RocksdbOptions(path=tmp_path, write_buffer_bytes=1 << 20)
    table, num_rows = TableConfig("films", dim), 60_000
    told = estimate_rocksdb_bytes(table, options, num_rows)
    keys = np.random.default_rng(0).choice(2**60, num_rows, replace=False)
    with RocksdbStorage(table, options) as storage:
        storage.upsert(keys, np.random.default_rng(1).random((num_rows, dim), np.float32))
        storage.purge()
        files = sum(path.stat().st_size for path in tmp_path.glob("*.sst"))
    assert told["disk"] == pytest.approx(files, rel=0.1)


def test_known_keys_and_the_write_buffer_are_bounded(tmp_path: Path) -> None:
    table = TableConfig("films", 16)
    roomy = RocksdbOptions(path=tmp_path)
    small = RocksdbOptions(path=tmp_path, known_keys_bytes=1 << 16, write_buffer_bytes=1 << 20)
    assert estimate_rocksdb_bytes(table, small, 10**7)["host"] <= (1 << 16) + (1 << 20)
    assert estimate_rocksdb_bytes(table, roomy, 10**7)["host"] > 64 << 20
    none = RocksdbOptions(path=tmp_path, known_keys_bytes=0)
    assert estimate_rocksdb_bytes(table, none, 0)["host"] == 0
