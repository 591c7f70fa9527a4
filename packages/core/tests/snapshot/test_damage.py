"""Damage is found at any position, and reported with file and offset."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from sparring.errors import SnapshotDamagedError, SnapshotError
from sparring.snapshot.format.manifest import BLOCK_BYTES
from sparring.snapshot.reader import Snapshot, open_snapshot
from sparring_cli.snapshots.verify import verify_snapshot

from .snapshot_samples import make_chunk, rows_by_key, save, small_files


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return save(tmp_path, 1, make_chunk(range(500)), options=small_files())


def read_all(url: str) -> None:
    snapshot = open_snapshot(url)
    for table in snapshot.tables:
        rows_by_key(snapshot, table)
    for name in snapshot.state_names():
        snapshot.state(name)


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_a_flipped_bit_is_found_anywhere(snapshot: Snapshot) -> None:
    """S6"""
    rng = np.random.default_rng(0)
    for path in sorted(Path(snapshot.url).iterdir()):
        intact = path.read_bytes()
        bits = rng.integers(0, 8 * len(intact), 40)
        for bit in [0, 63, 64, 8 * len(intact) - 1, *bits.tolist()]:
            flip(path, bit)
            with pytest.raises(SnapshotDamagedError) as caught:
                read_all(snapshot.url)
            assert caught.value.file == path.name
            if path.name != "manifest.json":
                problems = verify_snapshot(open_snapshot(snapshot.url)).problems
                assert [problem.file for problem in problems] == [path.name]
            path.write_bytes(intact)
    assert verify_snapshot(snapshot).is_sound


def test_damage_is_named_with_its_block(tmp_path: Path) -> None:
    """S6"""
    snapshot = save(tmp_path, 1, make_chunk(range(100_000)))
    (entry,) = snapshot.files("item")
    path = Path(snapshot.url) / entry.name
    intact = path.read_bytes()
    assert len(intact) > 3 * BLOCK_BYTES
    for byte in (0, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 5, len(intact) - 1):
        flip(path, 8 * byte)
        block = byte // BLOCK_BYTES * BLOCK_BYTES
        with pytest.raises(SnapshotDamagedError, match=f"damaged at byte {block:,}") as caught:
            rows_by_key(snapshot)
        assert caught.value.offset == block
        assert verify_snapshot(snapshot).problems[0].offset == block
        path.write_bytes(intact)


def test_a_truncated_swapped_or_missing_file_is_found(snapshot: Snapshot) -> None:
    """S6"""
    folder = Path(snapshot.url)
    for path in sorted(folder.iterdir()):
        intact = path.read_bytes()
        for size in (0, 1, len(intact) // 2, len(intact) - 1):
            path.write_bytes(intact[:size])
            with pytest.raises(SnapshotDamagedError) as caught:
                read_all(snapshot.url)
            assert caught.value.file == path.name
        path.write_bytes(intact + b" ")
        with pytest.raises(SnapshotDamagedError):
            read_all(snapshot.url)
        path.unlink()
        with pytest.raises(SnapshotError, match=path.name):
            read_all(snapshot.url)
        path.write_bytes(intact)
    first, second = (folder / entry.name for entry in snapshot.files("item")[:2])
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    with pytest.raises(SnapshotDamagedError):
        read_all(snapshot.url)


def test_the_hash_of_the_whole_file_is_also_checked(snapshot: Snapshot) -> None:
    """Block hashes that match wrong bytes are not enough if the file's own hash does not match."""
    entry = snapshot.files("item")[0]
    snapshot._files[entry.name] = entry.model_copy(update={"hash": "0" * 32})
    assert "the file has the hash" in verify_snapshot(snapshot).problems[0].message


def test_a_file_that_is_not_listed_is_reported(snapshot: Snapshot) -> None:
    (Path(snapshot.url) / "more.txt").write_text("")
    (problem,) = verify_snapshot(snapshot).problems
    assert (problem.file, "does not list" in problem.message) == ("more.txt", True)
    read_all(snapshot.url)


def test_verifying_reports_the_bytes_that_were_read(snapshot: Snapshot) -> None:
    report = verify_snapshot(snapshot)
    assert report.num_rows == {"item": 500}
    assert report.num_snapshots == 1
    assert report.num_files == len(snapshot.files())
    assert report.num_bytes == sum(
        path.stat().st_size for path in Path(snapshot.url).iterdir() if path.name != "manifest.json"
    )


def test_a_whole_snapshot_may_be_moved(snapshot: Snapshot, tmp_path: Path) -> None:
    moved = shutil.copytree(snapshot.url, tmp_path / "elsewhere" / "other-name")
    read_all(os.fspath(moved))


def test_the_manifest_of_another_snapshot_is_detected(tmp_path: Path) -> None:
    """S6"""
    one = save(tmp_path, 1, make_chunk(range(50)))
    other = save(tmp_path, 2, make_chunk(range(500)), options=small_files())
    text = (Path(other.url) / "manifest.json").read_bytes()
    (Path(one.url) / "manifest.json").write_bytes(text)
    with pytest.raises(SnapshotDamagedError, match=r"missing, but manifest\.json lists it"):
        open_snapshot(one.url)
    third = save(tmp_path, 3, make_chunk(range(60)))
    fourth = save(tmp_path, 4, make_chunk(range(60), 1))
    text = (Path(fourth.url) / "manifest.json").read_bytes()
    (Path(third.url) / "manifest.json").write_bytes(text)
    with pytest.raises(SnapshotDamagedError, match=r"according to manifest\.json"):
        read_all(third.url)
