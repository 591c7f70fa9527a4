"""Runs sparring's test kit, and tests what is specific to this backend."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sparring import open_storage
from sparring.contracts import Storage, TableConfig
from sparring.errors import InvalidArgumentError, StorageIOError
from sparring_sqlite import SqliteOptions
from sparring_sqlite.backend import SqliteStorage
from sparring_sqlite.plugin import sparring_register_storage
from sparring_testing import StorageTests


class TestSqliteStorage(StorageTests):
    @pytest.fixture
    def make_storage(self, tmp_path: Path) -> Any:
        numbers = count()

        def make(table: TableConfig) -> Storage:
            folder = tmp_path / str(next(numbers))
            return SqliteStorage(table, SqliteOptions(folder=folder))

        return make

    @pytest.fixture
    def reopen_storage(self) -> Any:
        return lambda closed: SqliteStorage(closed.table, closed.options)

    @pytest.fixture
    def estimate(self) -> Any:
        (descriptor,) = sparring_register_storage()
        return lambda storage, rows: descriptor.estimate_bytes(storage.table, storage.options, rows)


def test_storage_opens_by_name(tmp_path: Path) -> None:
    with open_storage("sqlite", TableConfig("films", 4), folder=tmp_path) as storage:
        assert isinstance(storage, SqliteStorage)
    assert (tmp_path / "films.sqlite").exists()


@pytest.mark.parametrize(("dim", "dtype"), [(8, "float32"), (4, "float64")])
def test_file_of_another_shape_is_rejected(tmp_path: Path, dim: int, dtype: str) -> None:
    options = SqliteOptions(folder=tmp_path)
    SqliteStorage(TableConfig("films", 4), options).close()
    with pytest.raises(InvalidArgumentError, match=r"'float32 x 4 \+ 0'.*declare the table as it"):
        SqliteStorage(TableConfig("films", dim, dtype), options)


def test_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageIOError, match="set another folder"):
        SqliteStorage(TableConfig("films", 4), SqliteOptions(folder=tmp_path / "file"))


def test_file_that_is_not_a_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "films.sqlite").write_bytes(b"not a database, but long enough to look like one")
    with pytest.raises(StorageIOError, match=r"films\.sqlite"):
        SqliteStorage(TableConfig("films", 4), SqliteOptions(folder=tmp_path))
