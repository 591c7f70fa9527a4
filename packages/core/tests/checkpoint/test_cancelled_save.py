"""A cancelled save blocks nothing, keeps nothing, and removes nothing that others need."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.tables.table import TableConfig
from sparring.engine.checkpoint.copy_on_write import CopyOnWriteView, UndoBudget
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.engine.tables.write_log import WriteLog
from sparring.errors import InternalError, SnapshotError, SnapshotIOError
from sparring.snapshot import retention
from sparring.snapshot.chain import count_rows
from sparring.snapshot.place.local import LocalRoot
from sparring.snapshot.place.place import WriteFolder
from sparring.snapshot.reader import Snapshot, open_snapshot
from sparring.snapshot.retention import compact
from sparring.snapshot.row_router import SnapshotOptions
from sparring.snapshot.writer import SnapshotWriter
from sparring.storage.open import open_storage
from sparring_cli.snapshots.verify import verify_snapshot

from ..snapshot.snapshot_samples import ITEM, chunks_of, make_chunk, rows_by_key, save, small_files

TABLE = TableConfig("item", 4)


def writers_of_two_ranks(url: str) -> list[SnapshotWriter]:
    writers = [
        SnapshotWriter(url, step=1, rank=rank, world_size=2, token="t", deadline_seconds=5.0)
        for rank in range(2)
    ]
    for writer in writers:
        writer.write_table(ITEM, [make_chunk([writer.rank])])
    return writers


def fails_to_put(
    monkeypatch: pytest.MonkeyPatch, place: LocalRoot, *, is_there: bool, is_readable: bool = True
) -> None:
    """The disk fails when rank 1 puts its part: before it is there, or after."""
    kind: type[WriteFolder] = type(place.stage("probe", "t"))
    put, read = kind.put, kind.read

    def fails(folder: Any, name: str, data: bytes) -> None:
        if name != "part-00001.json":
            put(folder, name, data)
            return
        if is_there:
            put(folder, name, data)
        raise OSError("the folder could not be synced")

    def unreadable(folder: Any, name: str, most: int) -> bytes | None:
        if name == "part-00001.json" and threading.current_thread().name == "rank 1":
            raise OSError("the disk is gone")
        return read(folder, name, most)

    monkeypatch.setattr(kind, "put", fails)
    if not is_readable:
        monkeypatch.setattr(kind, "read", unreadable)


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_part_that_others_may_have_seen_is_not_removed(
    is_readable: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5, S6: rank 0 may be committing it."""
    fails_to_put(monkeypatch, LocalRoot(tmp_path / "other"), is_there=True, is_readable=is_readable)
    writers = writers_of_two_ranks(str(tmp_path / "a"))

    def rank_1() -> None:
        with pytest.raises(SnapshotIOError, match="could not be synced") as caught:
            writers[1].finish()
        writers[1].abandon(caught.value)

    thread = threading.Thread(target=rank_1, name="rank 1")
    thread.start()
    thread.join()
    writers[0].finish()
    snapshot = writers[0].commit()
    assert sorted(rows_by_key(snapshot)) == [0, 1]
    assert verify_snapshot(snapshot).is_sound


def test_a_part_that_no_other_rank_can_have_seen_fails_the_save_on_all_ranks_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.snapshot.commit.GRACE_SECONDS", 0.1)
    fails_to_put(monkeypatch, LocalRoot(tmp_path / "other"), is_there=False)
    writers = writers_of_two_ranks(str(tmp_path / "a"))
    with pytest.raises(SnapshotIOError, match="could not be synced") as caught:
        writers[1].finish()
    writers[1].abandon(caught.value)
    writers[0].finish()
    with pytest.raises(SnapshotError, match=r"rank 1 failed.* could not be synced") as told:
        writers[0].commit()
    writers[0].abandon(told.value)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_steps_keep_no_rows_for_a_cancelled_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Any] = []
    abandon = SnapshotWriter.abandon

    with StepContainer() as container:
        container.declare(TABLE, StorageChoice("memory"))
        storage = container.storage("item")
        storage.upsert(np.arange(10), np.ones((10, 4), np.float32))

        def looks(writer: SnapshotWriter, cause: BaseException | None = None) -> None:
            # The rest may take seconds: other ranks are notified, and files are removed.
            running = container.saves.running
            budget = running.budget if running is not None else UndoBudget(0)
            found.append(
                (container.entry("item").write_log.is_active, budget.wait_for_capacity(0.0))
            )
            abandon(writer, cause)

        def broken(*_: object) -> None:
            container.saves.running.budget._used_bytes = 1 << 30  # type: ignore[union-attr]
            raise OSError("disk gone")

        monkeypatch.setattr(SnapshotWriter, "abandon", looks)
        monkeypatch.setattr(storage, "_find_impl", broken)
        with pytest.raises(OSError, match="disk gone"):
            container.save(str(tmp_path / "a"))
    assert found == [(False, True)]


