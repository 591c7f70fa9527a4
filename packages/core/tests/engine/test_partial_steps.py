"""State of several tables after a storage fails while a step writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sparring.contracts.tables.admission import Frequency
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply import function as by_function
from sparring.engine.apply.gather import GatheredRows, TableUpdate, gather_rows
from sparring.engine.container import StepContainer
from sparring.errors import PartialStepError, StorageIOError
from sparring.kernels.cpu import CpuKernels
from sparring.storage.memory import MemoryStorage
from sparring_testing.processes.table_steps import accumulate, choose_method

Apply = Callable[[StepContainer], object]
NAMES = ("first", "second", "third")


class FailingStorage(MemoryStorage):
    """A storage that fails while it writes, after all checks."""

    failure: BaseException | None = None

    def _upsert_impl(self, *parts: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return super()._upsert_impl(*parts)


def add_one(updates: Sequence[TableUpdate]) -> None:
    for each in updates:
        each.rows += 1


def by_methods(made: StepContainer) -> object:
    return made.apply_methods(choose_method(made, lr=1.0))


def by_rows(made: StepContainer) -> object:
    return made.apply(add_one)


def container(failing: str, failure: BaseException | None, **options: Any) -> StepContainer:
    """Creates three tables with one gradient each; one of them cannot be written."""
    made = StepContainer()
    for name in NAMES:
        table = TableConfig(name, 2, initializer="zeros", **options)
        storage = FailingStorage(table, validate=False)
        if name == failing:
            storage.failure = failure
        made.declare(table, storage)
    accumulate(made, dict.fromkeys(NAMES, (7, 8)))
    return made


@pytest.mark.parametrize("apply", [by_rows, by_methods])
@pytest.mark.parametrize("failure", [StorageIOError("the disk is full"), MemoryError("no more")])
def test_tables_that_applied_a_failed_step_are_named(apply: Apply, failure: Exception) -> None:
    made = container("third", failure)
    with pytest.raises(PartialStepError) as caught:
        apply(made)
    error = caught.value
    assert error.written == ("first", "second")
    assert error.failed == ("third",)
    assert error.untouched == ()
    assert isinstance(error.__cause__, type(failure))
    assert "Changed: first, second; failed: third." in str(error)
    assert str(failure) in str(error)
    assert [made.num_rows(name) for name in NAMES] == [2, 2, 0]
    assert made.counters.rows_updated == 4
    assert made.counters.steps == 0
    assert not any(made.resources.has_gradient(name) for name in NAMES)


def test_a_device_table_without_admitted_keys_has_not_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gather(*arguments: Any) -> dict[str, GatheredRows]:
        return {"refused": GatheredRows(CpuKernels(), None, None), **gather_rows(*arguments)}

    monkeypatch.setattr(by_function, "gather_rows", gather)
    with pytest.raises(PartialStepError) as caught:
        by_rows(container("third", StorageIOError("the disk is full")))
    assert caught.value.written == ("first", "second")


def test_tables_after_the_one_that_failed_are_named_too() -> None:
    made = container("second", StorageIOError("the disk is full"))
    with pytest.raises(PartialStepError) as caught:
        made.apply(add_one)
    assert caught.value.written == ("first",)
    assert caught.value.failed == ("second",)
    assert caught.value.untouched == ("third",)
    assert "Changed: first; failed: second; not changed: third." in str(caught.value)
    assert [made.num_rows(name) for name in NAMES] == [2, 0, 0]


def test_a_failure_before_any_table_changed_is_raised_unchanged() -> None:
    failure = StorageIOError("the disk is full")
    made = container("first", failure)
    with pytest.raises(StorageIOError, match="the disk is full") as caught:
        made.apply(add_one)
    assert caught.value is failure
    assert caught.value.__cause__ is None
    assert [made.num_rows(name) for name in NAMES] == [0, 0, 0]


@pytest.mark.parametrize("apply", [by_rows, by_methods])
def test_ids_of_the_table_that_failed_are_not_counted_for_admission(apply: Apply) -> None:
    made = container("third", None, admission=Frequency(2))
    apply(made)
    third = made.storage("third")
    assert isinstance(third, FailingStorage)
    third.failure = StorageIOError("the disk is full")
    accumulate(made, dict.fromkeys(NAMES, (7, 8, 9)))
    with pytest.raises(PartialStepError):
        apply(made)
    third.failure = None
    assert [made.num_rows(name) for name in NAMES] == [2, 2, 0]
    accumulate(made, dict.fromkeys(NAMES, (9,)))
    apply(made)
    assert [made.num_rows(name) for name in NAMES] == [3, 3, 0], "9 came twice, once to third"
    accumulate(made, dict.fromkeys(NAMES, (7, 9)))
    apply(made)
    assert [made.num_rows(name) for name in NAMES] == [3, 3, 2]
