"""Damaged files and full disks raise typed errors, and acknowledged rows remain."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sparring import open_storage
from sparring.contracts import Storage, TableConfig
from sparring.errors import CorruptDataError, StorageIOError
from sparring_testing.faults.damaged_file import flip_byte

TABLE = TableConfig("item", 64)
KEYS = np.arange(20_000)


def rows_of(version: int) -> np.ndarray:
    return np.random.default_rng(version).random((len(KEYS), TABLE.dim), np.float32)


def reopened(path: Path, **options: object) -> Storage:
    return open_storage("rocksdb", TABLE, path=path, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table, most of it in files, the rest in the log."""
    with reopened(tmp_path / "rows", write_buffer_bytes=1 << 20) as storage:
        for part in np.array_split(KEYS, 20):
            storage.upsert(part, rows_of(1)[part])
    return tmp_path / "rows"


def test_a_flipped_bit_in_a_file_of_rows_is_found(folder: Path) -> None:
    largest = max(folder.glob("*.sst"), key=lambda path: path.stat().st_size)
    flip_byte(largest)
    with (
        reopened(folder) as storage,
        pytest.raises(CorruptDataError, match=r"find in table 'item'.*restore"),
    ):
        storage.find(KEYS)


def test_damage_in_the_log_is_rejected_and_skipped_only_on_request(tmp_path: Path) -> None:
    with reopened(tmp_path) as storage:
        for part in np.array_split(KEYS, 20):
            storage.upsert(part, rows_of(1)[part])
    log = max(tmp_path.glob("*.log"), key=lambda path: path.stat().st_size)
    flip_byte(log)
    with pytest.raises(CorruptDataError, match=r"open the tables.*'recovery'"):
        reopened(tmp_path)
    with reopened(tmp_path, recovery="point_in_time") as storage:
        found = storage.find(KEYS)
        assert 0 < storage.size < len(KEYS)
        assert storage.size == found.found.sum()
        np.testing.assert_array_equal(found.rows[found.found], rows_of(1)[found.found])


def test_a_missing_file_is_rejected(folder: Path) -> None:
    next(iter(folder.glob("*.sst"))).unlink()
    with pytest.raises((CorruptDataError, StorageIOError), match="open the tables"):
        reopened(folder)


def test_an_invalid_manifest_is_rejected(folder: Path) -> None:
    next(iter(folder.glob("MANIFEST-*"))).write_bytes(b"nothing of RocksDB's")
    with pytest.raises((CorruptDataError, StorageIOError), match="open the tables"):
        reopened(folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(place)]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs the command mount")
    if made.returncode:
        pytest.skip(f"needs the right to mount a tmpfs: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_raises_a_typed_error_and_writes_succeed_once_space_is_free(
    small_disk: Path,
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(12 << 20))
    acknowledged: dict[int, int] = {}
    with reopened(small_disk / "rows", write_buffer_bytes=1 << 20) as storage:

        def write_on() -> None:
            for version in range(20):
                for number, part in enumerate(np.array_split(KEYS, 10)):
                    storage.upsert(part, rows_of(version)[part])
                    acknowledged[number] = version

        with pytest.raises(StorageIOError, match="free disk space"):
            write_on()
        check_holds(storage, acknowledged)
        ballast.unlink()
        storage.upsert(KEYS[:100], rows_of(99)[:100])
        np.testing.assert_array_equal(storage.find(KEYS[:100]).rows, rows_of(99)[:100])
    with reopened(small_disk / "rows") as storage:
        np.testing.assert_array_equal(storage.find(KEYS[:100]).rows, rows_of(99)[:100])
        assert storage.size == storage.find(KEYS).found.sum()


def check_holds(storage: Storage, acknowledged: dict[int, int]) -> None:
    """Checks that acknowledged rows exist, and that rows of the failed part are old or new ones."""
    found = storage.find(KEYS)
    assert storage.size == found.found.sum()
    parts = np.array_split(KEYS, 10)
    for number, version in acknowledged.items():
        rows = found.rows[parts[number]]
        newer = rows_of(version + 1)[parts[number]]
        is_old = (rows == rows_of(version)[parts[number]]).all(axis=1)
        assert (is_old | (rows == newer).all(axis=1)).all()
