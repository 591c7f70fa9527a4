"""Steps drop ids that are not admitted, and count them only if the step is applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from sparring.contracts.tables.admission import Bloom, Frequency, Probability
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply.gather import TableUpdate
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import CapacityError, InvalidArgumentError, NonFiniteGradientError
from sparring.storage.open import open_storage
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import (
    accumulate,
    choose_method,
    declare_tables,
    descend,
    open_tables,
    read_embeddings,
)

ZEROS = {"initializer": "zeros", "dtype": "float64"}
TABLE = TableConfig("t", 2, admission=Frequency(2), **ZEROS)
STORAGES = ["memory", "hkv"]


Apply = Callable[[StepContainer], Any]


def by_rows(container: StepContainer) -> None:
    container.apply(descend(1.0))


def by_method(container: StepContainer) -> None:
    container.apply_methods(choose_method(container, lr=1.0))


ROUTES = pytest.mark.parametrize("apply", [by_rows, by_method])


def train(
    made: StepContainer, ids: Sequence[int], apply: Apply, *, table: str = "t", value: float = 1.0
) -> None:
    accumulate(made, {table: ids}, value)
    apply(made)


@ROUTES
@pytest.mark.parametrize("storage", STORAGES)
def test_an_id_gets_a_row_in_the_kth_step(apply: Apply, storage: str) -> None:
    made = open_tables(TABLE, storage=storage)
    for ids, num_rows, num_dropped in (
        ([7, 9], 0, 2),
        ([7, 11], 1, 3),
        ([7, 11], 2, 3),
        ([-1], 2, 4),
        ([7, 2**63 - 1, -(2**63)], 2, 6),
        ([2**63 - 1, -(2**63)], 4, 6),
    ):
        train(made, ids, apply)
        assert made.num_rows("t") == num_rows
        assert made.counters.gradients_not_admitted == made.num_not_admitted("t") == num_dropped
    # Each was dropped once; dropped gradients are lost, not delayed.
    assert read_embeddings(made, "t", [7, 11, 9, -1, 2**63 - 1, -(2**63)])[:, 0].tolist() == [
        -3,
        -1,
        0,
        0,
        -1,
        -1,
    ]
    assert made.counters.rows_updated == 6
    assert made.counters.steps == 6


@ROUTES
def test_an_id_counts_once_in_a_step_however_often_it_comes(apply: Apply) -> None:
    made = open_tables(TABLE)
    for _ in range(3):  # micro-batches
        accumulate(made, {"t": [7, 7, 7]})
    apply(made)
    assert (made.num_rows("t"), made.num_not_admitted("t")) == (0, 1)
    train(made, [7], apply)
    assert made.num_rows("t") == 1


@ROUTES
def test_lookups_count_nothing(apply: Apply) -> None:
    made = open_tables(TABLE)
    for _ in range(5):
        made.lookup("t", np.array([7]), is_registered=False)
        made.lookup("t", np.array([7]))
        apply(made)
    train(made, [7], apply)
    assert made.num_rows("t") == 0


@ROUTES
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_step_that_raises_for_its_gradients_counts_nothing(apply: Apply, value: float) -> None:
    other = TableConfig("other", 2, **ZEROS)
    made = open_tables(TABLE, other)
    for _ in range(3):
        accumulate(made, {"t": [7]})
        accumulate(made, {"other": [1]}, value)
        with pytest.raises(NonFiniteGradientError):
            apply(made)
    assert made.num_not_admitted("t") == 0
    train(made, [7], apply)
    assert (made.num_rows("t"), made.num_not_admitted("t")) == (0, 1)


@ROUTES
def test_rows_that_are_skipped_are_not_counted(apply: Apply) -> None:
    made = open_tables(TABLE, non_finite_gradients="skip")
    for _ in range(3):
        train(made, [7], apply, value=np.nan)
    assert made.num_not_admitted("t") == 0
    train(made, [7], apply)
    assert made.num_rows("t") == 0


@ROUTES
@pytest.mark.parametrize("backend", STORAGES)
def test_a_step_that_exceeds_the_capacity_counts_nothing(apply: Apply, backend: str) -> None:
    full = TableConfig("full", 2, **ZEROS)
    made = open_tables(TABLE)
    made.declare(full, StorageChoice(backend, {"capacity": 1, "policy": "none"}))
    for _ in range(3):
        accumulate(made, {"t": [7]})
        accumulate(made, {"full": [1, 2]})
        with pytest.raises(CapacityError):
            apply(made)
    assert (made.num_rows("t"), made.num_rows("full")) == (0, 0)
    train(made, [7], apply)
    assert (made.num_rows("t"), made.num_not_admitted("t")) == (0, 1)


@ROUTES
@pytest.mark.parametrize("backend", STORAGES)
def test_only_admitted_ids_need_capacity(apply: Apply, backend: str) -> None:
    storage = StorageChoice(backend, {"capacity": 2, "policy": "none"})
    made = open_tables(TABLE, storage=storage)
    train(made, [1, 2, 3, 4, 5], apply)
    train(made, [1, 2, 8, 9], apply)
    assert made.num_rows("t") == 2
    before = made.counters.gradients_not_admitted
    accumulate(made, {"t": [1, 3]})
    with pytest.raises(CapacityError):
        apply(made)
    assert read_embeddings(made, "t", [1, 2, 3])[:, 0].tolist() == [-1, -1, 0]
    assert made.counters.gradients_not_admitted == before
    train(made, [1, 2, 10, 11], apply)
    assert read_embeddings(made, "t", [1, 2])[:, 0].tolist() == [-2, -2]


def test_an_update_that_raises_counts_nothing() -> None:
    made = open_tables(TABLE)

    def broken(updates: Sequence[TableUpdate]) -> None:
        raise ZeroDivisionError

    for _ in range(3):
        accumulate(made, {"t": [7]})
        with pytest.raises(ZeroDivisionError):
            made.apply(broken)
    train(made, [7], by_rows)
    assert (made.num_rows("t"), made.num_not_admitted("t")) == (0, 1)


@ROUTES
def test_each_table_has_a_separate_filter(apply: Apply) -> None:
    made = open_tables(
        TABLE,
        TableConfig("all", 2, **ZEROS),
        TableConfig("third", 2, admission={"kind": "frequency", "k": 3}, **ZEROS),
        TableConfig("bloom", 2, admission=Bloom(2, expected_keys=100), **ZEROS),
        TableConfig("never", 2, admission=Probability(0.0), **ZEROS),
    )
    found = []
    for _ in range(4):
        for table in made.tables:
            accumulate(made, {table: [5]})
        apply(made)
        found.append([made.num_rows(table) for table in made.tables])
    assert found == [[0, 1, 0, 0, 0], [1, 1, 0, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0]]
    assert [made.num_not_admitted(table) for table in made.tables] == [1, 0, 2, 1, 4]
    assert made.counters.gradients_not_admitted == 8


@pytest.mark.parametrize("storage", ["memory", pytest.param("hkv", marks=pytest.mark.slow)])
def test_both_routes_admit_the_same_ids(storage: str) -> None:
    random = np.random.default_rng(4)
    batches = [np.unique(random.zipf(1.3, 200) % 5000).tolist() for _ in range(30)]
    for admission in (Frequency(3), Bloom(3, 0.1, expected_keys=200), Probability(0.2)):
        table = TableConfig("t", 2, admission=admission, **ZEROS)
        rows = []
        for apply in (by_rows, by_method):
            made = open_tables(table, storage=storage)
            for batch in batches:
                train(made, batch, apply)
            ids = list(range(5000))
            rows.append(
                (
                    made.num_rows("t"),
                    made.num_not_admitted("t"),
                    read_embeddings(made, "t", ids).tolist(),
                )
            )
        assert rows[0] == rows[1]
        assert 0 < rows[0][0] < len({each for batch in batches for each in batch})


def test_an_evicted_id_must_be_admitted_again() -> None:
    made = open_tables(TABLE, storage=StorageChoice("memory", {"capacity": 1, "policy": "lru"}))
    for ids in ([1], [1], [2], [2]):
        train(made, ids, by_rows)
    assert read_embeddings(made, "t", [1, 2])[:, 0].tolist() == [0, -1]
    train(made, [1], by_rows)
    assert read_embeddings(made, "t", [1, 2])[:, 0].tolist() == [0, -1]
    train(made, [1], by_rows)
    assert read_embeddings(made, "t", [1, 2])[:, 0].tolist() == [-1, 0]


def test_two_ranks_admit_the_same_ids_as_one_process() -> None:
    random = np.random.default_rng(9)
    batches = [[random.integers(0, 60, 20).tolist() for _ in range(2)] for _ in range(6)]
    alone = open_tables(TableConfig("t", 2, admission=Frequency(3), **ZEROS))
    for halves in batches:
        for half in halves:
            accumulate(alone, {"t": half})
        alone.apply(descend(1.0))
    expected = set(np.flatnonzero(read_embeddings(alone, "t", range(60))[:, 0]).tolist())
    assert 0 < len(expected) < 60

    def run(made: StepContainer) -> tuple[set[int], int, int]:
        declare_tables(made, [TableConfig("t", 2, admission=Frequency(3), **ZEROS)])
        for halves in batches:
            train(made, halves[made.collective.rank], by_rows)
        admitted = set(np.flatnonzero(read_embeddings(made, "t", range(60))[:, 0]).tolist())
        return admitted, made.num_rows("t"), made.num_not_admitted("t")

    results = run_containers(2, run)
    assert [each[0] for each in results] == [expected, expected]
    assert sum(each[1] for each in results) == len(expected)
    assert sum(each[2] for each in results) == alone.num_not_admitted("t")


def test_admission_is_part_of_the_declaration() -> None:
    made = open_tables(TABLE)
    made.declare(TABLE)
    with pytest.raises(InvalidArgumentError, match="already declared"):
        made.declare(TableConfig("t", 2, admission=Frequency(3), **ZEROS))


def test_an_open_storage_is_accepted() -> None:
    made = StepContainer()
    made.declare(TABLE, open_storage("memory", TABLE))
    for _ in range(2):
        train(made, [7], by_rows)
    assert (made.num_rows("t"), made.num_not_admitted("t")) == (1, 1)


def test_ids_that_a_full_filter_forgets_are_reported() -> None:
    made = open_tables(
        TableConfig("t", 2, admission=Frequency(3, memory_bytes=768), **ZEROS),
        TableConfig("all", 2, **ZEROS),
    )
    train(made, range(20), by_rows)
    assert (made.num_forgotten("t"), made.num_forgotten("all")) == (0, 0)
    train(made, range(1000, 2000), by_rows)
    assert made.num_forgotten("t") > 900
