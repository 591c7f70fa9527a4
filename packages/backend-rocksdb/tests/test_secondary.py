"""A folder that one process writes while others read it: ``secondary``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import open_storage
from sparring.contracts import TableConfig
from sparring.errors import InvalidArgumentError, StorageIOError, UnsupportedError
from sparring_rocksdb.backend import RocksdbStorage
from sparring_rocksdb.options import RocksdbOptions

TABLE = TableConfig("item", 4)
KEYS = np.arange(1_000)

# Writes version after version of all rows, each in one call; prints each acknowledged one.
WRITER = """
import sys

import numpy as np

from sparring import open_storage
from sparring.contracts import TableConfig

keys = np.arange(1_000)
options = {"path": sys.argv[1], "write_buffer_bytes": "64 KiB"}
with open_storage("rocksdb", TableConfig("item", 4), **options) as storage:
    for line in sys.stdin:
        for version in range(int(line)):
            storage.upsert(keys, np.full((1_000, 4), version + 1, np.float32))
        print("written", flush=True)
"""


def opened(path: Path, **options: Any) -> RocksdbStorage:
    return RocksdbStorage(TABLE, RocksdbOptions(path=path, **options))


def versions_of(storage: RocksdbStorage) -> np.ndarray[Any, Any]:
    found = storage.find(KEYS)
    assert found.found.all()
    return found.rows


def test_a_find_sees_earlier_writes(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with opened(path) as writer:
        writer.upsert([1, 2], np.ones((2, 4), np.float32))
        with opened(path, secondary=True) as reader:
            assert reader.size == 2
            for version in range(2, 30):
                keys = [1, 2 + version % 3]
                writer.upsert(keys, np.full((2, 4), version, np.float32))
                assert (reader.find(keys).rows == version).all()
            writer.erase([1])
            assert reader.find([1]).found.tolist() == [False]
            assert reader.size == writer.size == 3
            (chunk,) = reader.scan()
            assert chunk.keys.tolist() == [2, 3, 4]
            writer.clear()
            assert reader.size == 0
            assert not reader.find([2]).found.any()
            writer._write_note_impl("load", "7")
            assert reader._read_note_impl("load") == "7"
            writer.close()
            with opened(path) as again:
                again.upsert([9], np.ones((1, 4), np.float32))
                assert reader.find([9, 2]).found.tolist() == [True, False]
    assert sorted(each.name for each in path.iterdir() if each.is_dir()) == []


@pytest.mark.slow  # `test_a_cache_in_another_process` reads while another process writes
def test_another_process_may_write_flush_and_compact(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write("1\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "written\n"
        with pytest.raises(StorageIOError, match="another process has this folder open"):
            opened(path)
        with opened(path, secondary=True) as reader:
            assert (versions_of(reader) == 1).all()
            writer.stdin.write("300\n")
            writer.stdin.flush()
            last, seen, end = 0.0, set[float](), time.monotonic() + 60
            while last < 300 and time.monotonic() < end:
                rows = versions_of(reader)
                assert (rows == rows[0, 0]).all(), "a batch was seen in part"
                assert rows[0, 0] >= last or last == 1, "an older version than before"
                last = float(rows[0, 0])
                seen.add(last)
            assert last == 300
            assert len(seen) > 1
            assert reader.size == 1_000
        writer.stdin.close()


def test_it_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with pytest.raises(StorageIOError, match="no database to read as a secondary"):
        opened(path, secondary=True)
    assert not path.exists()
    with opened(path) as writer:
        writer.upsert([1], np.ones((1, 4), np.float32))
    before = {each.name: each.stat().st_mtime_ns for each in path.iterdir()}
    with opened(path, secondary=True) as reader:
        row = np.zeros((1, 4), np.float32)
        for write in (
            lambda: reader.upsert([1], row),
            lambda: reader.erase([1]),
            reader.clear,
            reader.purge,
            lambda: reader.checkpoint(tmp_path / "copy"),
            lambda: reader._write_note_impl("load", "1"),
        ):
            with pytest.raises(UnsupportedError, match="secondary=true, to read what another"):
                write()
        reader.flush()
        assert reader.find([1]).rows.tolist() == [[1] * 4]
    assert {each.name: each.stat().st_mtime_ns for each in path.iterdir()} == before
    with pytest.raises(UnsupportedError, match="create a table"):
        RocksdbStorage(TableConfig("other", 4), RocksdbOptions(path=path, secondary=True))
    with pytest.raises(InvalidArgumentError, match="float32 x 4"):
        RocksdbStorage(TableConfig("item", 8), RocksdbOptions(path=path, secondary=True))


TRAINER = """
import sys

import numpy as np

from sparring import StepContainer, StorageChoice
from sparring_tiered import ChangePublisher
from sparring.contracts import TableConfig

keys = np.arange(1_000)
with StepContainer() as container:
    choice = StorageChoice("rocksdb", {"path": sys.argv[1], "write_buffer_bytes": "64 KiB"})
    container.declare(TableConfig("item", 4, initializer="zeros"), choice)
    storage = container.storage("item")
    publisher = ChangePublisher(container, url=sys.argv[2])
    for line in sys.stdin:
        step = int(line)
        some = keys[step % 10 :: 10] if step > 1 else keys
        storage.upsert(some, np.full((len(some), 4), step, np.float32))
        publisher.publish(step)
        print("published", flush=True)
"""


def test_a_cache_in_another_process_follows_the_notes_of_a_trainer(tmp_path: Path) -> None:
    path, notes = tmp_path / "rows", tmp_path / "notes"
    command = [sys.executable, "-c", TRAINER, str(path), str(notes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as trainer:
        assert trainer.stdin is not None
        assert trainer.stdout is not None

        def train(step: int) -> None:
            trainer.stdin.write(f"{step}\n")
            trainer.stdin.flush()
            assert trainer.stdout.readline() == "published\n"

        train(1)
        tiers = [
            {"backend": "memory"},
            {"backend": "rocksdb", "options": {"path": path, "secondary": True}},
        ]
        refresh = {"poll_seconds": 600, "notes": str(notes)}
        table = TableConfig("item", 4, initializer="zeros")
        with open_storage("tiered", table, tiers=tiers, refresh=refresh) as reader:
            expected = np.ones(1_000)
            assert np.array_equal(reader.find(KEYS).rows[:, 0], expected)
            for step in range(2, 12):
                train(step)
                expected[step % 10 :: 10] = step
                assert reader.refresh()
                assert np.array_equal(reader.find(KEYS).rows[:, 0], expected)
            counters = reader.counters()
            assert counters.missed_notes == 0
            assert counters.misses == 1_000
            assert 1_000 <= counters.reread_rows <= 1_010
        trainer.stdin.close()
