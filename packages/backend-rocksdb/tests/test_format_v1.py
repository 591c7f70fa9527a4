"""A folder of format 1, kept as release 0.1 wrote it, is opened by every release; and its layout.

`format_v1` was written once, and is never written again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from sparring.contracts import TableConfig
from sparring_rocksdb.backend import RocksdbStorage, found_table
from sparring_rocksdb.options import RocksdbOptions

FOLDER = Path(__file__).parent / "format_v1"
TABLE = TableConfig("item", 3).with_state(2, "adagrad")
HALF = TableConfig("half", 3, "bfloat16").with_state(1, "rowwise_adagrad")
KEYS = np.array([-(2**63), -1, 0, 7, 2**63 - 1])


def rows_of(table: TableConfig) -> np.ndarray:
    count = len(KEYS) * table.width
    return np.arange(count).reshape(len(KEYS), table.width).astype(table.numpy_dtype)


def opened(path: Path, table: TableConfig) -> RocksdbStorage:
    return RocksdbStorage(table, RocksdbOptions(path=path, compression="none"))


def test_a_folder_of_format_1_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    shutil.copytree(FOLDER, path)
    for table in (TABLE, HALF):
        plain = TableConfig(table.name, table.dim, table.dtype)
        assert found_table(plain, RocksdbOptions(path=path)) == table
        with opened(path, table) as storage:
            assert storage.size == len(KEYS)
            found = storage.find(KEYS)
            assert found.found.all()
            assert found.rows.tobytes() == rows_of(table).tobytes()
            storage.upsert([8], rows_of(table)[:1])
            assert storage.size == len(KEYS) + 1


def test_a_purge_leaves_no_bytes_of_erased_rows(tmp_path: Path) -> None:
    def has_bytes(pattern: bytes) -> bool:
        return any(pattern in each.read_bytes() for each in tmp_path.iterdir() if each.is_file())

    rows = np.random.default_rng(3).random((40, TABLE.width)).astype(np.float32)
    keys = np.arange(40) + 0x1234_5678_9ABC_DE00
    with opened(tmp_path, TABLE) as storage:
        storage.upsert(keys, rows)
        storage.flush()
        assert storage.erase(keys[:1]) == 1
        assert has_bytes(rows[0].tobytes())
        storage.purge()
        assert not has_bytes(rows[0].tobytes())
        assert has_bytes(rows[1].tobytes())
        assert storage.size == 39
        assert storage.find(keys).found.sum() == 39
    with opened(tmp_path, TABLE):  # which rewrites the list of files
        code = int(keys[0]) + 2**63  # the layout: sign bit flipped, big endian
        assert not has_bytes(code.to_bytes(8, "big"))
