"""A background save uses its share of a core, and keeps no more old rows than allowed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.engine.checkpoint import copy_on_write as freezing
from sparring.engine.checkpoint import save_manager
from sparring.engine.checkpoint.copy_on_write import CopyOnWriteView, UndoBudget, UndoRows
from sparring.engine.checkpoint.save_manager import SnapshotJob, TableJob, Throttle
from sparring.engine.tables.write_log import WriteLog
from sparring.snapshot.chain import scan_rows
from sparring.snapshot.format.manifest import TableDescription
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.writer import SnapshotWriter
from sparring.storage.open import open_storage


class Clock:
    """Time that passes when a thread works or sleeps; processor time of each thread."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept = 0.0
        self._thread = threading.local()

    def work(self, seconds: float) -> None:
        self.now += seconds
        self._thread.worked = self.thread_time() + seconds

    def sleep(self, seconds: float) -> bool:
        self.now += seconds
        self.slept += seconds
        return False

    def perf_counter(self) -> float:
        return self.now

    def thread_time(self) -> float:
        worked: float = getattr(self._thread, "worked", 0.0)
        return worked


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(save_manager, "time", made)
    return made


def paced(clock: Clock, share: float, budget: UndoBudget | None = None) -> Throttle:
    made = Throttle(share, budget or UndoBudget(100))
    made._is_awaited.wait = clock.sleep  # type: ignore[method-assign, assignment]
    return made


@pytest.mark.parametrize("share", [0.05, 0.15, 0.5, 0.9])
def test_a_thread_works_for_its_share_of_the_time(clock: Clock, share: float) -> None:
    clock.work(7.0)
    made = paced(clock, share)
    made.begin()
    begin = clock.now
    for piece in range(50):
        clock.work(0.001 * (1 + piece % 7))
        made.pause()
    assert made.worked_seconds == pytest.approx(share * (clock.now - begin))


def test_all_threads_of_a_save_share_one_share(clock: Clock) -> None:
    made = paced(clock, 0.2)
    begin = clock.now
    rest = iter(range(3))

    def work() -> None:
        clock.work(0.01)
        made.pause()

    def others_work(seconds: float) -> bool:
        if next(rest, None) is None:
            return clock.sleep(seconds)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return False

    made._is_awaited.wait = others_work  # type: ignore[method-assign, assignment]
    work()
    assert made.worked_seconds == pytest.approx(0.04)
    assert clock.now - begin == pytest.approx(0.04 / 0.2)


def test_the_time_of_waiting_for_a_disk_is_not_caught_up(clock: Clock) -> None:
    made = paced(clock, 0.5)
    made.begin()
    clock.now += 10.0
    clock.work(0.1)
    made.pause()
    assert clock.slept == pytest.approx(0.1)


def test_a_save_does_not_pause_when_it_runs_out_of_space_for_old_rows(clock: Clock) -> None:
    budget = UndoBudget(100)
    made = paced(clock, 0.1, budget)
    made.begin()
    kept = UndoRows(np.zeros(9, np.int64), np.zeros((9, 0), np.float32), np.ones(9, np.bool_))
    budget.take(kept)
    clock.work(0.1)
    made.pause()
    assert clock.slept == 0
    budget.give_back(kept.num_bytes)
    clock.work(0.1)
    made.pause()
    # Work done without pauses is not compensated later.
    assert clock.slept == pytest.approx(0.9)


def test_a_save_stops_pausing_once_it_is_awaited(clock: Clock) -> None:
    made = Throttle(1e-9, UndoBudget(100))
    made.begin()
    made.unthrottle()
    clock.work(1.0)
    made.pause()  # which would take 30 years


class WritingThrottle(Throttle):
    """Writes to a table in each step instead of a pause."""

    def __init__(self, budget: UndoBudget, storage: Storage) -> None:
        super().__init__(1.0, budget)
        self._storage = storage
        self._written = 0
        self.waits = 0

    def pause(self) -> None:
        if threading.current_thread() is threading.main_thread() and self._written < 3000:
            self.waits += not self._budget.wait_for_capacity(0.0)
            keys = np.arange(self._written, self._written + 50)
            self._storage.upsert(keys, np.full((50, 3), -1.0, np.float32))
            self._written += 50


@pytest.fixture
def tables() -> Iterator[list[Storage]]:
    names = ["large", "changed"]
    opened = [open_storage("hkv", TableConfig(name, 3)) for name in names]
    for storage, count in zip(opened, (6000, 3000), strict=True):
        keys = np.arange(count)
        storage.upsert(keys, np.repeat(keys[:, None], 3, 1).astype(np.float32))
    yield opened
    for storage in opened:
        storage.close()


def test_old_rows_of_a_later_table_are_written_before_space_runs_out(
    tables: list[Storage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freezing, "_GROUP_BYTES", 1 << 10)
    monkeypatch.setattr(freezing, "_SCAN_ROWS", 100)
    budget = UndoBudget(12_000)
    spared = WritingThrottle(budget, tables[1])
    saved = []
    for storage in tables:
        watch = WriteLog(storage.table.name)
        storage.watcher = watch
        view = CopyOnWriteView(storage.table, storage, budget)
        watch.add_observer(view)
        description = TableDescription.of(storage.table, has_scores=False)
        saved.append(TableJob(description, view, watch, False))
    url = str(tmp_path / "step-1")
    writer = SnapshotWriter(url, step=1)
    rows = (
        SnapshotJob(url, 1, None, writer, saved, {}, budget, None, [], 0.0, spared, 60.0).run().rows
    )
    assert rows == {"large": 6000, "changed": 3000}
    assert budget.num_rows == 3000, "all rows of a table changed before its turn"
    assert spared.waits == 0
    assert budget.max_used_bytes <= 12_000 < budget.num_rows * 20
    snapshot = open_snapshot(url)
    assert len(snapshot.files("changed")) > 2
    for storage in tables:
        name = storage.table.name
        found = {
            int(key): row.tolist()
            for chunk in scan_rows(snapshot, name)
            for key, row in zip(chunk.keys, chunk.rows, strict=True)
        }
        assert found == {key: [float(key)] * 3 for key in range(rows[name])}
