"""Replicated tables: every rank stores all rows, with the same bits."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply.gradients import sum_gradients
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError
from sparring.exchange.messenger import MessageKind
from sparring_testing.processes.rank_threads import run_containers
from sparring_testing.processes.table_steps import (
    RowBytes,
    choose_method,
    declare_tables,
    read_rows,
    read_tables,
)

SMALL = TableConfig("small", 4, initializer=Uniform(-1, 1), placement="replicated")
HALF = TableConfig("half", 3, "bfloat16", initializer=Uniform(-1, 1), placement="replicated")
LARGE = TableConfig("large", 4, initializer=Uniform(-1, 1))
TABLES = (SMALL, LARGE, HALF)
NUM_STEPS = 20
EXCHANGE = ExchangeOptions(chunk_rows=4)


def ids_of(step: int, rank: int, table: str) -> np.ndarray:
    random = np.random.default_rng((step, rank, len(table)))
    return random.integers(-15, 15, 0 if (step + rank) % 4 == 3 else 20)


def test_sums_before_a_step_contain_each_key_on_one_rank() -> None:
    def body(made: StepContainer) -> dict[str, list[int]]:
        for table in (SMALL, LARGE):
            made.declare(table)
        for found in made.lookup_all([("small", np.arange(9)), ("large", np.arange(9))]):
            assert found.shadow_id is not None
            made.resources.accumulate(found.shadow_id, np.ones(found.rows.shape, np.float32))
        return {name: each.keys.tolist() for name, each in sum_gradients(made.state).items()}

    first, second = run_containers(2, body, exchange=EXCHANGE)
    assert set(second) == {"large"}  # rank 0 has the sums of replicated tables
    assert sorted(first["small"]) == sorted(first["large"] + second["large"]) == list(range(9))
    assert first["large"]
    assert second["large"]


def train(
    made: StepContainer, ranks: range | list[int], method: str, world_size: int
) -> dict[str, RowBytes]:
    """Each gradient is the row plus 1; the gradients of several ranks are averaged."""
    declare_tables(made, TABLES, "hkv", method, lr=0.05)
    for step in range(NUM_STEPS):
        wanted = [
            (each.name, np.concatenate([ids_of(step, rank, each.name) for rank in ranks]))
            for each in TABLES
        ]
        for (_, ids), found in zip(wanted, made.lookup_all(wanted), strict=True):
            counts = np.bincount(found.inverse, minlength=len(found.keys))[:, None]
            # One process has the sum over ranks, and replicas use the mean.
            divisor = world_size if len(ranks) > 1 else 1
            gradient = (found.rows + 1) * counts.astype(found.rows.dtype) / divisor
            assert len(ids) == counts.sum()
            made.resources.accumulate(found.shadow_id, np.ascontiguousarray(gradient, "float32"))
        made.apply_methods(choose_method(made, method, step + 1, lr=0.05))
    return read_tables(made)


SHORT = {(1, "sgd", "exact"), (2, "adam", "int8"), (3, "adam", "exact"), (4, "sgd", "int8")}


@pytest.mark.parametrize(
    ("world_size", "method", "wire"),
    [
        pytest.param(*each, marks=[] if each in SHORT else pytest.mark.long)
        for each in product([1, 2, 3, 4], ["sgd", "adam"], ["exact", "int8"])
    ],
)
def test_replicas_equal_each_other_and_one_process(world_size: int, method: str, wire: str) -> None:
    def body(made: StepContainer) -> dict[str, RowBytes]:
        return train(made, [made.collective.rank], method, world_size)

    held = run_containers(
        world_size, body, exchange=ExchangeOptions(chunk_rows=4, gradient_wire_dtype=wire)
    )
    for table in (SMALL, HALF):
        assert all(each[table.name] == held[0][table.name] for each in held)
    with StepContainer() as made:
        alone = train(made, range(world_size), method, world_size)
    for table in (SMALL, HALF):
        assert held[0][table.name].keys() == alone[table.name].keys()
    if wire == "exact":
        for key, row in alone["small"].items():
            found, expected = (
                np.frombuffer(each, "float32") for each in (held[0]["small"][key], row)
            )
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    # The other table remains sharded.
    keys = [key for each in held for key in each["large"]]
    assert sorted(keys) == sorted(alone["large"])


def test_lookups_of_replicated_tables_send_nothing() -> None:
    def body(made: StepContainer) -> None:
        made.declare(SMALL, StorageChoice("memory"))
        made.lookup("small", np.arange(50) + made.collective.rank)
        ahead = made.prefetch([("small", np.arange(30))])
        ahead.finish()
        assert made.exchange.counters.wire_bytes_sent.total == 0

    run_containers(3, body, exchange=EXCHANGE)


def test_gradients_are_sent_to_every_other_rank_once() -> None:
    def body(made: StepContainer) -> None:
        made.declare(SMALL, StorageChoice("memory"))
        found = made.lookup("small", np.arange(10))
        made.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        made.apply_methods(choose_method(made, lr=1.0))
        sent = made.exchange.counters.wire_bytes_sent
        assert getattr(sent, MessageKind.GRADIENTS.value) == 2 * 10 * (8 + 4 * 4)
        assert made.num_rows("small") == 10

    run_containers(3, body, exchange=EXCHANGE)


def test_a_lookup_ahead_of_a_replicated_table_is_refreshed_from_the_pushes_of_all_ranks() -> None:
    def body(made: StepContainer) -> None:
        for table in (SMALL, LARGE):
            made.declare(table, StorageChoice("memory"))
            made.storage(table.name)
        rank = made.collective.rank
        for name in ("small", "large"):
            found = made.lookup(name, np.arange(10) + 10 * rank)
            made.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        wanted = [(name, np.arange(15, 25)) for name in ("small", "large")]
        ahead = made.prefetch(wanted)
        made.apply_methods(choose_method(made, lr=1.0))
        early = ahead.finish()
        for one, other in zip(early, made.lookup_all(wanted), strict=True):
            np.testing.assert_array_equal(one.rows, other.rows)
        assert made.prefetches.counters.rows_refreshed == 10

    run_containers(2, body, exchange=EXCHANGE)


def test_a_storage_that_evicts_cannot_be_a_replica() -> None:
    def body(made: StepContainer) -> None:
        made.declare(SMALL, StorageChoice("hkv", {"capacity": 128, "policy": "lru"}))
        with pytest.raises(InvalidArgumentError, match="may evict different rows"):
            made.storage("small")

    run_containers(2, body, exchange=EXCHANGE)


def test_an_unknown_placement_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="sharded or replicated"):
        TableConfig("small", 4, placement="everywhere")


@pytest.mark.parametrize("change", ["a row more", "a row less"])
def test_diverged_replicas_are_rejected_before_a_row_changes(change: str) -> None:
    def body(made: StepContainer) -> RowBytes:
        train(made, [made.collective.rank], "sgd", 2)
        if made.collective.rank == 1:
            storage, keys = made.storage(SMALL.name), np.array([3 if "less" in change else 99])
            if "less" in change:
                storage.erase(keys)
            else:
                storage.upsert(keys, np.ones((1, storage.table.width), np.float32))
        before = read_rows(made, SMALL.name)
        found = made.lookup(SMALL.name, np.arange(4))
        made.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        choices = choose_method(made, "sgd", NUM_STEPS + 1, lr=0.05)
        with pytest.raises(InvalidArgumentError, match="'small': the replicas of its rows"):
            made.apply_methods(choices)
        after = read_rows(made, SMALL.name)
        assert before == after
        return after

    assert len(np.unique([len(each) for each in run_containers(2, body, exchange=EXCHANGE)])) == 2
