"""Tables sharded by columns train the bits of one process, and reject unsupported updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.layout import TableSharding
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.admission import Bloom, Frequency, Probability
from sparring.contracts.tables.expiry import Expiry
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply.gather import TableUpdate
from sparring.engine.apply.gradients import sum_gradients
from sparring.engine.container import StepContainer
from sparring.engine.state import NonFinite
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.storage.memory import MemoryOptions, MemoryStorage
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.sharded_jobs import (
    DIM,
    collect_pieces,
    join_pieces,
    make_batch,
    open_container,
    train,
)
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

DIVIDED = ("column_wise", "table_column_wise", "grid")


SHORT = {(1, "sgd"), (2, "adagrad"), (3, "adam"), (4, "sgd")}


@pytest.mark.parametrize(
    ("world_size", "method"),
    [
        pytest.param(size, method, marks=[] if (size, method) in SHORT else pytest.mark.long)
        for size in (1, 2, 3, 4)
        for method in ("sgd", "adagrad", "adam")
    ],
)
def test_blocks_have_the_bits_of_one_process(world_size: int, method: str) -> None:
    with open_container(None, "", method) as alone:
        train(alone, range(world_size), method)
        expected = join_pieces([collect_pieces(alone)])
    assert len(expected) > 20
    for kind in DIVIDED:

        def body(collective: Collective, kind: str = kind) -> Any:
            with open_container(collective, kind, method) as container:
                train(container, [collective.rank], method)
                is_divided = len(container.entry("user").parts) > 1
                return collect_pieces(container), container.counters.rows_updated, is_divided

        held = run_ranks(world_size, body)
        assert join_pieces([each for each, _, _ in held]) == expected
        assert all(is_divided == (world_size > 1) for _, _, is_divided in held)
        assert sum(counted for _, counted, _ in held) == alone.counters.rows_updated


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("column_wise", {"dtype": "bfloat16"}),
        ("grid", {"dtype": "float64"}),
        ("grid", {"admission": Frequency(2)}),
        ("column_wise", {"admission": Probability(0.5)}),
        ("grid", {"expire": Expiry(after_steps=2)}),
    ],
    ids=str,
)
def test_blocks_of_a_key_are_created_and_removed_together(
    kind: str, more: Mapping[str, Any]
) -> None:
    with open_container(None, "", **more) as alone:
        seen = train(alone, range(4))
        expected, counters = join_pieces([collect_pieces(alone)]), alone.counters
    assert (counters.gradients_not_admitted > 0) == ("admission" in more)
    assert (counters.rows_expired > 0) == ("expire" in more)

    def body(collective: Collective) -> Any:
        with open_container(collective, kind, **more) as container:
            rows = train(container, [collective.rank], prefetches=True)
            assert container.num_rows("user") <= len(expected)
            return (
                collect_pieces(container),
                rows,
                container.counters,
                container.num_not_admitted("user"),
            )

    held = run_ranks(4, body)
    assert join_pieces([each for each, *_ in held]) == expected
    for step, rows in enumerate(seen):
        found = np.concatenate([each[1][step] for each in held])
        assert found.tobytes() == rows.tobytes(), "lookups, prefetched ones too, read the same bits"
    refused = [each[2].gradients_not_admitted for each in held]
    assert sum(refused) == counters.gradients_not_admitted
    assert sum(each[3] for each in held) == counters.gradients_not_admitted
    assert sum(each[2].rows_expired for each in held) == counters.rows_expired


def _halved(updates: Any) -> None:
    for update in updates:
        width = update.gradients.shape[1]
        update.rows[:, :width] -= update.gradients / 2
        update.rows[:, width:] += 1


def test_a_function_over_rows_receives_each_table_once_with_its_blocks_stacked() -> None:
    def step(container: StepContainer, ranks: Any) -> list[TableUpdate]:
        seen: list[TableUpdate] = []
        ids, given = make_batch(1, ranks)

        def update(updates: Any) -> None:
            seen.extend(updates)
            _halved(updates)

        with container.step(update) as at_work:
            found = at_work.lookup("user", ids)
            sums = np.zeros(found.rows.shape, np.float32)
            np.add.at(sums, found.inverse, given)
            at_work.accumulate(found, sums)
        return seen

    with open_container(None, "") as alone:
        step(alone, range(2))
        expected = join_pieces([collect_pieces(alone)])

    def body(collective: Collective) -> Any:
        # Both blocks of half the rows are on each rank.
        sharding = TableSharding("grid", (0, 1, 1, 0), columns=2)
        with open_container(collective, "row_wise", sharding=sharding) as container:
            (update,) = step(container, [collective.rank])
            assert (update.table.name, update.table.dim) == ("user", 2)
            assert update.rows.shape == (len(update.keys), 4)
            return collect_pieces(container), update.keys

    held = run_ranks(2, body)
    assert join_pieces([each for each, _ in held]) == expected
    assert sum(len(keys) for _, keys in held) == 2 * len(expected)


def test_gradients_summed_before_the_step_are_scaled_by_blocks() -> None:
    def body(collective: Collective) -> Any:
        with open_container(collective, "column_wise", "sgd") as container:
            for _ in range(2):  # later batches are added
                found = container.lookup("user", np.array([7, 8 + collective.rank]))
                assert found.shadow_id is not None
                ones = np.ones(found.rows.shape, np.float32)
                container.resources.accumulate(found.shadow_id, ones)
                summed = sum_gradients(container.state)
            names = {container.entry(name).table_name for name in summed}
            assert names <= {"user"}
            assert container.resources.has_gradient("user") == bool(summed)
            before = container.lookup("user", np.array([7]), is_registered=False).rows
            for each in summed.values():
                each.gradients *= 0.5
            method = resolve_method("sgd")
            choice = MethodChoice(method, parse_hyper(method, {"lr": 1.0}), 1)
            assert container.apply_methods({"user": choice}) == ["user"]
            after = container.lookup("user", np.array([7]), is_registered=False).rows
            return before - after

    for found in run_ranks(2, body):
        assert np.allclose(found, 2.0)


def test_nan_in_one_block_of_summed_gradients_excludes_the_key_from_all() -> None:
    def body(collective: Collective) -> Any:
        with open_container(collective, "column_wise", "sgd") as container:
            container.non_finite_gradients = NonFinite.SKIP
            found = container.lookup("user", np.array([7, 8]))
            assert found.shadow_id is not None
            gradient = np.ones(found.rows.shape, np.float32)
            gradient[found.keys == 7, 0] = np.inf
            container.resources.accumulate(found.shadow_id, gradient)
            sum_gradients(container.state)
            method = resolve_method("sgd")
            container.apply_methods({"user": MethodChoice(method, parse_hyper(method, {}), 1)})
            return collect_pieces(container)

    assert set(join_pieces(run_ranks(2, body))) == {8}


def test_gradients_are_dropped_from_all_blocks() -> None:
    def body(collective: Collective) -> None:
        with open_container(collective, "column_wise") as container:
            found = container.lookup("user", np.array([7]))
            assert found.shadow_id is not None
            container.resources.accumulate(found.shadow_id, np.ones((1, DIM), np.float32))
            sum_gradients(container.state)
            assert container.resources.has_gradient("user")
            container.resources.drop("user")
            assert not container.resources.has_gradient("user")

    run_ranks(3, body)


def test_embeddings_are_assigned_by_block_and_state_is_set_and_dropped() -> None:
    keys = np.arange(30)
    values = np.arange(30 * DIM, dtype=np.float32).reshape(30, DIM)

    def body(collective: Collective) -> Any:
        with open_container(collective, "grid") as container:
            mine = slice(collective.rank, None, 4)
            container.assign("user", keys[mine], values[mine])
            rows = container.lookup("user", keys, is_registered=False).rows
            assert rows.tobytes() == values.tobytes()
            assert container.table_bytes("user") > 0
            found = collect_pieces(container)
            container.drop_state("user")
            assert container.tables["user"].state_width == 0
            assert (
                container.lookup("user", keys, is_registered=False).rows.tobytes() == rows.tobytes()
            )
            return found

    whole = join_pieces(run_ranks(4, body))
    expected = np.concatenate([values, np.zeros((30, DIM), np.float32)], axis=1)
    assert [whole[key][0] for key in keys.tolist()] == [row.tobytes() for row in expected]


def test_rows_of_another_optimizer_are_rejected_with_the_name_that_drops_their_state() -> None:
    def body(collective: Collective) -> None:
        with open_container(collective, "column_wise") as container:
            train(container, [collective.rank])
            adam = np.zeros(2 * DIM, np.float32)
            with pytest.raises(
                InvalidArgumentError, match=r"call StepContainer.drop_state\('user'\)"
            ):
                container.set_state("user", adam, "adam")
            container.drop_state("user")
            container.set_state("user", adam, "adam")
            train(container, [collective.rank], "adam")

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("method", "hyper", "words"),
    [
        (
            "rowwise_adagrad",
            {},
            "rowwise_adagrad cannot update blocks of columns separately.*adagrad or adam",
        ),
        ("partial_rowwise_adam", {}, "row_wise, table_wise or table_row_wise"),
        ("lamb", {}, "update of an element depends on other elements"),
        ("group_ftrl", {}, "depends on other elements"),
        ("sgd", {"clip_norm": 1.0}, "clip_norm=1.0 applies to whole rows"),
    ],
)
def test_updates_that_couple_columns_are_rejected_by_name(
    method: str, hyper: Mapping[str, Any], words: str
) -> None:
    def body(collective: Collective) -> None:
        with open_container(collective, "column_wise", "sgd") as container:
            made = resolve_method(method)
            if made.state_width(DIM) % DIM:
                with pytest.raises(UnsupportedError, match=f"{method} cannot"):
                    container.set_state(
                        "user", made.initial_state(DIM, parse_hyper(made, {}), "f4"), method
                    )
            found = container.lookup("user", np.array([1]))
            assert found.shadow_id is not None
            container.resources.accumulate(found.shadow_id, np.ones((1, DIM), np.float32))
            with pytest.raises(UnsupportedError, match=words):
                container.apply_methods({"user": MethodChoice(made, parse_hyper(made, hyper), 1)})
            assert not any(rows for *_, rows in collect_pieces(container))
            train(container, [collective.rank], "sgd")  # it continues

    run_ranks(2, body)


@pytest.mark.parametrize(
    ("storage", "more", "words"),
    [
        (StorageChoice("memory", {"capacity": 9}), {}, "9 rows.*omit its capacity"),
        (StorageChoice("memory", {"capacity": 9, "policy": "lru"}), {}, "capacity of 9 rows"),
        (None, {}, "already open.*StorageChoice"),
        (StorageChoice("memory"), {"admission": Bloom(2)}, "Bloom filter.*admission Frequency"),
    ],
    ids=str,
)
def test_storages_and_filters_that_cannot_guarantee_equal_keys_are_rejected(
    storage: Any, more: Mapping[str, Any], words: str
) -> None:
    def body(collective: Collective) -> None:
        plan = {"user": TableSharding("column_wise", columns=2)}
        made = ThreadRendezvous(2)
        with StepContainer(collective=collective, rendezvous=made, plan=plan) as container:
            table = TableConfig("user", DIM, **more)
            given = storage or MemoryStorage(table, MemoryOptions())

            def write() -> None:
                container.declare(table, given)
                container.assign("user", [1], np.ones((1, DIM)))

            with pytest.raises(UnsupportedError, match=words):
                write()

    run_ranks(2, body)


def test_no_storage_has_whole_rows_and_a_diverged_block_is_detected() -> None:
    def body(collective: Collective) -> None:
        with open_container(collective, "column_wise") as container:
            with pytest.raises(UnsupportedError, match=r"none has whole rows\. Save a snapshot"):
                container.storage("user")
            train(container, [collective.rank])
            for part in container.entry("user").parts:
                if part.block is not None and part.block.number and part.storage is not None:
                    part.storage.erase(np.arange(-20, 20))
            found = container.lookup("user", np.array([100]))
            assert found.shadow_id is not None
            container.resources.accumulate(found.shadow_id, np.ones((1, DIM), np.float32))
            method = resolve_method("adagrad")
            with pytest.raises(InvalidArgumentError, match=r"columns-2-4.* has 0 rows.*No row was"):
                container.apply_methods({"user": MethodChoice(method, parse_hyper(method, {}), 1)})
            with pytest.raises(InvalidArgumentError, match="rows of other keys than block"):
                container.lookup("user", np.arange(-20, 20))

    run_ranks(2, body)
