"""The disk fails at each call: typed errors, nothing half-committed, and the older snapshot loads."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparring.errors import SnapshotError, SnapshotIOError
from sparring.snapshot.place import local as local_place
from sparring.snapshot.reader import RememberedSnapshots, open_snapshot
from sparring.snapshot.retention import latest_snapshot, list_snapshots
from sparring.snapshot.writer import SnapshotWriter
from sparring_cli.snapshots.verify import verify_snapshot
from sparring_testing.faults.faulty_disk import faulty_disk

from .snapshot_samples import ITEM, chunks_of, make_chunk, rows_by_key, save, small_files


def save_or_abandon(folder: Path, step: int) -> None:
    writer = SnapshotWriter(
        str(folder / f"step-{step:09d}"), step=step, options=small_files(num_ranges=2)
    )
    try:
        writer.write_table(ITEM, chunks_of(make_chunk(range(200), step)))
        writer.write_state("optimizer", {"steps": step})
        writer.finish()
        writer.commit()
    except BaseException:
        writer.abandon()
        raise


def recorded(folder: Path, step: int) -> list[str]:
    points: list[str] = []
    with faulty_disk(points.append):
        save_or_abandon(folder, step)
    return points


def test_everything_is_durable_in_order(tmp_path: Path) -> None:
    """S5"""
    (tmp_path / "warm").mkdir()
    points = recorded(tmp_path, 1)
    manifest = points.index("open manifest")
    assert max(place for place, each in enumerate(points) if each == "write rows") < manifest
    before, after = points[:manifest], points[manifest:]
    num_files = sum(each in {"open rows", "open state"} for each in before)
    synced = sum(each in {"fsync rows", "fsync state"} for each in before)
    assert num_files == synced >= 3
    assert "fsync part" in before
    order = [
        "fsync manifest",
        "rename manifest",
        "fsync staging",
        "rename folder",
        "renamed folder",
        "fsync folder",
    ]
    places = [after.index(each) for each in order]
    assert places == sorted(places)
    assert not any(each.startswith("write") for each in after[places[0] :])


def failing_call(failing: int, number: int) -> Callable[[str], None]:
    counter = itertools.count()

    def fail(point: str) -> None:
        if next(counter) == failing:
            raise OSError(number, "injected", point)

    return fail


def saved_with_error(folder: Path, step: int, failing: int, number: int) -> SnapshotError | None:
    try:
        with faulty_disk(failing_call(failing, number)):
            save_or_abandon(folder, step)
    except SnapshotError as error:
        return error
    return None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_of_any_call_leaves_the_older_snapshot(tmp_path: Path, number: int) -> None:
    """S7"""
    save_or_abandon(tmp_path, 1)
    calls = len(recorded(tmp_path / "dry", 1))
    acknowledged = 1
    for failing in range(0, calls + 1, 3):
        step = 2 + failing
        error = saved_with_error(tmp_path, step, failing, number)
        if error is None:
            acknowledged = step
        else:
            assert isinstance(error, SnapshotIOError)
            assert "injected" in str(error)
        latest = latest_snapshot(tmp_path)
        assert latest is not None
        assert latest.step >= acknowledged
        assert len(rows_by_key(latest)) == 200
        assert verify_snapshot(latest).is_sound
    assert not list(tmp_path.glob(".*/manifest.json"))
    assert acknowledged > 1


def test_an_error_of_any_call_while_reading_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = save(tmp_path, 1, make_chunk(range(500)), options=small_files())
    points: list[str] = []
    monkeypatch.setattr(RememberedSnapshots, "find", lambda *_: None)  # so that each call reads

    def read_all() -> None:
        found = open_snapshot(snapshot.url)
        rows_by_key(found)
        found.state("optimizer")

    with faulty_disk(points.append):
        read_all()
    for failing in range(len(points)):
        with (
            faulty_disk(failing_call(failing, errno.EIO)),
            pytest.raises(SnapshotError, match="injected"),
        ):
            read_all()
    assert len(list_snapshots(tmp_path)) == 1


def test_a_close_that_fails_loses_nothing_and_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Closing:
        """`os`, whose `close` closes and fails."""

        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def close(self, descriptor: int) -> None:
            os.close(descriptor)  # fails by EBADF where it was closed before
            raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(local_place, "os", Closing())
    snapshot = save(tmp_path, 1, make_chunk(range(100)))
    assert len(rows_by_key(snapshot)) == 100
    assert verify_snapshot(snapshot).is_sound
    writer = SnapshotWriter(str(tmp_path / "b"), step=2)
    writer.write_table(ITEM, [make_chunk([1])])
    writer.abandon()
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001"]