@pytest.mark.parametrize("policy", ["none", "lru"])
def test_a_step_that_is_interrupted_while_it_keeps_old_rows_blocks_nothing(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {} if policy == "none" else {"capacity": 100, "policy": policy}
    with open_storage("memory", TABLE, **options) as storage:
        keys, rows = np.arange(50), np.ones((50, 4), np.float32)
        storage.upsert(keys, rows)
        watch = WriteLog(TABLE.name)
        storage.watcher = watch
        view = CopyOnWriteView(TABLE, storage, UndoBudget(1 << 20))
        watch.add_observer(view)
        with monkeypatch.context() as patched:
            patched.setattr(storage, "_find_impl", interrupted)
            with pytest.raises(KeyboardInterrupt):
                storage.upsert(keys, 2 * rows)
        assert view._lock.acquire(timeout=1.0)
        view._lock.release()
        storage.upsert(keys, 3 * rows)
        with pytest.raises(InternalError, match="read undo rows was stopped"):
            list(view.chunks())
        assert (storage.find(keys).rows == 3).all()


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def open_files() -> set[str]:
    """Returns the targets of open descriptors of this process, including removed files."""
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found.add(str(each.readlink()))
    return found


@pytest.mark.parametrize("when", ["full", "end", "small"])
def test_files_that_could_not_be_handed_over_are_closed(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {
        "full": {},
        "end": {"file_bytes": 1 << 20, "buffer_bytes": 1 << 16},
        "small": {"small_bytes": 1 << 20},
    }
    writer = SnapshotWriter(str(tmp_path / "a"), step=1, options=small_files(**sizes[when]))

    def refuses(*_: object) -> None:
        raise SnapshotError("another rank failed")

    monkeypatch.setattr(writer, "_seal", refuses)
    with pytest.raises(SnapshotError, match="another rank failed"):
        writer.write_table(ITEM, chunks_of(make_chunk(range(2_000))))
    assert not [each for each in open_files() if "rows.item" in each]
    writer.abandon()


@pytest.fixture
def of_two_ranks(tmp_path: Path) -> Snapshot:
    writers = writers_of_two_ranks(str(tmp_path / "source" / "a"))
    for writer in writers:
        writer.finish()
    snapshot = writers[0].commit()
    writers[1].await_commit()
    return snapshot


def test_a_compaction_that_cannot_begin_leaves_nothing(
    of_two_ranks: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def refuses(*arguments: Any, **options: Any) -> SnapshotWriter:
        made.append(options["rank"])
        if len(made) == 2:
            raise SnapshotIOError("no room for a folder")
        return SnapshotWriter(*arguments, **options)

    monkeypatch.setattr(retention, "SnapshotWriter", refuses)
    with pytest.raises(SnapshotIOError, match="no room"):
        compact(of_two_ranks.url, tmp_path / "into" / "a")
    assert made == [0, 1]
    assert list((tmp_path / "into").iterdir()) == []


def num_threads() -> int:
    return sum("sparring-snapshot" in each.name for each in threading.enumerate())


@pytest.fixture
def threads_started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    names: list[str] = []
    start = threading.Thread.start

    def starts(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starts)
    return names


def test_a_compaction_starts_threads_only_for_ranks_that_write_rows(
    of_two_ranks: Snapshot, tmp_path: Path, threads_started: list[str]
) -> None:
    before = num_threads()
    compact(of_two_ranks.url, tmp_path / "into" / "a")
    assert sorted(threads_started) == ["sparring-snapshot-0", "sparring-snapshot-1"]
    assert num_threads() == before


def test_a_running_background_save_starts_no_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the interpreter ends, Python 3.12 starts none."""
    may_go_on = threading.Event()
    with StepContainer() as container:
        container.declare(TABLE, StorageChoice("memory"))
        storage = container.storage("item")
        storage.upsert(np.arange(10), np.ones((10, 4), np.float32))
        find = storage._find_impl

        def waits(*arguments: Any) -> None:
            assert may_go_on.wait(20.0)
            find(*arguments)

        def refuses(_: threading.Thread) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

        # The thread that writes rows of large tables is needed too.
        options = partial(SnapshotOptions, small_bytes=1)
        monkeypatch.setattr("sparring.engine.checkpoint.save.SnapshotOptions", options)
        storage._find_impl = waits  # type: ignore[method-assign]
        task = container.save(str(tmp_path / "a"), blocking=False)
        monkeypatch.setattr(threading.Thread, "start", refuses)
        may_go_on.set()
        container.saves.join(20.0)
        monkeypatch.undo()
        assert task.result(0).rows == {"item": 10}
    assert count_rows(open_snapshot(str(tmp_path / "a")), "item") == 10


def test_an_attempt_that_wrote_nothing_has_started_no_thread(tmp_path: Path) -> None:
    save(tmp_path, 1, make_chunk([1]))
    before = num_threads()
    writer = SnapshotWriter(str(tmp_path / "a"), step=1)
    assert num_threads() == before
    writer.start_threads()
    assert num_threads() == before + 3
    writer.abandon()
    assert num_threads() == before
