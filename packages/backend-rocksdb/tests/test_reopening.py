"""Folders of tables: labels, sharing within a process, and locks against other processes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import StepContainer, StorageChoice, open_storage
from sparring.contracts import NativeStorage, TableConfig, get_capsule
from sparring.errors import ClosedError, InvalidArgumentError, StorageIOError
from sparring_cli.application import main
from sparring_rocksdb.backend import RocksdbStorage
from sparring_rocksdb.options import RocksdbOptions
from sparring_testing.processes.rank_threads import run_containers

TABLE = TableConfig("item", 4)
ADAGRAD = TABLE.with_state(4, "adagrad")
ROWS = np.arange(24, dtype=np.float32).reshape(3, 8)


def opened(path: Path, table: TableConfig = ADAGRAD, **options: Any) -> RocksdbStorage:
    return RocksdbStorage(table, RocksdbOptions(path=path, **options))


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    with opened(tmp_path / "rows") as storage:
        storage.upsert([5, -1, 7], ROWS)
    return tmp_path / "rows"


@pytest.mark.parametrize(
    "other",
    [TABLE, TABLE.with_state(4, "momentum"), TABLE.with_state(1, "rowwise_adagrad")],
    ids=lambda table: table.row_label,
)
def test_rows_written_by_other_code_are_rejected_with_the_command(
    filled: Path, other: TableConfig
) -> None:
    with pytest.raises(InvalidArgumentError, match=r"float32 x 4 \+ 4 adagrad.*sparring convert"):
        open_storage("rocksdb", other, path=filled)
    for same in (ADAGRAD, TABLE.with_state(4, "Adagrad"), TABLE.with_state(4)):
        with opened(filled, same) as storage:
            assert storage.size == 3


@pytest.mark.parametrize(("dim", "dtype"), [(8, "float32"), (4, "float64")])
def test_rows_of_another_shape_are_rejected_and_both_are_named(
    filled: Path, dim: int, dtype: str
) -> None:
    asked = rf"float32 x 4 \+ 4 adagrad.*'{dtype} x {dim} \+ 4 adagrad'.*declare the table as it"
    with pytest.raises(InvalidArgumentError, match=asked):
        opened(filled, TableConfig("item", dim, dtype).with_state(4, "adagrad"))


def test_convert_keeps_embeddings_and_resets_the_state(filled: Path, tmp_path: Path) -> None:
    command = ["convert", "rocksdb", "item", "--dim", "4", "--from", "adagrad", "--to", "none"]
    new = tmp_path / "new"
    assert main([*command, "--from-option", f"path={filled}", "--to-option", f"path={new}"]) == 0
    with opened(new, TABLE) as storage:
        np.testing.assert_array_equal(storage.find([5, -1, 7]).rows, ROWS[:, :4])


def test_tables_of_one_folder_are_separate_and_can_be_reopened(tmp_path: Path) -> None:
    names = ["item", "user", "default", "table.item"]
    stores = [opened(tmp_path, TableConfig(name, 1)) for name in names]
    for number, storage in enumerate(stores):
        storage.upsert(np.arange(100), np.full((100, 1), number, np.float32))
    stores[0].clear()
    stores[1].erase(np.arange(50))
    for storage in stores:
        storage.close()
    for number, (name, size) in enumerate(zip(names, [0, 50, 100, 100], strict=True)):
        with opened(tmp_path, TableConfig(name, 1)) as storage:
            assert storage.size == sum(map(len, storage.scan())) == size
            assert all((chunk.rows == number).all() for chunk in storage.scan())


def test_a_table_is_open_once_in_a_process_for_any_spelling_of_the_folder(filled: Path) -> None:
    with opened(filled):
        for spelling in (filled, filled / ".." / "rows"):
            with pytest.raises(InvalidArgumentError, match="already open in this process"):
                opened(spelling)
    opened(filled).close()


def test_tables_of_one_folder_share_its_options(tmp_path: Path) -> None:
    with opened(tmp_path, block_cache_bytes=1 << 20):
        other = TableConfig("user", 4)
        with pytest.raises(
            InvalidArgumentError, match="block_cache_bytes 1048576 and 2097152, direct_io 0 and 1"
        ):
            opened(tmp_path, other, block_cache_bytes=1 << 21, direct_io=True)
        opened(tmp_path, other, block_cache_bytes=1 << 20, sync_writes=True).close()


def test_a_folder_is_open_in_one_process(filled: Path) -> None:
    program = (
        "import sparring, sys\n"
        "from sparring.errors import StorageIOError\n"
        "table = sparring.TableConfig('item', 4).with_state(4, 'adagrad')\n"
        "try: sparring.open_storage('rocksdb', table, path=sys.argv[1])\n"
        "except StorageIOError as error: print(error)"
    )
    with opened(filled) as storage:
        command = [sys.executable, "-c", program, str(filled)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "another process has this folder open" in ran.stdout
        assert storage.size == 3


def test_closing_frees_the_folder_although_handles_remain(filled: Path) -> None:
    storage = opened(filled)
    handle = NativeStorage(get_capsule(storage), ADAGRAD)
    assert handle.size == 3
    storage.close()
    for call in (
        lambda: handle.find([5]),
        lambda: handle.size,
        lambda: handle.upsert([5], ROWS[:1]),
    ):
        with pytest.raises(ClosedError, match="open it again"):
            call()
    with opened(filled) as again:
        assert again.size == 3


def test_close_waits_for_concurrent_readers(filled: Path) -> None:
    storage = opened(filled)
    keys = np.arange(20_000)
    storage.upsert(keys, np.ones((20_000, 8), np.float32))

    def read() -> None:
        while True:
            assert storage.find(keys).found.all()

    with ThreadPoolExecutor(2) as threads:
        reading = [threads.submit(read) for _ in range(2)]
        storage.find(keys)
        storage.close()
        for each in reading:
            assert isinstance(each.exception(10), ClosedError)


def test_a_checkpoint_contains_the_rows_of_its_moment(filled: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copies" / "one"
    with opened(filled) as storage:
        storage.checkpoint(copy)
        storage.upsert([5, 6], ROWS[:2] + 1)
        with pytest.raises(InvalidArgumentError, match="does not exist"):
            storage.checkpoint(copy)
        with opened(copy) as copied:
            assert copied.size == 3
            np.testing.assert_array_equal(copied.find([5, -1, 7]).rows, ROWS)
        assert storage.size == 4
    linked = {each.name: each.stat().st_ino for each in filled.glob("*.sst")}
    assert any(linked.get(each.name) == each.stat().st_ino for each in copy.glob("*.sst"))


def test_each_rank_has_a_separate_folder(tmp_path: Path) -> None:
    choice = StorageChoice("rocksdb", {"path": str(tmp_path / "{rank}-of-{world_size}")})

    def write(container: StepContainer) -> None:
        container.declare(TABLE, choice)
        container.storage("item").upsert([container.collective.rank], np.ones((1, 4), np.float32))

    run_containers(2, write)
    for rank in range(2):
        with opened(tmp_path / f"{rank}-of-2", TABLE) as storage:
            assert storage.find([0, 1]).found.tolist() == [rank == 0, rank == 1]


def test_a_path_that_is_not_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageIOError, match=r"file.*this process may write to"):
            opened(path)
