"""Saving and loading a container: one rank, concurrent steps, and failures.

Long because all tests share the tables and the slow storage below.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import SaveOptions, State
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.admission import Bloom, Frequency, Probability
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.checkpoint.copy_on_write import CopyOnWriteView
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import (
    ClosedError,
    DeadlineError,
    InvalidArgumentError,
    SnapshotError,
    SnapshotIOError,
)
from sparring.runtime.events import BackgroundError
from sparring.snapshot.reader import open_snapshot
from sparring.snapshot.writer import SnapshotWriter
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.table_steps import declare_tables, read_chunks

from .test_save_on_ranks import break_once

METHOD = resolve_method("adagrad")
HYPER = parse_hyper(METHOD, {"lr": 0.1})

TABLES = [
    TableConfig("user", 4, "float32", Uniform(-1, 1), seed=3),
    TableConfig("item", 2, "bfloat16", Uniform(-1, 1), admission=Frequency(2)),
    TableConfig("tag", 3, "float64", Uniform(-1, 1), admission=Bloom(2, expected_keys=1000)),
    TableConfig("word", 1, "float32", Uniform(-1, 1), admission=Probability(0.5)),
    TableConfig("brand", 5, "int8", Uniform(-1, 1)),
]


def make(backend: str = "hkv", **options: Any) -> StepContainer:
    container = StepContainer()
    declare_tables(container, TABLES, StorageChoice(backend, options), METHOD.name)
    for table in TABLES:
        container.storage(table.name)
    return container


def step(container: StepContainer, number: int, size: int = 400) -> None:
    """Step `number` of a training, the same wherever it runs."""
    random = np.random.default_rng(number)
    for table in TABLES:
        ids = random.zipf(1.3, size).astype(np.int64) % 5000
        found = container.lookup(table.name, ids)
        gradient = random.normal(size=found.rows.shape).astype(found.rows.dtype)
        assert found.shadow_id is not None
        container.resources.accumulate(found.shadow_id, gradient)
    choice = MethodChoice(METHOD, HYPER, container.counters.steps + 1)
    container.apply_methods({table.name: choice for table in TABLES})


def read_contents(container: StepContainer) -> dict[str, Any]:
    return {name: read_chunks(container.storage(name).scan()) for name in container.tables}


def counted(container: StepContainer) -> list[Any]:
    """Returns everything except rows."""
    return [
        container.counters,
        [entry.admission_filter and entry.admission_filter.save() for entry in container.entries()],
        [container.num_not_admitted(table.name) for table in TABLES],
    ]


STACKS: list[tuple[str, dict[str, Any]]] = [
    ("memory", {}),
    ("hkv", {}),
    ("hkv", {"capacity": 500, "policy": "lru"}),
    ("hkv", {"capacity": 500, "policy": "lfu"}),
    (
        "tiered",
        {
            "tiers": [
                {"backend": "hkv", "options": {"capacity": 500, "policy": "lru"}},
                {"backend": "memory"},
            ]
        },
    ),
    ("memory", {"capacity": 500, "policy": "lru"}),
]


@pytest.fixture(params=STACKS, ids=lambda stack: f"{stack[0]}-{stack[1].get('policy', '')}")
def stack(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    chosen: tuple[str, dict[str, Any]] = request.param
    return chosen


def test_training_continues_from_a_snapshot_as_if_never_interrupted(
    stack: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    url = str(tmp_path / "step-5")
    with make(stack[0], **stack[1]) as container:
        for number in range(5):
            step(container, number)
        container.save(url)
        saved = read_contents(container)
        for number in range(5, 9):
            step(container, number)
        expected, expected_counts = read_contents(container), counted(container)
    with make(stack[0], **stack[1]) as container:
        step(container, 77)  # lost
        loaded = container.load(url)
        assert loaded.step == container.counters.steps == 5
        assert read_contents(container) == saved
        for number in range(5, 9):
            step(container, number)
        assert read_contents(container) == expected
        assert counted(container) == expected_counts


@pytest.mark.parametrize(
    "stack",
    [
        pytest.param(each, marks=[] if at in (2, 4) else pytest.mark.slow)
        for at, each in enumerate(STACKS)
    ],
    ids=lambda stack: f"{stack[0]}-{stack[1].get('policy', '')}",
)
def test_a_background_save_contains_one_step_of_all_tables(
    stack: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    with make(stack[0], **stack[1]) as container:
        for number in range(5):
            step(container, number)
        urls = {}
        for number in range(5, 35):
            if number % 6 == 5:
                container.saves.join()
                urls[str(tmp_path / f"step-{number}")] = read_contents(container)
                container.save(str(tmp_path / f"step-{number}"), blocking=False)
            step(container, number)
        container.saves.join()
        assert container.saves.counters.saves == len(urls) == 5
    for url, expected in urls.items():
        with make(stack[0], **stack[1]) as container:
            container.load(url)
            assert read_contents(container) == expected


def test_steps_wait_for_a_save_that_keeps_too_many_old_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, chunks = threading.Event(), CopyOnWriteView.chunks

    def after_the_gate(frozen: CopyOnWriteView, pause: Any) -> Iterator[Any]:
        assert gate.wait(30)
        yield from chunks(frozen, pause)

    monkeypatch.setattr(CopyOnWriteView, "chunks", after_the_gate)
    with make("memory") as container:
        for number in range(3):
            step(container, number)
        saved = read_contents(container)
        options = SaveOptions(undo_bytes=1)
        task = container.save(str(tmp_path / "a"), blocking=False, options=options)
        step(container, 3)  # fills the buffer
        assert not gate.is_set()
        threading.Timer(0.3, gate.set).start()
        step(container, 4)
        assert gate.is_set()
        task.result(30)
        container.saves.join()
        assert container.saves.counters.wait_seconds > 0.1
        container.load(str(tmp_path / "a"))
        assert read_contents(container) == saved


def test_saving_changes_nothing_of_the_training(tmp_path: Path) -> None:
    with make() as saving, make() as plain:
        for number in range(12):
            if number == 4:
                saving.save(
                    str(tmp_path / "one"), blocking=False, options=SaveOptions(is_base=True)
                )
            step(saving, number)
            step(plain, number)
        assert read_contents(saving) == read_contents(plain)


def test_saving_a_stack_promotes_none_of_the_rows_that_it_reads(tmp_path: Path) -> None:
    with make(STACKS[4][0], **STACKS[4][1]) as container:
        storage = container.storage("user")
        storage.upsert(np.arange(2000), np.ones((2000, storage.table.width), np.float32))
        hot = container.tier_counters("user")[0].evictions
        container.save(str(tmp_path / "one"))
        storage.upsert([1999], np.zeros((1, storage.table.width), np.float32))
        tiers = container.tier_counters("user")
        assert [tier.promotions for tier in tiers] == [0, 0]
        assert tiers[0].evictions <= hot + 1


def test_a_save_that_cannot_begin_loses_no_changed_keys(tmp_path: Path) -> None:
    base, delta = str(tmp_path / "base"), str(tmp_path / "delta")
    with make() as container:
        step(container, 0)
        container.save(base, options=SaveOptions(is_base=True))
        step(container, 1)
        events = container.events
        submit = events.submit
        events.submit = _refuse  # type: ignore[method-assign]
        with pytest.raises(DeadlineError):
            container.save(str(tmp_path / "not"), blocking=False, options=SaveOptions(is_base=True))
        events.submit = submit  # type: ignore[method-assign]
        step(container, 2)
        container.save(delta, base=base)
        expected = read_contents(container)
    with make() as container:
        container.load(delta)
        assert read_contents(container) == expected


def _refuse(*_: object, **__: object) -> Any:
    raise DeadlineError("no room")


def test_deltas_restore_the_rows_of_their_step(
    stack: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    options = SaveOptions(is_base=True)
    with make(stack[0], **stack[1]) as container:
        base = None
        for number in range(20):
            if number % 5 == 4:
                url = str(tmp_path / f"step-{number}")
                container.save(url, base=base, options=options, blocking=number % 2 == 0)
                expected = read_contents(container)
                base = url
            step(container, number, 100)
            if number % 5 == 1:
                container.storage("user").erase(np.arange(0, 5000, 3))
        container.saves.join()
        assert base is not None
        with make() as other:
            other.load(base)

            def strip(rows):
                return {key: row for key, (row, _) in rows.items()}

            for name, rows in read_contents(other).items():
                assert strip(rows) == strip(expected[name])


def test_a_delta_that_is_not_a_base_has_no_row_of_later_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, delta = str(tmp_path / "base"), str(tmp_path / "delta")
    may_write, chunks = threading.Event(), CopyOnWriteView.chunks

    def waiting(self: CopyOnWriteView, *given: Any) -> Iterator[Any]:
        assert may_write.wait(60)
        yield from chunks(self, *given)

    with make() as container:
        step(container, 1)
        container.save(base, options=SaveOptions(is_base=True))
        step(container, 2)
        expected = read_contents(container)
        monkeypatch.setattr(CopyOnWriteView, "chunks", waiting)
        saving = container.save(delta, blocking=False, base=base)
        step(container, 3, size=4_000)  # changes keys that step 2 did not
        may_write.set()
        saving.result(60)
        after = read_contents(container)
        container.load(delta)
        assert read_contents(container) == expected
    assert after != expected


def test_a_delta_needs_its_base_to_be_the_last_one(tmp_path: Path) -> None:
    with make() as container:
        step(container, 0)
        container.save(str(tmp_path / "full"))
        with pytest.raises(InvalidArgumentError, match="tracked since no snapshot"):
            container.save(str(tmp_path / "delta"), base=str(tmp_path / "full"))


def test_a_full_snapshot_is_written_if_too_many_keys_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with make() as container:
        step(container, 0)
        full = str(tmp_path / "full")
        container.save(full, options=SaveOptions(is_base=True))
        monkeypatch.setattr("sparring.engine.tables.write_log.CHANGED_BYTES", 100)
        step(container, 1)
        saved = container.save(str(tmp_path / "next"), base=full)

        assert saved.base is None
        assert "a full snapshot is written" in caplog.text


def test_a_failed_save_is_raised_by_the_next_step_and_training_continues(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with make() as container, make() as plain:
        step(container, 0)
        step(plain, 0)
        with pytest.raises((SnapshotError, OSError)):
            container.save(str(tmp_path / "file" / "snapshot"))
        container.save(str(tmp_path / "taken"))
        step(container, 1)
        step(plain, 1)
        break_once(container.storage("user"))
        container.save(str(tmp_path / "broken"), blocking=False)
        container.saves.join()
        with pytest.raises(BackgroundError, match=r"save of .*broken.*disk gone"):
            step(container, 2)
        step(container, 2)
        step(plain, 2)
        assert read_contents(container) == read_contents(plain)
        container.save(str(tmp_path / "again"))


def test_background_saves_change_no_counter_of_tiers(tmp_path: Path) -> None:
    def counts(saves: bool) -> list[Any]:
        # In the foreground, because rows in flight are not promoted, and their time varies.
        with make("tiered", **STACKS[4][1], write_back="inline") as container:
            for number in range(12):
                if saves and number % 4 == 0:
                    url = str(tmp_path / f"step-{number}")
                    container.save(url, blocking=False, options=SaveOptions(undo_bytes=1 << 20))
                step(container, number)
            container.saves.join()
            return [
                {name: value for name, value in tier.as_dict().items() if "seconds" not in name}
                for table in TABLES
                for tier in container.tier_counters(table.name)
            ]

    assert counts(saves=True) == counts(saves=False)


def test_the_reason_of_a_failed_save_is_not_hidden_by_a_failed_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_self: SnapshotWriter, _cause: BaseException) -> None:
        raise SnapshotIOError("the folder is not empty")

    monkeypatch.setattr(SnapshotWriter, "abandon", fails)
    with make() as container:
        step(container, 0)
        break_once(container.storage("user"))
        with pytest.raises(OSError, match="disk gone"):
            container.save(str(tmp_path / "one"))
    assert "were not removed: the folder is not empty" in caplog.text


def test_state_is_restored_and_names_reserved_for_the_container_are_rejected(
    tmp_path: Path,
) -> None:
    url = str(tmp_path / "one")
    with make() as container:
        states = {"mine": State({"epoch": 2}, {"weights": np.arange(5.0)})}
        container.save(url, states=states)
        with pytest.raises(InvalidArgumentError, match="reserved for the container"):
            container.save(str(tmp_path / "two"), states={"admission": State()})
        loaded = container.load(url)
    assert loaded.states["mine"].values == {"epoch": 2}
    np.testing.assert_array_equal(loaded.states["mine"].arrays["weights"], np.arange(5.0))


def test_closing_waits_for_a_save(tmp_path: Path) -> None:
    url = str(tmp_path / "one")
    container = make()
    step(container, 0)
    expected = read_contents(container)
    container.save(url, blocking=False)
    container.close()
    with make() as again:
        again.load(url)
        assert read_contents(again) == expected


@pytest.mark.parametrize("way", ["join", "close", "a second save"])
def test_a_save_that_is_being_awaited_does_not_pause(tmp_path: Path, way: str) -> None:
    with make() as container:
        step(container, 0)
        # With pauses it would take an hour and more.
        task = container.save(
            str(tmp_path / "one"), blocking=False, options=SaveOptions(share=1e-6)
        )
        step(container, 1)
        if way == "join":
            container.saves.join(20.0)
            assert container.saves.counters.work_seconds > 0
        elif way == "close":
            container.close()
        else:
            container.save(str(tmp_path / "two"), options=SaveOptions(deadline_seconds=20.0))
        assert task.result(0.0).step == 1


def test_only_embeddings_are_loaded_without_an_optimizer(tmp_path: Path) -> None:
    url = str(tmp_path / "one")
    with make() as container:
        step(container, 0)
        container.save(url)
        ids = np.arange(300)
        expected = container.lookup("user", ids, is_registered=False)
        with StepContainer() as serving:
            serving.declare(TABLES[0], StorageChoice("memory"))
            serving.load(url, tables=["user"])
            assert serving.tables["user"].state_width == 0
            found = serving.lookup("user", ids, is_registered=False)
            np.testing.assert_array_equal(found.rows, expected.rows)


def test_other_tables_are_rejected_before_anything_changes(tmp_path: Path) -> None:
    url = str(tmp_path / "one")
    with make() as container:
        step(container, 0)
        container.save(url)
    with StepContainer() as other:
        other.declare(TableConfig("user", 5), StorageChoice("memory"))
        other.storage("user").upsert([1], np.ones((1, 5), np.float32))
        with pytest.raises(InvalidArgumentError, match="not declared: brand, item, tag, word"):
            other.load(url)
        with pytest.raises(InvalidArgumentError, match="dim 4 in the snapshot, 5 declared"):
            other.load(url, tables=["user"])
        assert other.num_rows("user") == 1


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.engine.checkpoint.copy_on_write._GROUP_BYTES", 1 << 11)


def test_a_child_forked_during_a_save_is_rejected_and_can_create_its_own_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_amid, may_go_on, write = threading.Event(), threading.Event(), SnapshotWriter.write_table

    def waiting(writer: SnapshotWriter, *arguments: Any) -> Any:
        is_amid.set()
        assert may_go_on.wait(20)
        return write(writer, *arguments)

    monkeypatch.setattr(SnapshotWriter, "write_table", waiting)
    with make("memory") as container:
        for number in range(3):
            step(container, number)
        saving = container.save(str(tmp_path / "a"), blocking=False)
        assert is_amid.wait(20)
        child = os.fork()
        if not child:
            signal.alarm(20)  # ends a child that hangs
            try:
                with container:
                    for refused in (
                        lambda: step(container, 3),
                        lambda: container.save(str(tmp_path / "b")),
                        lambda: container.load(str(tmp_path / "a")),
                        saving.result,
                    ):
                        with pytest.raises(ClosedError, match="before a fork"):
                            refused()
                may_go_on.set()
                with make("memory") as other:
                    step(other, 0)
                    other.save(str(tmp_path / "b"), blocking=False)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        may_go_on.set()
        assert saving.result(20).step == 3
    assert [open_snapshot(str(tmp_path / name)).step for name in "ab"] == [3, 1]
