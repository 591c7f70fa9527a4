"""An error of one rank is raised on all ranks soon, with its class and the number of the rank."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.collective import coordinator
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.storage.results import EvictedRows
from sparring.contracts.storage.storage import write_note
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import (
    InterruptedLoadError,
    InvalidArgumentError,
    PeerFailure,
    SnapshotDamagedError,
    SparringError,
)
from sparring.kernels.functions import partition
from sparring.snapshot.reader import open_snapshot
from sparring.storage.load import begin_load, end_load
from sparring.storage.memory import MemoryStorage
from sparring_testing.processes.deadlines import check_with_deadlines, error_within
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.table_steps import open_tables
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

TABLE = TableConfig("user", 4)
KEYS = np.arange(2_000)
WORLD_SIZE, BROKEN = 3, 1
SOON = 30.0  # seconds; the deadline is 60
OWNERS = ThreadRendezvous(WORLD_SIZE)


def own_key(container: StepContainer) -> Any:
    """Returns a key ``(1,)`` that the calling rank owns."""
    owners = container.rendezvous.shard_map().owners[partition(KEYS)]
    return KEYS[owners == container.collective.rank][:1]


def saved(tmp_path: Path, num_tables: int = 1, value: float = 1.0) -> str:
    """Returns the URL of a snapshot whose tables have rows in all partitions."""
    url = str(tmp_path / "saved")
    tables = [TableConfig(f"{TABLE.name}{number or ''}", 4) for number in range(num_tables)]
    with open_tables(*tables) as container:
        for table in tables:
            rows = np.full((len(KEYS), table.dim), value, np.float32)
            container.storage(table.name).upsert(KEYS, rows)
        container.save(url)
    return url


def check_all_have_it(errors: list[SparringError], kind: type[SparringError], text: str) -> None:
    for rank, error in enumerate(errors):
        assert type(error) is kind
        assert text in str(error)
        if rank != BROKEN:
            assert f"rank {BROKEN} " in str(error)
            assert error.rank == BROKEN


CALLS: dict[str, Callable[[StepContainer, Path], object]] = {
    "lookup": lambda container, _: container.lookup("user", KEYS),
    "ahead": lambda container, _: container.prefetch([("user", KEYS)]).finish(),
    "save": lambda container, path: container.save(str(path / "again")),
    "save beside": lambda container, path: container.save(str(path / "again"), blocking=False),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_interrupted_load_on_one_rank_stops_all(call: str, tmp_path: Path) -> None:
    def body(collective: Collective) -> SparringError:
        with open_tables(TABLE, collective=collective, rendezvous=OWNERS) as container:
            if collective.rank == BROKEN:
                begin_load(container.storage("user"), "elsewhere")
            error = error_within(SOON, lambda: CALLS[call](container, tmp_path))
            # No rank has left: the ranks continue together once it is repaired.
            if collective.rank == BROKEN:
                end_load(container.state.tables.open(container.entry("user")))
            container.discard()
            assert len(container.lookup("user", KEYS).rows) == len(KEYS)
            return error

    errors = run_ranks(WORLD_SIZE, body, deadline=60.0)
    check_all_have_it(errors, InterruptedLoadError, "a load of elsewhere was cut short")
    assert {error.source for error in errors} == {"elsewhere"}


@pytest.mark.parametrize("call", CALLS)
def test_rows_of_another_part_on_one_rank_stop_all(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body(collective: Collective) -> SparringError:
        with open_tables(TABLE, collective=collective, rendezvous=OWNERS) as container:
            if collective.rank == BROKEN:
                storage = container.storage("user")
                storage.upsert(own_key(container), np.ones((1, 4), np.float32))
                write_note(storage, "part", "rank 0 of 9")
                container.entry("user").part = "rank 1 of 3"
            return error_within(SOON, lambda: CALLS[call](container, tmp_path))

    errors = run_ranks(WORLD_SIZE, body, deadline=60.0)
    check_all_have_it(errors, InvalidArgumentError, "contains 1 rows of rank 0 of 9")


def test_invalid_ids_on_one_rank_stop_the_lookup_on_all() -> None:
    def body(collective: Collective) -> SparringError:
        with open_tables(TABLE, collective=collective, rendezvous=OWNERS) as container:
            ids = KEYS.astype(np.int32) if collective.rank == BROKEN else KEYS
            return error_within(SOON, lambda: container.lookup("user", ids))

    errors = run_ranks(WORLD_SIZE, body, deadline=60.0)
    check_all_have_it(errors, InvalidArgumentError, "must be one-dimensional int64")


def test_a_rank_that_cannot_notify_the_others_raises_its_own_error() -> None:
    def body(collective: Collective) -> SparringError:
        container = open_tables(TABLE, collective=collective, rendezvous=OWNERS)
        if collective.rank != BROKEN:
            container.close()
        error = error_within(SOON, lambda: container.lookup("user", KEYS.astype(np.int32)))
        container.close()
        return error

    errors = run_ranks(WORLD_SIZE, body, deadline=2.0)
    assert type(errors[BROKEN]) is InvalidArgumentError
    assert isinstance(errors[BROKEN].__cause__, PeerFailure)


def test_a_snapshot_rejected_by_one_rank_raises_on_all(tmp_path: Path) -> None:
    url = saved(tmp_path)

    def body(collective: Collective) -> SparringError:
        table = TableConfig("user", 5) if collective.rank == BROKEN else TABLE
        with open_tables(table, collective=collective, rendezvous=OWNERS) as container:
            return error_within(SOON, lambda: container.load(url))

    errors = run_ranks(WORLD_SIZE, body, deadline=60.0)
    check_all_have_it(errors, InvalidArgumentError, "dim 4 in the snapshot, 5 declared")
    assert "nothing was changed" in str(errors[0])


def slow(storage: MemoryStorage, seconds: float) -> None:
    restore = storage._restore_impl

    def restore_slowly(*arguments: Any) -> EvictedRows:
        time.sleep(seconds)
        return restore(*arguments)

    storage._restore_impl = restore_slowly  # type: ignore[method-assign]


def test_a_rank_that_cannot_read_its_part_stops_ranks_that_still_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = saved(tmp_path, num_tables=50)
    entry = open_snapshot(url).files("user")[0]
    monkeypatch.setattr(coordinator, "_HEARTBEAT_SECONDS", 0.2)

    def body(collective: Collective) -> SparringError:
        with open_tables(TABLE, collective=collective, rendezvous=OWNERS) as container:
            for number in range(1, 50):
                container.declare(TableConfig(f"user{number}", 4), StorageChoice("memory"))
                container.storage(f"user{number}")
            if collective.rank == BROKEN:

                def damaged(*_: object) -> None:
                    raise SnapshotDamagedError("a bit is gone", file=entry.name, offset=0)

                container.storage("user")._restore_impl = damaged  # type: ignore[attr-defined]
            else:
                for number in range(1, 50):
                    slow(container.storage(f"user{number}"), 0.2)
            return error_within(SOON, lambda: container.load(url))

    errors = run_ranks(WORLD_SIZE, body, deadline=60.0)
    check_all_have_it(errors, SnapshotDamagedError, "a bit is gone")
    assert {error.file for error in errors} == {entry.name}
    assert "may now contain parts" in str(errors[0])


def test_ranks_that_have_loaded_wait_for_slower_ones_beyond_a_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = saved(tmp_path, num_tables=6)
    monkeypatch.setattr(coordinator, "_HEARTBEAT_SECONDS", 0.1)

    def check(deadline: float) -> None:
        def body(collective: Collective) -> int:
            with open_tables(TABLE, collective=collective, rendezvous=OWNERS) as container:
                for number in range(1, 6):
                    container.declare(TableConfig(f"user{number}", 4), StorageChoice("memory"))
                if collective.rank == BROKEN:
                    slow(container.storage("user3"), 3 * deadline)  # in one piece
                return container.load(url).rows["user5"]

        assert sum(run_ranks(WORLD_SIZE, body, deadline=deadline)) == len(KEYS)

    check_with_deadlines(check, (1.0, 5.0))


def test_a_rank_stopped_during_its_load_notifies_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = saved(tmp_path)
    monkeypatch.setattr(coordinator, "_HEARTBEAT_SECONDS", 0.1)

    def body(collective: Collective) -> str:
        with open_tables(TABLE, collective=collective, rendezvous=OWNERS) as container:
            if collective.rank != BROKEN:
                return str(error_within(SOON, lambda: container.load(url)))

            def stopped(*_: object) -> None:
                raise KeyboardInterrupt

            container.storage("user")._restore_impl = stopped  # type: ignore[attr-defined]
            with pytest.raises(KeyboardInterrupt):
                container.load(url)
            return ""

    for rank, error in enumerate(run_ranks(WORLD_SIZE, body, deadline=60.0)):
        assert rank == BROKEN or "rank 1 failed: it was stopped (KeyboardInterrupt())" in error


def test_ranks_that_save_to_different_places_are_rejected(tmp_path: Path) -> None:
    def body(collective: Collective) -> str:
        with open_tables(TABLE, collective=collective, rendezvous=OWNERS) as container:
            name = "there" if collective.rank == BROKEN else "here"
            return str(error_within(SOON, lambda: container.save(str(tmp_path / name))))

    errors = run_ranks(WORLD_SIZE, body, deadline=60.0)
    assert len(set(errors)) == 1
    assert f'URL is "{tmp_path}/here" on rank 0 and "{tmp_path}/there" on rank 1' in errors[0]
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_load_different_snapshots_are_rejected(tmp_path: Path) -> None:
    urls = [saved(tmp_path / str(value), value=value) for value in (1.0, 2.0)]

    def body(collective: Collective) -> str:
        with open_tables(TABLE, collective=collective, rendezvous=OWNERS) as container:
            zeros = np.zeros((1, 4), np.float32)
            container.storage("user").upsert(own_key(container), zeros)
            error = error_within(SOON, lambda: container.load(urls[collective.rank == BROKEN]))
            assert container.num_rows("user") == 1
            return str(error)

    errors = run_ranks(WORLD_SIZE, body, deadline=60.0)
    assert len(set(errors)) == 1
    assert "ranks load different snapshots: hash is " in errors[0]


def test_ranks_that_load_different_tables_are_rejected(tmp_path: Path) -> None:
    url = saved(tmp_path, num_tables=2)

    def body(collective: Collective) -> str:
        with open_tables(TABLE, collective=collective, rendezvous=OWNERS) as container:
            container.declare(TableConfig("user1", 4), StorageChoice("memory"))
            tables = ["user"] if collective.rank == BROKEN else ["user", "user1"]
            return str(error_within(SOON, lambda: container.load(url, tables=tables)))

    assert (
        'tables is ["user", "user1"] on rank 0 and ["user"] on rank 1'
        in run_ranks(WORLD_SIZE, body, deadline=60.0)[0]
    )
