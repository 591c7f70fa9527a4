"""Snapshots on another file system: the manifest, written last, commits."""

from __future__ import annotations

import uuid
from pathlib import Path

import fsspec
import pytest

from sparring.errors import InvalidArgumentError, SnapshotDamagedError, SnapshotError
from sparring.snapshot import (
    SnapshotWriter,
    compact,
    latest_snapshot,
    list_snapshots,
    open_snapshot,
    retain,
)

from .snapshot_samples import ITEM, make_chunk, rows_by_key, save, small_files


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}/runs"


def files(url: str) -> list[str]:
    system, path = fsspec.core.url_to_fs(url)
    return [each.rpartition("/")[2] for each in system.find(path)]


def test_a_chain_is_saved_loaded_and_compacted(root: str, tmp_path: Path) -> None:
    first = save(root, 1, make_chunk(range(1_000)), options=small_files())
    second = save(root, 2, make_chunk(range(10), 1), base=first.url, erased=[999])
    assert len(rows_by_key(second)) == 999
    assert second.state("optimizer").values == {"steps": 2}
    assert second.verify().is_sound
    full = compact(second.url, tmp_path / "a")
    assert rows_by_key(full) == rows_by_key(second)
    assert rows_by_key(compact(full.url, f"{root}/b")) == rows_by_key(second)


def test_nothing_is_seen_before_the_manifest(root: str) -> None:
    """S5"""
    url = f"{root}/a"
    writers = [SnapshotWriter(url, step=1, rank=r, world_size=2, token="t") for r in range(2)]
    for writer in writers:
        writer.write_table(ITEM, [make_chunk([writer.rank])])
        writer.finish()
        assert list_snapshots(root) == []
        with pytest.raises(SnapshotError, match="no committed snapshot"):
            open_snapshot(url)
    snapshot = writers[0].commit()
    writers[1].abandon()
    assert len(rows_by_key(snapshot)) == 2
    assert len(files(url)) == 3


def test_attempts_do_not_mix_and_the_second_is_refused(root: str) -> None:
    url = f"{root}/a"
    dead, living = SnapshotWriter(url, step=1), SnapshotWriter(url, step=1)
    dead.write_table(ITEM, [make_chunk([1])])
    living.write_table(ITEM, [make_chunk([2])])
    dead.finish()
    living.finish()
    assert list(rows_by_key(living.commit())) == [2]
    with pytest.raises(SnapshotError, match="by another attempt"):
        dead.commit()
    dead.abandon()
    assert list(rows_by_key(open_snapshot(url))) == [2]
    with pytest.raises(SnapshotError, match="exists already"):
        SnapshotWriter(url, step=1)


def test_an_abandoned_attempt_leaves_nothing(root: str) -> None:
    writer = SnapshotWriter(f"{root}/a", step=1)
    writer.write_table(ITEM, [make_chunk([1])])
    writer.abandon()
    assert files(root) == []


def test_retention_removes_snapshots_and_dead_attempts(root: str) -> None:
    for step in range(3):
        save(root, step, make_chunk([step]))
    dead = SnapshotWriter(f"{root}/step-000000009", step=9)
    dead.write_table(ITEM, [make_chunk([1])])
    dead.finish()
    assert retain(root, 2) == [f"{root}/step-000000000"]
    assert any("step-000000009" in each for each in fsspec.core.url_to_fs(root)[0].find(root))
    retain(root, 2, stale_seconds=-1)
    assert [open_snapshot(url).step for url in list_snapshots(root)] == [1, 2]
    assert len(files(root)) == 6
    latest = latest_snapshot(root)
    assert latest is not None
    assert latest.step == 2


def test_damage_is_found(root: str) -> None:
    snapshot = save(root, 1, make_chunk(range(100)))
    system, path = fsspec.core.url_to_fs(snapshot.url)
    (name,) = (entry.name for entry in snapshot.files("item"))
    data = system.cat_file(f"{path}/{name}")
    system.pipe_file(f"{path}/{name}", data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(SnapshotDamagedError, match=name):
        rows_by_key(snapshot)


def test_a_file_system_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no file system for nowhere://a"):
        SnapshotWriter("nowhere://a/b", step=1)
