"""`StepContainer.flush` makes rows durable on the event loop, without changes meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalGroup
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.errors import DeadlineError, StorageIOError
from sparring.runtime.events import BackgroundError
from sparring.storage.memory import MemoryStorage
from sparring_testing.processes.deadlines import check_with_deadlines
from sparring_testing.processes.rank_threads import run_containers

KEYS = np.arange(20)
SECONDS = 20.0


class SlowFlush(MemoryStorage):
    """A flush that lasts until it is released, and fails on request."""

    def __init__(self, table: TableConfig) -> None:
        super().__init__(table)
        self.may_end = threading.Event()
        self.has_begun = threading.Event()
        self.threads: list[threading.Thread] = []
        self.failure: StorageIOError | None = None

    def _flush_impl(self) -> None:
        self.threads.append(threading.current_thread())
        self.has_begun.set()
        assert self.may_end.wait(SECONDS)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def storages() -> Iterator[list[SlowFlush]]:
    made = [SlowFlush(TableConfig(name, 3)) for name in ("films", "actors")]
    yield made
    for each in made:
        each.may_end.set()


def container_of(storages: Sequence[MemoryStorage], **joined: Any) -> StepContainer:
    container = StepContainer(**joined)
    for each in storages:
        container.declare(each.table, each)
    return container


def take_step(container: StepContainer, value: float) -> None:
    def update(updates: Any) -> None:
        for each in updates:
            each.rows[:] = value

    with container.step(update) as driven:
        for name in container.tables:
            driven.accumulate(driven.lookup(name, KEYS), np.ones((len(KEYS), 3), np.float32))


def rows(container: StepContainer) -> list[float]:
    return [float(container.storage(name).find(KEYS).rows.mean()) for name in container.tables]


def test_lookups_continue_during_a_flush_and_a_step_waits(storages: list[SlowFlush]) -> None:
    films = storages[0]
    with container_of(storages) as container, ThreadPoolExecutor(1) as threads:
        take_step(container, 1.0)
        task = container.flush(blocking=False)
        assert films.has_begun.wait(SECONDS)
        looked_up = container.lookup("films", KEYS)
        assert (looked_up.rows == 1).all()
        stepping = threads.submit(take_step, container, 2.0)
        assert not task.done()
        assert not wait([stepping], 0.3).done
        assert rows(container) == [1.0, 1.0], "a step changed rows beneath a flush"
        for each in storages:
            each.may_end.set()
        stepping.result(SECONDS)
        assert task.done()
        assert rows(container) == [2.0, 2.0]
    assert all("sparring-events" in each.threads[0].name for each in storages)


@pytest.mark.parametrize(
    "change",
    [
        lambda container, folder: container.save(f"{folder}/a"),
        lambda container, folder: container.set_state("films", np.zeros(0, np.float32)),
    ],
    ids=["save", "set_state"],
)
def test_other_calls_that_move_rows_wait_for_a_flush(
    storages: list[SlowFlush], change: Callable[[StepContainer, Path], Any], tmp_path: Path
) -> None:
    with container_of(storages) as container, ThreadPoolExecutor(1) as threads:
        take_step(container, 1.0)
        container.flush(blocking=False)
        changing = threads.submit(change, container, tmp_path)
        assert not wait([changing], 0.3).done
        for each in storages:
            each.may_end.set()
        changing.result(SECONDS)


def test_the_step_after_a_failed_flush_raises_and_can_be_repeated(
    storages: list[SlowFlush],
) -> None:
    films, actors = storages
    films.failure = StorageIOError("the disk is full")
    for each in storages:
        each.may_end.set()
    with container_of(storages) as container:
        take_step(container, 1.0)
        container.flush(blocking=False)
        with pytest.raises(BackgroundError, match="flush of tables films, actors") as told:
            take_step(container, 2.0)
        assert told.value.__cause__ is films.failure
        assert rows(container) == [1.0, 1.0]
        assert len(actors.threads) == 1, "the other table was not flushed"
        take_step(container, 2.0)
        assert rows(container) == [2.0, 2.0]


def test_a_waiter_for_a_flush_gets_its_failure_once(storages: list[SlowFlush]) -> None:
    storages[0].failure = StorageIOError("the disk is full")
    for each in storages:
        each.may_end.set()
    with container_of(storages) as container:
        take_step(container, 1.0)
        with pytest.raises(StorageIOError, match="the disk is full"):
            container.flush()
        take_step(container, 2.0)
        storages[0].failure = None
        container.flush()
        assert [len(each.threads) for each in storages] == [2, 2]


def test_a_storage_without_concurrent_readers_is_flushed_within_the_call(
    storages: list[SlowFlush],
) -> None:
    films, actors = storages
    films.capabilities = replace(films.capabilities, concurrent_reads=False)
    films.may_end.set()
    with container_of(storages) as container:
        take_step(container, 1.0)
        task = container.flush(blocking=False)
        assert films.threads == [threading.current_thread()]
        actors.may_end.set()
        task.result(SECONDS)
        assert "sparring-events" in actors.threads[0].name


def test_close_waits_for_a_flush(storages: list[SlowFlush]) -> None:
    container = container_of(storages)
    take_step(container, 1.0)
    task = container.flush(blocking=False)
    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(container.close)
        assert not wait([closing], 0.3).done
        assert not any(each.is_closed for each in storages)
        for each in storages:
            each.may_end.set()
        closing.result(SECONDS)
    assert task.done()
    assert all(each.is_closed for each in storages)


def test_close_leaves_a_storage_open_for_a_flush_that_still_runs(storages: list[SlowFlush]) -> None:
    films, actors = storages
    actors.may_end.set()
    container = container_of(storages)
    take_step(container, 1.0)
    task = container.flush(blocking=False)
    assert films.has_begun.wait(SECONDS)
    container.events.deadline_seconds = 0.2
    with pytest.raises(DeadlineError, match="flush of tables"):
        container.close()
    assert not films.is_closed
    films.may_end.set()
    task.result(SECONDS)
    assert films.is_closed
    assert actors.is_closed


def test_an_error_of_close_does_not_hide_a_failed_flush(
    storages: list[SlowFlush],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    films, actors = storages
    films.failure = StorageIOError("the disk is full")
    actors.may_end.set()
    container = container_of(storages)
    take_step(container, 1.0)
    task = container.flush(blocking=False)
    assert films.has_begun.wait(SECONDS)

    def broken() -> None:
        raise StorageIOError("the disk is gone")

    monkeypatch.setattr(films, "close", broken)
    for each in storages:
        container.state.at_work.close(each)
    films.may_end.set()
    with pytest.raises(StorageIOError, match="the disk is full"):
        task.result(SECONDS)
    assert actors.is_closed
    assert "StorageIOError: the disk is gone" in caplog.text
    monkeypatch.undo()
    with suppress(BackgroundError):
        container.close()


def test_a_failed_flush_within_the_call_does_not_skip_other_storages(
    storages: list[SlowFlush],
) -> None:
    films, actors = storages
    films.capabilities = replace(films.capabilities, concurrent_reads=False)
    films.failure = StorageIOError("the disk is full")
    for each in storages:
        each.may_end.set()
    with container_of(storages) as container:
        take_step(container, 1.0)
        for blocking in (True, False):
            with pytest.raises(StorageIOError, match="the disk is full"):
                container.flush(blocking=blocking)
        assert len(actors.threads) == 2
        take_step(container, 2.0)


DEADLINES = (4.0, 12.0)
"""Of ranks; one and a half of them is less than a slow flush waits for the test."""


def declare_slow(container: StepContainer) -> SlowFlush:
    """Declares a table whose flush is slow on rank 1."""
    storage = SlowFlush(TableConfig("films", 3))
    if container.collective.rank == 0:
        storage.may_end.set()
    container.declare(storage.table, storage)
    return storage


def test_a_flush_may_last_longer_than_ranks_wait_for_each_other() -> None:
    def check(deadline: float) -> None:
        def body(container: StepContainer) -> float:
            storage = declare_slow(container)
            take_step(container, 1.0)
            letting_go = threading.Timer(1.5 * deadline, storage.may_end.set)
            letting_go.start()
            container.flush()
            take_step(container, 2.0)
            letting_go.join()
            return float(container.lookup("films", KEYS).rows.mean())

        assert run_containers(2, body, deadline, LocalGroup.join) == [2.0, 2.0]

    check_with_deadlines(check, DEADLINES)


def test_ranks_notice_a_flush_that_takes_too_long() -> None:
    def check(deadline: float) -> None:
        both = threading.Barrier(2)

        def body(container: StepContainer) -> float:
            storage = declare_slow(container)
            take_step(container, 1.0)
            task = container.flush(blocking=False)
            with pytest.raises(DeadlineError, match="flush of tables films"):
                take_step(container, 2.0)
            both.wait(SECONDS)
            storage.may_end.set()
            task.result(SECONDS)
            take_step(container, 3.0)
            return float(container.lookup("films", KEYS).rows.mean())

        assert run_containers(2, body, deadline, LocalGroup.join) == [3.0, 3.0]

    check_with_deadlines(check, DEADLINES)
