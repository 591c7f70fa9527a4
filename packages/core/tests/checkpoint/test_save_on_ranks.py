"""Several ranks save together; any number of ranks loads."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import SaveOptions, State
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.storage import Storage
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.admission import Bloom, Frequency
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.checkpoint import save_manager
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import (
    DeadlineError,
    PeerFailure,
    SnapshotError,
    SnapshotIOError,
    SparringError,
)
from sparring.rendezvous.environment import SingleRendezvous
from sparring.runtime.events import BackgroundError
from sparring.snapshot.place import local as local_place
from sparring.snapshot.place.local import LocalRoot
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.retention import list_snapshots
from sparring.snapshot.writer import SnapshotWriter
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.table_steps import declare_tables, join_rows, read_rows, read_tables

from ..snapshot.snapshot_samples import make_chunk, save, small_files

METHOD = resolve_method("adagrad")
HYPER = parse_hyper(METHOD, {"lr": 0.1})
K = 4

TABLES = [
    TableConfig("user", 4, "float32", Uniform(-1, 1), seed=3),
    TableConfig("item", 2, "float32", Uniform(-1, 1), admission=Frequency(K)),
    TableConfig("tag", 2, "float32", Uniform(-1, 1), admission=Bloom(K, expected_keys=10_000)),
    TableConfig("day", 3, "float32", Uniform(-1, 1), placement="replicated"),
]


class Job(SingleRendezvous):
    """A rendezvous of threads."""

    def __init__(self, owners: ShardMap) -> None:
        super().__init__()
        self._owners = owners

    def shard_map(self) -> ShardMap:
        return self._owners


def make(collective: Collective, owners: ShardMap | None = None) -> StepContainer:
    owners = owners or ShardMap.balanced(collective.world_size)
    container = StepContainer(collective=collective, rendezvous=Job(owners))
    declare_tables(container, TABLES, "memory", METHOD.name)
    for table in TABLES:
        container.storage(table.name)
    return container


def step(container: StepContainer, number: int) -> None:
    """Runs step `number`: every rank has the same batch, so any number of ranks trains equally."""
    random = np.random.default_rng(number)
    requests = [(table.name, random.integers(0, 400, 60)) for table in TABLES]
    for found in container.lookup_all(requests):
        assert found.shadow_id is not None
        gradient = np.ones(found.rows.shape, found.rows.dtype) * (found.keys[:, None] % 7 - 3)
        container.resources.accumulate(found.shadow_id, gradient.astype(found.rows.dtype))
    choice = MethodChoice(METHOD, HYPER, container.counters.steps + 1)
    container.apply_methods({table.name: choice for table in TABLES})


def train(world_size: int, first: int, last: int, load: str | None, save: str | None) -> Any:
    """Returns the rows of all ranks after some steps, and the sum of rejected admissions."""

    def body(collective: Collective) -> tuple[Any, int]:
        with make(collective) as container:
            if load is not None:
                container.load(load)
            for number in range(first, last):
                step(container, number)
            if save is not None:
                container.save(save)
            return read_tables(container), container.num_not_admitted("item")

    found = run_ranks(world_size, body)
    return join_rows([rows for rows, _ in found], ["day"]), sum(dropped for _, dropped in found)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (2, 1),
        (3, 4),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, 2), (2, 2))),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in ((1, 1), (1, 4), (2, 4), (3, 1), (3, 2))
        ),
    ],
)
def test_any_number_of_ranks_continues(before: int, after: int, tmp_path: Path) -> None:
    expected, expected_dropped = train(before, 0, 20, None, None)
    url = str(tmp_path / "step-10")
    saved, _ = train(before, 0, 10, None, url)
    loaded, _ = train(after, 10, 10, url, None)
    assert loaded == saved
    went_on, dropped = train(after, 10, 20, url, None)
    # Sums over other numbers of ranks differ in their last bits; the set of rows does not.
    for name, rows in went_on.items():
        assert rows.keys() == expected[name].keys(), name
    assert dropped == expected_dropped
    if before == after:
        assert went_on == expected


def test_ranks_with_other_partitions_load_the_rows_that_they_own(tmp_path: Path) -> None:
    url = str(tmp_path / "step-10")
    saved, _ = train(2, 0, 10, None, url)
    moved = ShardMap(ShardMap.balanced(2).owners[::-1], 2)

    def body(collective: Collective) -> tuple[Any, Any]:
        with make(collective, moved) as container:
            container.load(url)
            entry = container.entry("item")
            return read_tables(container), entry.admission_filter.save()

    assert join_rows([rows for rows, _ in run_ranks(2, body)], ["day"]) == saved


def test_ranks_save_deltas_in_the_background(tmp_path: Path) -> None:
    full, delta = str(tmp_path / "full"), str(tmp_path / "delta")
    options = SaveOptions(is_base=True)

    def body(collective: Collective) -> Any:
        with make(collective) as container:
            for number in range(5):
                step(container, number)
            container.save(full, options=options)
            for number in range(5, 8):
                step(container, number)
            expected = read_tables(container)
            container.save(delta, base=full, options=options, blocking=False)
            for number in range(8, 14):
                step(container, number)
            return expected

    expected = join_rows(run_ranks(2, body), ["day"])
    loaded, _ = train(3, 0, 0, delta, None)
    assert loaded == expected


def test_after_a_failed_commit_ranks_agree_on_a_base_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, calls = SnapshotWriter.commit, []
    # Rank 0 dies, or is too slow, before the other rank knows the result of the commit.
    monkeypatch.setattr(SnapshotWriter, "await_commit", SnapshotWriter._release)
    monkeypatch.setattr("sparring.snapshot.commit.GRACE_SECONDS", 0.1)

    def fails_once(writer: SnapshotWriter) -> Any:
        calls.append(writer.step)
        if len(calls) == 2:
            # The other rank has finished its part, and knows of no failure.
            writer._attempt.await_manifest(10.0)
            raise OSError("disk gone")
        return commit(writer)

    monkeypatch.setattr(SnapshotWriter, "commit", fails_once)
    options = SaveOptions(is_base=True, report_failure=False)

    def body(collective: Collective) -> Any:
        with make(collective) as container:
            for number in range(5):
                step(container, number)
                container.saves.join()
                base = container.saves.base
                url = str(tmp_path / f"s{number}")
                container.save(url, base=base, blocking=False, options=options)
            container.saves.join()
            return read_tables(container)

    expected = join_rows(run_ranks(2, body), ["day"])
    bases = [open_snapshot(str(tmp_path / f"s{number}")).base for number in (0, 2, 3, 4)]
    assert [base is None for base in bases] == [True, True, False, False]
    assert train(2, 0, 0, str(tmp_path / "s4"), None)[0] == expected


def test_state_of_ranks_is_restored_on_each(tmp_path: Path) -> None:
    url = str(tmp_path / "one")

    def save(collective: Collective) -> None:
        rank = collective.rank
        states = {"all": State(rank), "mine": State(rank, is_of_rank=True)}
        with make(collective) as container:
            container.save(url, states=states)

    def load(collective: Collective) -> list[Any]:
        with make(collective) as container:
            states = container.load(url).states
            return [states["all"].values, states["mine"].values]

    run_ranks(2, save)
    assert run_ranks(3, load) == [[0, 0], [0, 1], [0, 0]]


@pytest.mark.parametrize("broken", [0, 1])
def test_a_failing_rank_fails_the_save_on_all(broken: int, tmp_path: Path) -> None:
    url = str(tmp_path / "one")

    def body(collective: Collective) -> str:
        with make(collective) as container:
            step(container, 0)
            if collective.rank == broken:
                storage = container.storage("user")
                storage._find_impl = _fail  # type: ignore[method-assign]
            try:
                container.save(url, options=SaveOptions(deadline_seconds=2.0))
            except (SparringError, OSError) as error:
                return f"{type(error).__name__}: {error}"
            return "saved"

    errors = run_ranks(2, body)
    assert "disk gone" in errors[broken]
    assert "saved" not in errors
    with pytest.raises(SnapshotError):
        train(1, 0, 0, url, None)


@pytest.mark.parametrize("blocking", [True, False])
def test_a_save_begins_on_all_ranks_or_on_none(
    blocking: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = SnapshotWriter.__init__
    refused = []

    def refuses_once(writer: SnapshotWriter, url: str, **options: Any) -> None:
        if options["rank"] == 1 and not refused:
            refused.append(url)
            raise SnapshotIOError("no room for a folder")
        made(writer, url, **options)

    monkeypatch.setattr(SnapshotWriter, "__init__", refuses_once)

    def body(collective: Collective) -> str:
        with make(collective) as container:
            step(container, 0)
            begin = time.monotonic()
            with pytest.raises(SnapshotError) as caught:
                container.save(str(tmp_path / "one"), blocking=blocking)
            assert time.monotonic() - begin < 30
            step(container, 1)
            container.save(str(tmp_path / "two"))
            return str(caught.value)

    errors = run_ranks(2, body)
    assert "rank 1 failed: no room for a folder" in errors[0]
    assert "no room for a folder" in errors[1]
    assert [Path(url).name for url in list_snapshots(str(tmp_path))] == ["two"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".one")]


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_rank_that_fails_in_the_background_is_soon_reported_on_all(
    broken: int, tmp_path: Path
) -> None:
    def body(collective: Collective) -> list[str]:
        with make(collective) as container:
            step(container, 0)
            if collective.rank == broken:
                break_once(container.storage("user"))
            begin = time.monotonic()
            container.save(str(tmp_path / "one"), blocking=False)
            container.saves.join()
            assert time.monotonic() - begin < 30  # a save's own deadline is 600 s
            collective.barrier()
            with pytest.raises(BackgroundError) as caught:
                step(container, 1)
            step(container, 1)
            container.save(str(tmp_path / "two"), blocking=False)
            step(container, 2)
            container.saves.join()
            return [str(caught.value), container.saves.counters.saves]

    errors, num_saved = zip(*run_ranks(3, body), strict=True)
    for rank, error in enumerate(errors):
        assert "disk gone" in error
        assert (f"rank {broken} failed, and nothing was committed" in error) == (rank != broken)
    assert num_saved == (1, 1, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two"]


def test_a_failed_commit_fails_the_save_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish, refused = LocalRoot.publish, []

    def refuses_once(place: LocalRoot, folder: Any, name: str, manifest: bytes) -> None:
        if not refused:
            refused.append(name)
            raise OSError("disk full")
        publish(place, folder, name, manifest)

    monkeypatch.setattr(LocalRoot, "publish", refuses_once)
    options = SaveOptions(is_base=True)

    def body(collective: Collective) -> Any:
        with make(collective) as container:
            for number in range(4):
                step(container, number)
                url = str(tmp_path / f"s{number}")
                base = container.saves.base
                task = container.save(url, base=base, blocking=False, options=options)
                container.saves.join()
                if number:
                    assert task.result(0).url == url
                    continue
                collective.barrier()
                with pytest.raises(BackgroundError, match="disk full"):
                    step(container, 99)
            return read_tables(container)

    expected = join_rows(run_ranks(2, body), ["day"])
    bases = [open_snapshot(str(tmp_path / f"s{number}")).base for number in (1, 2, 3)]
    assert [base is None for base in bases] == [True, False, False]
    assert train(2, 0, 0, str(tmp_path / "s3"), None)[0] == expected


def test_a_rank_that_dies_during_a_save_causes_a_deadline_error_on_the_others(
    tmp_path: Path,
) -> None:
    def body(collective: Collective) -> str:
        token = "one-attempt"
        options = {
            "rank": collective.rank,
            "world_size": 2,
            "token": token,
            "deadline_seconds": 0.2,
        }
        writer = SnapshotWriter(str(tmp_path / "one"), step=1, **options)  # type: ignore[arg-type]
        writer.finish()
        if collective.rank == 0:
            return "dead"
        with pytest.raises(DeadlineError, match="rank 0 did not commit it within") as caught:
            writer.await_commit()
        writer.abandon(caught.value)
        return str(sorted(path.name for path in next(tmp_path.iterdir()).iterdir()))

    # Rank 0 may be committing, so nothing of the other rank is removed or added.
    assert run_ranks(2, body)[1] == "['part-00000.json', 'part-00001.json']"


def _fail(*_: object) -> None:
    raise OSError("disk gone")


def break_once(storage: Storage) -> None:
    find = storage._find_impl

    def broken(*arguments: Any) -> None:
        storage._find_impl = find  # type: ignore[method-assign]
        raise OSError("disk gone")

    storage._find_impl = broken  # type: ignore[method-assign]


def test_a_rank_that_cannot_load_stops_all_before_anything_changes(tmp_path: Path) -> None:
    url = str(tmp_path / "one")
    train(2, 0, 3, None, url)

    def body(collective: Collective) -> tuple[str, int]:
        with make(collective) as container:
            step(container, 0)
            before = read_tables(container)
            if collective.rank == 1:
                container.declare(TableConfig("more", 1), StorageChoice("memory"))
            try:
                container.load(url)
            except SparringError as error:
                assert {name: read_rows(container, name) for name in before} == before
                return str(error)
            return "loaded"

    errors = run_ranks(2, body)
    assert "nothing was changed: rank 1 failed" in errors[0]
    assert "no table 'more'" in errors[1]


def test_ranks_that_load_read_only_the_rows_that_they_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4"""
    saved = save(tmp_path, 1, make_chunk(range(20_000)), options=small_files(num_ranges=8))
    num_bytes = sum(each.size_bytes for each in saved.files("item", "rows"))
    found: list[int] = []
    read = local_place._read_into

    def counting(descriptor: int, offset: int, buffer: memoryview) -> None:
        found.append(len(buffer))
        read(descriptor, offset, buffer)

    monkeypatch.setattr(local_place, "_read_into", counting)

    def body(collective: Collective) -> int:
        owners = ShardMap.balanced(collective.world_size)
        with StepContainer(collective=collective, rendezvous=Job(owners)) as container:
            container.declare(TableConfig("item", 4), StorageChoice("memory"))
            container.set_state("item", np.zeros(1, np.float32), "rowwise_adagrad")
            return container.load(saved.url, tables=["item"]).rows["item"]

    assert sum(run_ranks(4, body)) == 20_000
    # All ranks together read each file once, and each of them the manifest.
    assert num_bytes <= sum(found) < 1.5 * num_bytes


@pytest.mark.parametrize("waiting", [0, 1])
def test_a_rank_whose_peer_failed_soon_stops_waiting_for_its_part(
    waiting: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default deadline of a save is longer than this test may take."""
    finish, ended = SnapshotWriter.finish, threading.Event()

    def finish_or_hang(self: SnapshotWriter) -> None:
        if self.rank != waiting:
            ended.wait(30)
            raise InterruptedError
        finish(self)

    monkeypatch.setattr(SnapshotWriter, "finish", finish_or_hang)
    monkeypatch.setattr(save_manager, "GRACE_SECONDS", 0.1)

    def body(collective: Collective) -> None:
        if collective.rank != waiting:
            with make(collective) as container, suppress(SparringError, InterruptedError):
                container.save(str(tmp_path / "step"))
            return
        container = make(collective)
        task = container.save(str(tmp_path / "step"), blocking=False)
        with pytest.raises(PeerFailure, match="rank is gone"), container:
            raise PeerFailure("a rank is gone")
        with pytest.raises(DeadlineError, match="that remained after this rank had failed"):
            task.result()
        ended.set()

    run_ranks(2, body)
    assert list_snapshots(tmp_path) == []
