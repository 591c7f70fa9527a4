"""`load(blocking=False)`: rows are loaded on the event loop, and nothing uses them before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import State
from sparring.contracts.storage.results import EvictedRows, Keys, Rows, Scores
from sparring.contracts.tables.admission import Frequency
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import (
    ClosedError,
    DeadlineError,
    InterruptedLoadError,
    SnapshotDamagedError,
    SnapshotError,
    StorageIOError,
)
from sparring.runtime.events import BackgroundError, EventLoop
from sparring.storage.load import begin_load
from sparring.storage.memory import MemoryStorage
from sparring_train.metrics_files.container_metrics import read_metrics

from .test_flush import KEYS, container_of, take_step

SECONDS = 20.0
NAMES = ("films", "actors")


class SlowRestore(MemoryStorage):
    """Loads rows of a snapshot once it is released, and fails on request."""

    def __init__(self, table: TableConfig) -> None:
        super().__init__(table)
        self.may_go_on = threading.Event()
        self.has_begun = threading.Event()
        self.threads: list[threading.Thread] = []
        self.failure: Exception | None = None

    def _restore_impl(self, keys: Keys, rows: Rows, scores: Scores) -> EvictedRows:
        self.threads.append(threading.current_thread())
        self.has_begun.set()
        assert self.may_go_on.wait(SECONDS)
        if self.failure is not None:
            raise self.failure
        return super()._restore_impl(keys, rows, scores)


def table(name: str) -> TableConfig:
    return TableConfig(name, 3, "float32", Uniform(-1, 1), admission=Frequency(2))


@pytest.fixture
def storages() -> Iterator[list[SlowRestore]]:
    made = [SlowRestore(table(name)) for name in NAMES]
    yield made
    let_go(made)


def let_go(storages: list[SlowRestore]) -> None:
    for each in storages:
        each.may_go_on.set()


def train(container: StepContainer) -> None:
    """All rows are 1.0: the filters admit keys that come twice."""
    for _ in range(2):
        take_step(container, 1.0)


def mean(container: StepContainer) -> float:
    looked_up = container.lookup_all([(name, KEYS) for name in NAMES], is_registered=False)
    return float(np.mean([each.rows for each in looked_up]))


def filters(container: StepContainer) -> list[Any]:
    return [each.admission_filter and each.admission_filter.save() for each in container.entries()]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[str, list[Any]]:
    """Returns the URL of a snapshot of step 3 with all rows 3.0 and the counters of its filters."""
    url = str(tmp_path / "three")
    made = [MemoryStorage(table(name)) for name in NAMES]
    with StepContainer() as container:
        for each in made:
            container.declare(each.table, each)
        for value in (1.0, 2.0, 3.0):
            take_step(container, value)
        container.save(url, states={"mine": State({"epoch": 7})})
        return url, filters(container)


READS: dict[str, Callable[[StepContainer, Path], Any]] = {
    "lookup": lambda container, _: (container.lookup("films", KEYS).rows == 3).all(),
    "ahead": lambda container, _: (
        container.prefetch([("films", KEYS)]).finish()[0].rows == 3
    ).all(),
    "storage": lambda container, _: (container.storage("films").find(KEYS).rows == 3).all(),
    "rows": lambda container, _: container.num_rows("films") == len(KEYS),
    "bytes": lambda container, _: container.table_bytes("films") > 0,
    "not admitted": lambda container, _: container.num_not_admitted("films") == len(KEYS),
    "metrics": lambda container, _: read_metrics(container)["tables"]["films"]["rows"] == len(KEYS),
    "step": lambda container, _: take_step(container, 4.0) or container.counters.steps == 4,
    "save": lambda container, path: container.save(str(path / "again")).rows["films"] == len(KEYS),
    "save beside": lambda container, path: (
        container.save(str(path / "again"), blocking=False).result(SECONDS).step == 3
    ),
    "flush": lambda container, _: container.flush() is None,
    "load": lambda container, path: container.load(str(path / "three")).step == 3,
    "state": lambda container, _: container.set_state("films", np.zeros(0, np.float32)) is None,
    "readable": lambda container, _: container.check_readable(NAMES) is None,
    "drain": lambda container, _: container.events.drain() is None,
    "close": lambda container, _: container.close() is None,
}


@pytest.mark.parametrize("read", READS)
def test_every_use_of_rows_waits_for_the_load(
    read: str, storages: list[SlowRestore], saved: tuple[str, list[Any]], tmp_path: Path
) -> None:
    films = storages[0]
    with container_of(storages) as container, ThreadPoolExecutor(1) as threads:
        take_step(container, 1.0)
        loading = container.load(saved[0], blocking=False)
        assert films.has_begun.wait(SECONDS)
        assert "sparring-events" in films.threads[0].name
        reading = threads.submit(READS[read], container, tmp_path)
        assert not wait([reading], 0.2).done
        assert not loading.done()
        let_go(storages)
        assert reading.result(SECONDS)
        assert loading.result(SECONDS).rows == dict.fromkeys(NAMES, len(KEYS))


def test_all_of_a_training_is_loaded_with_the_rows(
    storages: list[SlowRestore], saved: tuple[str, list[Any]]
) -> None:
    url, expected = saved
    let_go(storages)
    with container_of(storages) as container:
        take_step(container, 9.0)  # lost
        loaded = container.load(url, blocking=False, is_base=True).result(SECONDS)
        assert (loaded.step, loaded.states["mine"].values) == (3, {"epoch": 7})
        assert (container.counters.steps, container.exchange.session.step) == (3, 3)
        assert filters(container) == expected
        assert container.saves.base == url
        assert mean(container) == 3.0


def test_models_are_built_while_rows_are_loaded(
    storages: list[SlowRestore], saved: tuple[str, list[Any]]
) -> None:
    with container_of(storages) as container:
        loading = container.load(saved[0], blocking=False)
        container.declare(TableConfig("words", 5))
        container.collection([("films", "sum")])
        assert not loading.done()
        let_go(storages)
        assert mean(container) == 3.0


def test_a_lookup_that_began_earlier_returns_the_loaded_rows(
    storages: list[SlowRestore], saved: tuple[str, list[Any]]
) -> None:
    with container_of(storages) as container, ThreadPoolExecutor(1) as threads:
        for value in (1.0, 1.0, 1.0):
            take_step(container, value)
        ahead = container.prefetch([("films", KEYS)])
        container.load(saved[0], blocking=False)
        finishing = threads.submit(ahead.finish)
        assert not wait([finishing], 0.2).done
        let_go(storages)
        assert (finishing.result(SECONDS)[0].rows == 3).all()


def test_immediate_errors_are_raised_by_the_call(
    storages: list[SlowRestore], tmp_path: Path
) -> None:
    with container_of(storages) as container:
        train(container)
        with pytest.raises(SnapshotError, match="there is no snapshot"):
            container.load(str(tmp_path / "nowhere"), blocking=False)
        assert mean(container) == 1.0


@pytest.mark.parametrize("use", ["lookup", "step", "save", "readable", "load", "close", "ahead"])
def test_a_failure_is_raised_once_with_its_cause_and_partial_rows_are_never_used(
    use: str, storages: list[SlowRestore], saved: tuple[str, list[Any]], tmp_path: Path
) -> None:
    films, actors = storages
    actors.failure = SnapshotDamagedError("a bit is gone", file="a", offset=0)
    let_go(storages)
    container = container_of(storages)
    with container:
        train(container)
        container.load(saved[0], blocking=False)
        with pytest.raises(BackgroundError, match=r"load of .*three.*a bit is gone") as told:
            READS[use](container, tmp_path)
        assert told.value.__cause__ is actors.failure
        if use == "close":
            assert films.is_closed
            return
        container.discard()
        for name in ("lookup", "step", "save"):
            with pytest.raises(InterruptedLoadError, match=r"a load of .*three was cut short"):
                READS[name](container, tmp_path)
        actors.failure = None
        container.load(saved[0])
        assert mean(container) == 3.0


@pytest.mark.parametrize("num_rows", [0, 5])
def test_another_optimizer_does_not_turn_a_partial_load_into_a_complete_one(num_rows: int) -> None:
    with StepContainer() as container:
        container.declare(table("films"), StorageChoice("memory"))
        storage = container.storage("films")
        begin_load(storage, "elsewhere")
        storage.upsert(KEYS[:num_rows], np.ones((num_rows, 3), np.float32))
        container.set_state("films", np.zeros(2, np.float32), "adam")
        with pytest.raises(InterruptedLoadError, match="a load of elsewhere was cut short"):
            container.lookup("films", KEYS)


def test_a_failure_is_raised_only_by_the_task_if_it_is_awaited(
    storages: list[SlowRestore], saved: tuple[str, list[Any]]
) -> None:
    actors = storages[1]
    actors.failure = SnapshotDamagedError("a bit is gone", file="a", offset=0)
    let_go(storages)
    with container_of(storages) as container:
        loading = container.load(saved[0], blocking=False)
        with pytest.raises(SnapshotDamagedError, match="a bit is gone"):
            loading.result(SECONDS)
        actors.failure = None
        container.load(saved[0], blocking=False)
        assert mean(container) == 3.0


def test_a_wait_that_is_interrupted_stops_the_load(
    storages: list[SlowRestore], saved: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    films, actors = storages
    with container_of(storages) as container:
        take_step(container, 1.0)
        loading = container.load(saved[0], blocking=False)
        assert films.has_begun.wait(SECONDS)
        own_wait, calls = loading.wait, []

        def interrupted(timeout: float | None = None) -> bool:
            calls.append(timeout)
            if len(calls) == 1:
                threading.Timer(0.2, let_go, [storages]).start()
                raise KeyboardInterrupt
            return own_wait(timeout)

        monkeypatch.setattr(type(loading), "wait", lambda _, timeout=None: interrupted(timeout))
        with pytest.raises(KeyboardInterrupt):
            container.lookup("films", KEYS)
        assert loading.done(), "it goes on behind the caller's back"
        assert not actors.threads, "it went on with the next table"
        with pytest.raises(InterruptedLoadError, match="was cut short"):
            container.lookup("films", KEYS)
        with pytest.raises(InterruptedLoadError, match=r"was stopped \(KeyboardInterrupt"):
            loading.result(SECONDS)
        container.load(saved[0])
        assert mean(container) == 3.0


def test_a_program_that_fails_during_a_load_does_not_wait_for_all_rows(
    storages: list[SlowRestore], saved: tuple[str, list[Any]]
) -> None:
    films, actors = storages

    def build_model() -> None:
        with container_of(storages) as container:
            container.load(saved[0], blocking=False)
            assert films.has_begun.wait(SECONDS)
            threading.Timer(0.2, let_go, [storages]).start()
            raise RuntimeError("the model has a mistake")

    with pytest.raises(RuntimeError, match="the model has a mistake"):
        build_model()
    assert not actors.threads
    assert films.is_closed
    assert actors.is_closed


def test_close_waits_for_a_load_only_until_its_deadline(
    storages: list[SlowRestore], saved: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    films, actors = storages
    monkeypatch.setattr("sparring.engine.checkpoint.load_manager._STOP_SECONDS", 0.1)
    container = container_of(storages)
    container.events.deadline_seconds = 0.2
    loading = container.load(saved[0], blocking=False)
    assert films.has_begun.wait(SECONDS)
    with pytest.raises(DeadlineError, match=r"load of .*three"):
        container.close()
    assert not films.is_closed, "closed beneath the load"
    let_go(storages)
    with pytest.raises(InterruptedLoadError, match="its container was closed"):
        loading.result(SECONDS)
    assert films.is_closed
    assert actors.is_closed
    assert not actors.threads
    with pytest.raises(ClosedError):
        container.lookup("films", KEYS)


def test_a_storage_that_fails_to_close_after_a_load_leaves_no_other_open_and_hides_no_error(
    storages: list[SlowRestore],
    saved: tuple[str, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    films, actors = storages
    actors.failure = SnapshotDamagedError("a bit is gone", file="a", offset=0)
    films.may_go_on.set()
    container = container_of(storages)
    loading = container.load(saved[0], blocking=False)
    assert actors.has_begun.wait(SECONDS)

    def broken() -> None:
        raise StorageIOError("the disk is gone")

    monkeypatch.setattr(films, "close", broken)
    for each in storages:
        container.state.at_work.close(each)
    actors.may_go_on.set()
    with pytest.raises(SnapshotDamagedError):
        loading.result(SECONDS)
    assert actors.is_closed
    assert "could not be closed: the disk is gone" in caplog.text
    monkeypatch.undo()
    container.close()


def test_a_cancelled_load_changes_nothing(
    storages: list[SlowRestore], saved: tuple[str, list[Any]]
) -> None:
    with container_of(storages) as container:
        train(container)
        is_free = threading.Event()
        for _ in range(container.events.num_threads):
            container.state.events.submit(lambda: is_free.wait(SECONDS), name="another's work")
        loading = container.load(saved[0], blocking=False)
        assert loading.cancel()
        assert mean(container) == 1.0
        is_free.set()
    assert not storages[0].threads


def test_a_load_that_the_event_loop_rejects_never_begins(
    storages: list[SlowRestore], saved: tuple[str, list[Any]]
) -> None:
    container = container_of(storages)
    container.events.close()
    container.state.events = EventLoop(capacity=1, deadline_seconds=0.1)
    with container:
        is_free = threading.Event()
        container.state.events.submit(lambda: is_free.wait(SECONDS), name="another's work")
        with pytest.raises(DeadlineError, match=r"waited 0.1 s for capacity"):
            container.load(saved[0], blocking=False)
        is_free.set()
        assert container.num_rows("films") == 0
