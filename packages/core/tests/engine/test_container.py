"""`StepContainer`: lookup, accumulate and apply without a framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Reduction
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import (
    CapacityError,
    ClosedError,
    InvalidArgumentError,
    NonFiniteGradientError,
    UnknownTableError,
)
from sparring.kernels import functions as kernels
from sparring.storage.open import open_storage
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import descend, open_tables, read_embeddings

TABLE = TableConfig("item", 4, "float64", Uniform(-1, 1))
MEMORY = StorageChoice("memory")


def initial(keys: Sequence[int]) -> np.ndarray:
    return kernels.initial_rows(np.array(keys, np.int64), TABLE)


def test_unseen_ids_read_their_initial_value_and_nothing_is_inserted() -> None:
    made = open_tables(TABLE)
    np.testing.assert_array_equal(read_embeddings(made, "item", [5, -1, 5]), initial([5, -1, 5]))
    assert made.num_rows("item") == 0
    assert made.resources.num_batch_inputs == 0


def test_a_step_updates_exactly_the_keys_that_had_gradients() -> None:
    made = open_tables(TABLE)
    with made.step(descend(counted=1.0)) as step:
        found = step.lookup("item", [7, 9, 7])
        step.lookup("item", [11])  # looked up, but no gradient comes
        assert found.keys.tolist() == [7, 9]
        assert found.inverse.tolist() == [0, 1, 0]
        step.accumulate(found, [[1.0] * 4, [2.0] * 4])
    np.testing.assert_allclose(
        read_embeddings(made, "item", [7, 9]), initial([7, 9]) - [[0.1] * 4, [0.2] * 4]
    )
    np.testing.assert_array_equal(read_embeddings(made, "item", [11]), initial([11]))
    assert made.num_rows("item") == 2
    assert (made.counters.steps, made.counters.rows_updated) == (1, 2)


def test_micro_batches_add_up_by_key() -> None:
    made = open_tables(TABLE)
    with made.step(descend(counted=1.0)) as step:
        for keys, value in (([1, 2], 1.0), ([2, 3], 10.0), ([2], 100.0)):
            step.accumulate(step.lookup("item", keys), np.full((len(keys), 4), value))
        assert made.resources.has_gradient("item")
    moved = initial([1, 2, 3]) - read_embeddings(made, "item", [1, 2, 3])
    np.testing.assert_allclose(moved, 0.1 * np.array([[1], [111], [10]]) * np.ones(4))


def test_state_follows_the_embedding_and_starts_as_configured() -> None:
    made = open_tables(TABLE)
    made.set_state("item", np.array([0.5, 7.0]))
    for _ in range(3):
        with made.step(descend(counted=1.0)) as step:
            step.accumulate(step.lookup("item", [1]), np.ones((1, 4)))
    row = made.storage("item").find([1]).rows
    assert row.shape == (1, 6)
    np.testing.assert_allclose(row[0, 4:], [3.5, 10.0])


def test_an_exception_in_the_block_drops_the_step() -> None:
    made = open_tables(TABLE)

    def fail_in_the_block() -> None:
        with made.step(descend(counted=1.0)) as step:
            step.accumulate(step.lookup("item", [1]), np.ones((1, 4)))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fail_in_the_block()
    assert made.num_rows("item") == 0
    assert made.counters.steps == 0
    assert not made.resources.has_gradient("item")
    assert made.resources.num_batch_inputs == 0


def test_a_gradient_after_its_step_is_rejected() -> None:
    made = open_tables(TABLE)
    with made.step(descend(counted=1.0)) as step:
        late = step.lookup("item", [1])
    with pytest.raises(InvalidArgumentError, match="run the forward pass again"):
        made.resources.accumulate(late.shadow_id or 0, np.ones((1, 4)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_gradients_raise_before_any_row_changes(value: float) -> None:
    made = open_tables(TABLE)
    made.declare(TableConfig("good", 2, "float64"), MEMORY)
    with made.step(descend(counted=1.0)) as step:
        step.accumulate(step.lookup("item", [3]), np.ones((1, 4)))
    before = read_embeddings(made, "item", [3])
    gradient = np.ones((2, 4))
    gradient[1, 2] = value

    def broken_step() -> None:
        with made.step(descend(counted=1.0)) as step:
            step.accumulate(step.lookup("good", [1]), np.ones((1, 2)))
            step.accumulate(step.lookup("item", [3, 8]), gradient)

    with pytest.raises(NonFiniteGradientError, match=r"step 1.*'item'.*1 of 2 keys, .* key 8"):
        broken_step()
    np.testing.assert_array_equal(read_embeddings(made, "item", [3]), before)
    assert (made.num_rows("item"), made.num_rows("good")) == (1, 0)
    assert made.counters.steps == 1


def test_skip_leaves_the_affected_rows_unchanged_and_counts_them() -> None:
    made = open_tables(TABLE, non_finite_gradients="skip")
    gradient = np.ones((2, 4))
    gradient[0, 0] = np.nan
    with made.step(descend(counted=1.0)) as step:
        step.accumulate(step.lookup("item", [3, 8]), gradient)
    assert made.num_rows("item") == 1
    np.testing.assert_array_equal(read_embeddings(made, "item", [3]), initial([3]))
    np.testing.assert_allclose(read_embeddings(made, "item", [8]), initial([8]) - 0.1)
    assert made.counters.rows_skipped_non_finite == 1


def test_a_full_storage_rejects_the_whole_step() -> None:
    made = StepContainer()
    made.declare(TableConfig("good", 4, "float64"), MEMORY)
    made.declare(TABLE, StorageChoice("memory", {"capacity": 2}))

    def overflowing_step() -> None:
        with made.step(descend(counted=1.0)) as step:
            step.accumulate(step.lookup("good", [1]), np.ones((1, 4)))
            step.accumulate(step.lookup("item", [1, 2, 3]), np.ones((3, 4)))

    with pytest.raises(CapacityError, match="would add 3"):
        overflowing_step()
    assert (made.num_rows("item"), made.num_rows("good")) == (0, 0)


def test_evicted_rows_are_counted() -> None:
    made = StepContainer()
    made.declare(TABLE, StorageChoice("memory", {"capacity": 2, "policy": "lru"}))
    for key in (1, 2, 3):
        with made.step(descend(counted=1.0)) as step:
            step.accumulate(step.lookup("item", [key]), np.ones((1, 4)))
    assert made.num_rows("item") == 2
    assert made.counters.rows_evicted == 1


def test_wrong_use_is_rejected_and_changes_nothing() -> None:
    made = open_tables(TABLE)
    with pytest.raises(UnknownTableError, match=r"'itme'.*item"):
        made.lookup("itme", np.zeros(1, np.int64))
    for ids in (np.zeros((2, 2), np.int64), np.zeros(2)):
        with pytest.raises(InvalidArgumentError, match="one-dimensional int64"):
            made.lookup("item", ids)
    found = made.lookup("item", np.array([1, 2]))
    for gradient in (np.ones((1, 4)), np.ones((2, 3)), np.ones((2, 4), np.float32)):
        with pytest.raises(InvalidArgumentError, match="must be \\(2, 4\\) float64"):
            made.resources.accumulate(found.shadow_id or 0, gradient)
    assert not made.resources.has_gradient("item")
    with pytest.raises(InvalidArgumentError, match="already declared"):
        made.declare(TableConfig("item", 5))
    made.declare(TABLE)
    with pytest.raises(InvalidArgumentError, match="opened for"):
        made.declare(TableConfig("other", 5), open_storage("memory", TABLE))
    with pytest.raises(ValueError, match="sometimes"):
        StepContainer(non_finite_gradients="sometimes")


def test_input_of_another_kind_is_rejected_and_registers_nothing() -> None:
    made = open_tables(TABLE)
    no_array: Any = [1, 2]
    with pytest.raises(InvalidArgumentError, match=r"ids for table 'item'.*found list.*asarray"):
        made.lookup("item", no_array)
    no_table: Any = "item"
    with pytest.raises(InvalidArgumentError, match=r"TableConfig, found str"):
        made.declare(no_table)
    no_choice: Any = "memory"
    with pytest.raises(InvalidArgumentError, match=r"found str; pass StorageChoice"):
        made.declare(TableConfig("other", 5), no_choice)
    assert list(made.tables) == ["item"]
    assert made.resources.num_batch_inputs == 0


@pytest.mark.parametrize(
    "gradient",
    [np.ones((1, 4), complex), [["a"] * 4], [[True] * 4], [[None] * 4], [[1], [2, 3]]],
    ids=["complex", "text", "truth values", "objects", "ragged"],
)
def test_a_gradient_that_is_not_real_is_rejected(gradient: Any) -> None:
    made = open_tables(TABLE)
    with (
        pytest.raises(InvalidArgumentError, match=r"gradient.*found"),
        made.step(descend(1.0)) as step,
    ):
        step.accumulate(step.lookup("item", [7]), gradient)
    assert made.num_rows("item") == 0


def test_a_gradient_is_converted_if_no_meaning_is_lost() -> None:
    made = open_tables(TABLE)
    for gradient in (np.ones((1, 4), np.float32), np.ones((1, 4), int), [[1.0] * 4]):
        with made.step(descend(1.0)) as step:
            step.accumulate(step.lookup("item", [7]), gradient)
    assert made.counters.steps == 3


def test_a_table_is_not_declared_a_second_time_with_another_storage() -> None:
    made = open_tables(TABLE)
    made.declare(TABLE)
    made.declare(TABLE, StorageChoice("memory"))
    for other in (StorageChoice("hkv"), StorageChoice("memory", {"capacity": 9})):
        with pytest.raises(InvalidArgumentError, match=r"'item' is already declared with.*declare"):
            made.declare(TABLE, other)
    with open_storage("memory", TABLE) as given:
        with pytest.raises(InvalidArgumentError, match="already declared with"):
            made.declare(TABLE, given)
        table = TableConfig("other", 4)
        own = open_storage("memory", table)
        made.declare(table, own)
        made.declare(table, own)
        with pytest.raises(InvalidArgumentError, match="already declared with"):
            made.declare(table, open_storage("memory", table))


def test_rows_of_another_state_are_rejected_until_it_is_dropped() -> None:
    made = open_tables(TABLE)
    made.set_state("item", np.array([0.5, 7.0]), "first")
    with made.step(descend(counted=1.0)) as step:
        step.accumulate(step.lookup("item", [1]), np.ones((1, 4)))
    embedding = made.lookup("item", np.array([1]), is_registered=False).rows
    for state, method in ((np.zeros(3), "second"), (np.zeros(2), "second"), (np.zeros(3), "")):
        with pytest.raises(InvalidArgumentError, match=r"1 rows with 2 .* of first.*drop_state"):
            made.set_state("item", state, method)
    made.set_state("item", np.zeros(2), "first")
    made.set_state("item", np.zeros(2))
    made.drop_state("item")
    assert made.storage("item").table.width == 4
    made.set_state("item", np.array([3.0, 4.0, 5.0]), "second")
    row = made.storage("item").find([1]).rows[0]
    np.testing.assert_array_equal(row[:4], embedding[0])
    np.testing.assert_array_equal(row[4:], [3, 4, 5])


def test_a_storage_that_was_given_is_never_replaced() -> None:
    made = StepContainer()
    given = open_storage("memory", TABLE)
    made.declare(TABLE, given)
    with pytest.raises(InvalidArgumentError, match=r"with_state\(3\)"):
        made.set_state("item", np.zeros(3))
    assert made.storage("item") is given
    assert not given.is_closed


def test_a_failure_on_the_event_loop_surfaces_at_the_next_step() -> None:
    made = open_tables(TABLE)

    def fail() -> None:
        raise OSError("disk gone")

    made.events.submit(fail, name="snapshot")
    made.events.drain(5.0)
    with pytest.raises(Exception, match="snapshot"), made.step(descend(counted=1.0)):
        pass


def test_a_step_is_dropped_completely_after_a_background_failure() -> None:
    made = open_tables(TABLE)

    def fail() -> None:
        raise OSError("disk gone")

    made.events.submit(fail, name="snapshot")
    made.events.drain(5.0)
    with pytest.raises(Exception, match="snapshot"), made.step(descend(counted=1.0)) as step:
        step.accumulate(step.lookup("item", [5]), np.ones((1, 4)))
    with made.step(descend(counted=1.0)) as step:
        step.accumulate(step.lookup("item", [6]), np.ones((1, 4)))
    assert made.storage("item").find([5, 6]).found.tolist() == [False, True]


def test_a_closed_storage_is_not_treated_as_empty() -> None:
    made = open_tables(TABLE)
    with made.step(descend(counted=1.0)) as step:
        step.accumulate(step.lookup("item", [1]), np.ones((1, 4)))
    made.storage("item").close()
    with pytest.raises(ClosedError, match="'item' is closed"):
        made.lookup("item", np.array([1]))
    with pytest.raises(ClosedError, match="'item' is closed"):
        made.check_readable(["item"])
    with pytest.raises(ClosedError, match="'item' is closed"):
        made.storage("item")
    made.close()
    for call in (
        lambda: made.lookup("item", np.array([1])),
        lambda: made.num_rows("item"),
        lambda: made.set_state("item", np.zeros(0)),
        lambda: made.collection([("item", "sum")]),
    ):
        with pytest.raises(ClosedError, match="this StepContainer is closed"):
            call()


def test_closing_continues_after_a_storage_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    made = StepContainer()
    for name in ("one", "two"):
        made.declare(TableConfig(name, 4), StorageChoice("memory"))
    storages = [made.storage(name) for name in ("one", "two")]

    def fail() -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(storages[1], "_close_impl", fail)
    with pytest.raises(OSError, match="disk gone"):
        made.close()
    assert storages[0].is_closed


@pytest.mark.parametrize("interrupted", ["prefetches", "exchange"])
def test_closing_continues_after_an_interrupt_and_reports_the_rest(
    interrupted: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = StepContainer()
    made.declare(TableConfig("one", 4), StorageChoice("memory"))
    storage = made.storage("one")

    def interrupt() -> None:
        raise KeyboardInterrupt

    def fail(*_: object) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(made.loads, "close", fail)
    monkeypatch.setattr(getattr(made, interrupted), "close", interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.close()
    assert storage.is_closed
    assert "as well as KeyboardInterrupt: OSError: disk gone" in caplog.text


def test_the_first_error_of_closing_is_raised_and_the_others_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = StepContainer()

    def fail(what: str) -> None:
        raise OSError(f"no {what}")

    monkeypatch.setattr(made.prefetches, "close", lambda: fail("prefetches"))
    monkeypatch.setattr(made.collective, "close", lambda: fail("collective"))
    with pytest.raises(OSError, match="no prefetches") as caught:
        made.close()
    assert caught.value.__context__ is None
    assert "as well as OSError: OSError: no collective" in caplog.text
    assert "no prefetches" not in caplog.text


def test_manual_steps_accept_ids_of_any_integer_dtype_and_no_ids() -> None:
    made = open_tables(TABLE)
    with made.step(descend(counted=1.0)) as step:
        assert step.lookup("item", []).rows.shape == (0, 4)
        small = step.lookup("item", np.array([3, 3], np.int32))
        assert small.keys.tolist() == [3]
        with pytest.raises(InvalidArgumentError, match="float64"):
            step.lookup("item", [0.5])


def test_a_closed_container_raises_closed_error() -> None:
    made = open_tables(TABLE)
    made.storage("item")
    made.close()
    made.close()
    with pytest.raises(ClosedError):
        made.apply(descend(counted=1.0))


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("reduction", [Reduction.MEAN, Reduction.SUM])
def test_ranks_have_the_rows_of_one_process_on_the_joined_batch(
    world_size: int, reduction: Reduction
) -> None:
    steps, per_rank = 20, 12
    draws = np.random.default_rng(3).integers(0, 40, (steps, world_size, per_rank))

    def gradient_of(found: Any) -> np.ndarray:
        """Returns the gradient of sum(rows[inverse] ** 2) / 2 over the batch."""
        counts = np.bincount(found.inverse, minlength=len(found.keys))[:, None]
        return np.ascontiguousarray(found.rows * counts)

    def rank_body(made: StepContainer) -> tuple[np.ndarray, int]:
        made.declare(TABLE, MEMORY)
        rank = made.collective.rank
        for draw in draws:
            ids = draw[rank] if rank else draw[0][:5]
            with made.step(descend(counted=1.0)) as step:
                found = step.lookup("item", ids)
                step.accumulate(found, gradient_of(found))
        found = made.lookup("item", np.arange(40), is_registered=False)
        return found.rows, made.num_rows("item")

    alone = open_tables(TABLE)
    divisor = world_size if reduction is Reduction.MEAN else 1
    for draw in draws:
        ids = np.concatenate([draw[0][:5], *draw[1:]])
        with alone.step(descend(counted=1.0)) as step:
            found = step.lookup("item", ids)
            step.accumulate(found, gradient_of(found) / divisor)
    results = run_containers(world_size, rank_body, reduction=reduction)
    for rows, _ in results:
        np.testing.assert_allclose(rows, read_embeddings(alone, "item", range(40)), rtol=1e-12)
    assert sum(count for _, count in results) == alone.num_rows("item")


def test_an_invalid_gradient_on_one_rank_stops_the_step_on_all() -> None:
    def body(made: StepContainer) -> str:
        made.declare(TABLE, MEMORY)
        rank = made.collective.rank
        value = np.nan if rank == 1 else 1.0

        def one_step() -> None:
            with made.step(descend(counted=1.0)) as step:
                step.accumulate(step.lookup("item", [rank]), np.full((1, 4), value))

        with pytest.raises(NonFiniteGradientError) as caught:
            one_step()
        assert made.num_rows("item") == 0
        return str(caught.value)

    mine, theirs = run_containers(2, body)
    assert "rank 1 cannot apply it" in mine
    assert "key 1" in mine
    assert "key 1" in theirs
