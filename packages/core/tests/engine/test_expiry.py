"""Rows are removed after their TTL, at the same step on all ranks, and from deltas."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring.contracts.checkpoint import SaveOptions
from sparring.contracts.tables.expiry import Expiry, parse_expiry
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError, SparringError
from sparring.snapshot.chain import count_rows
from sparring.snapshot.reader import open_snapshot
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import (
    accumulate,
    choose_method,
    declare_tables,
    read_rows,
    read_snapshot,
)

DAY = 86_400.0
STACK = StorageChoice(
    "tiered",
    {"tiers": [{"backend": "memory", "options": {"capacity": 8}}, {"backend": "memory"}]},
)


def container_of(
    expire: Any, storage: Any = "memory", made: StepContainer | None = None, **table: Any
) -> StepContainer:
    made = made or StepContainer()
    made.state.clock = lambda: 0.0
    tables = [
        TableConfig(name, 2, initializer="zeros", expire=limits, **table)
        for name, limits in (("t", expire), ("kept", None))
    ]
    declare_tables(made, tables, storage)
    return made


def train(made: StepContainer, ids: Sequence[int], *, by_rows: bool = False) -> None:
    accumulate(made, {"t": ids, "kept": ids})
    if by_rows:
        made.apply(lambda updates: None)
    else:
        made.apply_methods(choose_method(made, lr=1.0))


@pytest.mark.parametrize("by_rows", [False, True])
@pytest.mark.parametrize("storage", ["memory", "hkv", STACK], ids=["memory", "hkv", "tiered"])
def test_a_row_expires_after_steps_without_a_visit(storage: Any, by_rows: bool) -> None:
    with container_of({"after_steps": 3}, storage=storage) as made:
        for ids, left in (
            ([1, 2], [1, 2]),
            ([2], [1, 2]),
            ([3], [1, 2, 3]),
            ([3], [2, 3]),
            ([3], [3]),
            ([1], [1, 3]),
        ):
            made.lookup("t", np.array([1, 2]), is_registered=False)  # a read is not a visit
            train(made, ids, by_rows=by_rows)
            assert sorted(read_rows(made, "t")) == left
        assert made.counters.rows_expired == 2
        assert sorted(read_rows(made, "kept")) == [1, 2, 3]
        # It begins again with its initial value.
        row = made.lookup("t", np.array([2]), is_registered=False).rows
        assert row.tolist() == [[0, 0]]


def test_a_long_limit_is_checked_occasionally() -> None:
    with container_of({"after_steps": 16}) as made:
        train(made, [1])
        for step in range(2, 19):
            train(made, [2])
            assert (1 in sorted(read_rows(made, "t"))) == (step < 18), step


def test_days_follow_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.engine.tables.last_accesses._STEPS_BETWEEN_CHECKS", 1)
    with container_of({"after_days": 2}) as made:
        left = []
        for day, ids in enumerate(([1, 2], [2], [3], [3], [3])):
            made.state.clock = lambda now=day * DAY: now
            train(made, ids)
            left.append(sorted(read_rows(made, "t")))
        assert left == [[1, 2], [1, 2], [2, 3], [3], [3]]


def go_on(made: StepContainer, first: int, last: int) -> list[list[int]]:
    """Each key is trained in two consecutive steps of every 17."""
    left = []
    for step in range(first, last):
        ids = [key for key in range(40) if (step - key) % 17 < 2]
        train(made, ids[made.collective.rank :: made.collective.world_size])
        left.append(sorted(read_rows(made, "t")))
    return left


@pytest.mark.parametrize("placement", ["sharded", "replicated"])
def test_any_number_of_ranks_removes_the_same_rows_at_the_same_step(placement: str) -> None:
    def body(made: StepContainer) -> tuple[list[list[int]], int]:
        container_of({"after_steps": 5}, made=made, placement=placement)
        return go_on(made, 0, 24), made.counters.rows_expired

    with container_of({"after_steps": 5}) as alone:
        expected, num_expired = go_on(alone, 0, 24), alone.counters.rows_expired
    assert num_expired > 40
    ranks = run_containers(2, body)
    for step, left in enumerate(expected):
        parts = [rank[0][step] for rank in ranks]
        assert (
            all(each == left for each in parts)
            if placement == "replicated"
            else (sorted(chain(*parts)) == left)
        )
    counts = [rank[1] for rank in ranks]
    assert num_expired == (counts[0] if placement == "replicated" else sum(counts))


def test_a_storage_that_cannot_be_scanned_fails_the_sweep_on_all_ranks() -> None:
    def body(made: StepContainer) -> str:
        container_of({"after_steps": 1}, made=made).storage("t")
        if made.collective.rank:
            made.entry("t").storage.scan = None  # type: ignore[union-attr, assignment]
        with pytest.raises((SparringError, TypeError)) as caught:
            train(made, range(8))
        return str(caught.value)

    assert "expiry of rows after step 1: rank 1 failed" in run_containers(2, body)[0]


@pytest.mark.parametrize("after", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_resumed_run_counts_from_its_snapshot(after: int, tmp_path: Path) -> None:
    url = str(tmp_path / "s")

    def before(made: StepContainer) -> None:
        go_on(container_of({"after_steps": 5}, made=made), 0, 12)
        made.save(url)

    def body(made: StepContainer) -> list[list[int]]:
        container_of({"after_steps": 5}, made=made).load(url)
        return go_on(made, 12, 24)

    with container_of({"after_steps": 5}) as alone:
        expected = go_on(alone, 0, 24)[12:]
    run_containers(2, before)
    parts = run_containers(after, body)
    assert [sorted(chain(*each)) for each in zip(*parts, strict=True)] == expected


def test_days_pass_while_nothing_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparring.engine.tables.last_accesses._STEPS_BETWEEN_CHECKS", 1)
    url = str(tmp_path / "s")
    with container_of({"after_days": 2}) as made:
        train(made, [1])
        made.save(url)
    with container_of({"after_days": 2}) as later:
        later.load(url)
        later.state.clock = lambda: 3 * DAY
        train(later, [2])
        assert sorted(read_rows(later, "t")) == [2]


def test_times_of_reverted_steps_no_longer_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparring.engine.tables.last_accesses._STEPS_BETWEEN_CHECKS", 1)
    url = str(tmp_path / "s")
    with container_of(None) as made:
        train(made, [1])
        made.save(url)
    with container_of({"after_days": 2}) as later:
        for day in range(4):
            later.state.clock = lambda now=day * DAY: now
            train(later, [2])
        later.load(url)  # of step 1, without visits
        later.state.clock = lambda: 4 * DAY
        train(later, [2])
        assert sorted(read_rows(later, "t")) == [1, 2]


def test_rows_without_a_known_visit_count_as_visited_now(tmp_path: Path) -> None:
    url = str(tmp_path / "s")
    with container_of(None) as made:
        train(made, [1])
        made.save(url)
    with container_of({"after_steps": 2}) as later:
        later.load(url)
        for ids, left in (([2], [1, 2]), ([2], [1, 2]), ([2], [2])):
            train(later, ids)
            assert sorted(read_rows(later, "t")) == left


def test_rows_that_are_saved_before_a_step_or_written_directly_expire_too(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with container_of(None) as made:
        train(made, [1])
        made.save(first)
    with container_of({"after_steps": 2}) as made:
        made.load(first)
        made.save(second)
    with container_of({"after_steps": 2}) as made:
        made.load(second)
        train(made, [2])
        made.storage("t").upsert([9], np.zeros((1, 2), np.float32))
        made.save(str(tmp_path / "third"))
    with container_of({"after_steps": 2}) as made:
        made.load(str(tmp_path / "third"))
        train(made, [2])
        assert sorted(read_rows(made, "t")) == [1, 2, 9]
        train(made, [2])
        train(made, [2])
        assert sorted(read_rows(made, "t")) == [2]


def test_a_delta_lists_expired_rows_as_erased(tmp_path: Path) -> None:
    full, delta = str(tmp_path / "full"), str(tmp_path / "delta")
    options = SaveOptions(is_base=True)
    with container_of({"after_steps": 2}) as made:
        train(made, [1, 2])
        made.save(full, options=options)
        train(made, [2])
        train(made, [2])
        made.save(delta, base=full, options=options)
    found = open_snapshot(delta)
    assert found.base is not None
    erased = [
        part.keys.tolist() for entry in found.files("t", "erased") for part in found.segments(entry)
    ]
    assert erased == [[1]]
    assert count_rows(found, "t") == 1


def test_a_running_save_contains_the_rows_of_its_step(tmp_path: Path) -> None:
    url = str(tmp_path / "s")
    with container_of({"after_steps": 1}) as made:
        train(made, [1, 2])
        task = made.save(url, blocking=False)
        train(made, [3])
        assert sorted(read_rows(made, "t")) == [3]
        task.result()
    assert sorted(read_snapshot(url, "t")) == [1, 2]


def test_a_prefetch_returns_the_initial_value_of_expired_rows() -> None:
    with container_of({"after_steps": 1}) as made:
        train(made, [1])
        ahead = made.prefetch([("t", np.array([1]))])
        train(made, [2])
        assert ahead.finish()[0].rows.tolist() == [[0, 0]]


@pytest.mark.parametrize(
    "given",
    [{}, {"after_steps": 0}, {"after_steps": 1.5}, {"after_days": 0}, {"after": 3}, 7],
    ids=str,
)
def test_invalid_limits_are_rejected(given: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="expire"):
        TableConfig("t", 2, expire=given)


def test_a_mapping_is_accepted_as_an_expiry() -> None:
    assert parse_expiry({"after_days": 7}) == Expiry(after_days=7)
