"""Several ranks load in the background: all of them wait, and all report a failing one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.collective import coordinator
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.storage.results import EvictedRows
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import (
    InterruptedLoadError,
    PeerFailure,
    SnapshotDamagedError,
    SparringError,
)
from sparring.runtime.events import BackgroundError
from sparring.storage.memory import MemoryStorage
from sparring_testing.processes.deadlines import check_with_deadlines, error_within
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous
from sparring_train.run.ranks import Ranks

KEYS = np.arange(2_000)
WORLD_SIZE, BROKEN = 3, 1
SECONDS = 60.0


class SlowRestore(MemoryStorage):
    """Loads rows of a snapshot slowly."""

    def __init__(self, seconds: float) -> None:
        super().__init__(TableConfig("user", 4))
        self.seconds = seconds
        self.failure: BaseException | None = None

    def _restore_impl(self, *arguments: Any) -> EvictedRows:
        time.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        return super()._restore_impl(*arguments)


@pytest.fixture
def url(tmp_path: Path) -> str:
    saved = str(tmp_path / "saved")
    with StepContainer() as container:
        container.declare(TableConfig("user", 4), StorageChoice("memory"))
        container.storage("user").upsert(KEYS, np.full((len(KEYS), 4), 3, np.float32))
        container.save(saved)
    return saved


@pytest.fixture(autouse=True)
def quick_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_HEARTBEAT_SECONDS", 0.1)


def on_ranks(
    body: Callable[[StepContainer, SlowRestore], Any], *, deadline: float = SECONDS
) -> list[Any]:
    """Runs `body` on all ranks; only `BROKEN` takes a while to load."""

    def run(collective: Collective) -> Any:
        storage = SlowRestore(0.6 if collective.rank == BROKEN else 0.0)
        rendezvous = ThreadRendezvous(collective.world_size)
        with StepContainer(collective=collective, rendezvous=rendezvous) as container:
            container.declare(storage.table, storage)
            return body(container, storage)

    return run_ranks(WORLD_SIZE, run, deadline=deadline)


def take_step(container: StepContainer) -> None:
    def update(updates: Any) -> None:
        for each in updates:
            each.rows[:] += 1

    with container.step(update) as driven:
        found = driven.lookup("user", KEYS)
        driven.accumulate(found, np.ones_like(found.rows))


def test_ranks_do_not_communicate_before_all_have_loaded(url: str) -> None:
    def body(container: StepContainer, _: SlowRestore) -> list[float]:
        container.load(url, blocking=False)
        ranks = Ranks(container.collective, container.quiesce)
        total = ranks.total({"rows": 1})["rows"]  # by the collective that the load meets on
        first = container.lookup("user", KEYS, is_registered=False).rows.mean()
        take_step(container)
        return [total, float(first), float(container.lookup("user", KEYS).rows.mean())]

    assert on_ranks(body) == [[3, 3.0, 4.0]] * WORLD_SIZE


def test_ranks_wait_for_a_load_longer_than_for_each_other(url: str) -> None:
    def check(deadline: float) -> None:
        def body(container: StepContainer, storage: SlowRestore) -> float:
            storage.seconds *= 4 * deadline  # 2.4 deadlines
            container.load(url, blocking=False)
            return float(container.lookup("user", KEYS).rows.mean())

        assert on_ranks(body, deadline=deadline) == [3.0] * WORLD_SIZE

    check_with_deadlines(check, (1.0, 5.0))


CALLS: dict[str, Callable[[StepContainer, str], object]] = {
    "lookup": lambda container, _: container.lookup("user", KEYS),
    "ahead": lambda container, _: container.prefetch([("user", KEYS)]).finish(),
    "apply": lambda container, _: container.apply(lambda updates: None),
    "save": lambda container, url: container.save(f"{url}-again"),
    "flush": lambda container, _: container.flush(),
    "load": lambda container, url: container.load(url),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_failure_of_one_rank_fails_the_next_call_on_all_ranks(call: str, url: str) -> None:
    def body(container: StepContainer, storage: SlowRestore) -> SparringError:
        is_broken = container.collective.rank == BROKEN
        if is_broken:
            storage.failure = SnapshotDamagedError("a bit is gone", file="a", offset=0)
        container.load(url, blocking=False)
        error = error_within(SECONDS / 2, lambda: CALLS[call](container, url))
        container.discard()
        cut_short = error_within(SECONDS / 2, lambda: container.lookup("user", KEYS))
        assert type(cut_short) is InterruptedLoadError
        storage.failure = None
        container.load(url, blocking=False)
        assert container.lookup("user", KEYS).rows.mean() == 3
        return error

    for rank, error in enumerate(on_ranks(body)):
        assert type(error) is BackgroundError
        assert type(error.__cause__) is SnapshotDamagedError
        assert "a bit is gone" in str(error)
        assert BROKEN in {rank, error.__cause__.details.get("rank")}


def test_a_failure_that_one_rank_has_seen_is_reported_to_all_others(url: str) -> None:
    def body(container: StepContainer, storage: SlowRestore) -> SparringError:
        is_broken = container.collective.rank == BROKEN
        if is_broken:
            storage.failure = SnapshotDamagedError("a bit is gone", file="a", offset=0)
        loading = container.load(url, blocking=False)
        if is_broken:
            with pytest.raises(SnapshotDamagedError):
                loading.result(SECONDS)
        return error_within(SECONDS / 2, lambda: container.lookup("user", KEYS))

    for error in on_ranks(body):
        assert isinstance(error, (BackgroundError, InterruptedLoadError))


def test_a_rank_that_stops_its_load_notifies_the_others(url: str) -> None:
    def body(container: StepContainer, storage: SlowRestore) -> str:
        loading = container.load(url, blocking=False)
        if container.collective.rank == BROKEN:
            container.loads.stop(KeyboardInterrupt())
        return str(error_within(SECONDS / 2, lambda: loading.result(SECONDS)))

    for rank, error in enumerate(on_ranks(body)):
        assert "was stopped (KeyboardInterrupt())" in error
        assert rank == BROKEN or f"rank {BROKEN} failed" in error


def test_a_rank_that_cancels_its_load_notifies_the_others_at_once(url: str) -> None:
    report_failure = threading.Barrier(WORLD_SIZE, timeout=SECONDS)

    def body(container: StepContainer, storage: SlowRestore) -> None:
        is_broken, is_free = container.collective.rank == BROKEN, threading.Event()
        if is_broken:
            for _ in range(container.events.num_threads):
                container.events.submit(lambda: is_free.wait(SECONDS), name="another's work")
        loading = container.load(url, blocking=False)
        if is_broken:
            assert loading.cancel()
        else:
            error = error_within(SECONDS / 2, lambda: loading.result(SECONDS))
            assert f"rank {BROKEN} failed" in str(error)
            assert "was stopped (CancelledError())" in str(error)
        report_failure.wait()  # the rank that cancelled uses no row before
        is_free.set()
        container.loads.join()
        container.load(url)
        assert container.lookup("user", KEYS).rows.mean() == 3

    on_ranks(body)


def test_close_waits_for_the_load_of_all_ranks(url: str) -> None:
    def body(container: StepContainer, storage: SlowRestore) -> int:
        loading = container.load(url, blocking=False)
        container.close()
        assert loading.done()
        return loading.result().rows["user"]

    assert sum(on_ranks(body)) == len(KEYS)


def test_a_killed_rank_is_a_peer_failure_within_the_deadline(url: str) -> None:
    has_left = threading.Event()

    def body(container: StepContainer, storage: SlowRestore) -> Any:
        storage.seconds = 3.0
        loading = container.load(url, blocking=False)
        if container.collective.rank == BROKEN:
            container.collective.close()  # as its end does
            has_left.set()
            with pytest.raises(SparringError):
                loading.result(SECONDS)
            return None
        assert has_left.wait(SECONDS)
        error = error_within(SECONDS / 2, lambda: container.lookup("user", KEYS))
        assert type(error) is PeerFailure
        assert type(error_within(SECONDS / 2, lambda: loading.result(SECONDS))) is PeerFailure
        return error.rank

    assert on_ranks(body, deadline=2.0)[0] == BROKEN
