"""Replicated tables: every rank stores all rows, with the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply.gradients import sum_gradients
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import InvalidArgumentError
from sparring.exchange.messenger import MessageKind
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

SMALL = TableConfig("small", 4, initializer=Uniform(-1, 1), placement="replicated")
HALF = TableConfig("half", 3, "bfloat16", initializer=Uniform(-1, 1), placement="replicated")
LARGE = TableConfig("large", 4, initializer=Uniform(-1, 1))
TABLES = (SMALL, LARGE, HALF)
NUM_STEPS = 20


def on_ranks(world_size: int, body: Callable[[StepContainer], Any], **exchange: Any) -> list[Any]:
    group = LocalGroup(world_size, deadline_seconds=20)

    def run(collective: Collective) -> Any:
        options = ExchangeOptions(chunk_rows=4, **exchange)
        with StepContainer(
            collective=collective, rendezvous=ThreadRendezvous(world_size), exchange=options
        ) as made:
            return body(made)

    with ThreadPoolExecutor(world_size) as threads:
        futures = [threads.submit(run, group.join(rank)) for rank in range(world_size)]
        return [future.result() for future in futures]


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

    first, second = on_ranks(2, body)
    assert set(second) == {"large"}  # rank 0 has the sums of replicated tables
    assert sorted(first["small"]) == sorted(first["large"] + second["large"]) == list(range(9))
    assert first["large"]
    assert second["large"]


def rows_of(made: StepContainer, table: str) -> dict[int, np.ndarray]:
    return {
        key: row.copy()
        for chunk in made.storage(table).scan()
        for key, row in zip(chunk.keys.tolist(), chunk.rows, strict=True)
    }


def digest(rows: dict[int, np.ndarray]) -> str:
    found = hashlib.sha256()
    for key in sorted(rows):
        found.update(key.to_bytes(8, "little", signed=True) + rows[key].tobytes())
    return found.hexdigest()


def train(
    made: StepContainer, ranks: range | list[int], method_name: str, world_size: int
) -> dict[str, dict[int, np.ndarray]]:
    """Each gradient is the row plus 1; the gradients of several ranks are averaged."""
    method = resolve_method(method_name)
    hyper = parse_hyper(method, {"lr": 0.05})
    for table in TABLES:
        made.declare(table, StorageChoice("hkv"))
        state = method.initial_state(table.dim, hyper, table.computing_dtype)
        made.set_state(table.name, state, method_name)
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
        made.apply_methods({each.name: MethodChoice(method, hyper, step + 1) for each in TABLES})
    return {each.name: rows_of(made, each.name) for each in TABLES}


SHORT = {(1, "sgd", "exact"), (2, "adam", "int8"), (3, "adam", "exact"), (4, "sgd", "int8")}


@pytest.mark.parametrize(
    ("world_size", "method", "wire"),
    [
        pytest.param(*each, marks=[] if each in SHORT else pytest.mark.long)
        for each in product([1, 2, 3, 4], ["sgd", "adam"], ["exact", "int8"])
    ],
)
def test_replicas_equal_each_other_and_one_process(world_size: int, method: str, wire: str) -> None:
    def body(made: StepContainer) -> dict[str, dict[int, np.ndarray]]:
        return train(made, [made.collective.rank], method, world_size)

    held = on_ranks(world_size, body, gradient_wire_dtype=wire)
    for table in (SMALL, HALF):
        assert len({digest(each[table.name]) for each in held}) == 1
    with StepContainer() as made:
        alone = train(made, range(world_size), method, world_size)
    for table in (SMALL, HALF):
        assert held[0][table.name].keys() == alone[table.name].keys()
    if wire == "exact":
        for key, row in alone["small"].items():
            np.testing.assert_allclose(held[0]["small"][key], row, rtol=2e-6, atol=2e-6)
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

    on_ranks(3, body)


def test_gradients_are_sent_to_every_other_rank_once() -> None:
    def body(made: StepContainer) -> None:
        made.declare(SMALL, StorageChoice("memory"))
        found = made.lookup("small", np.arange(10))
        made.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        method = resolve_method("sgd")
        made.apply_methods({"small": MethodChoice(method, parse_hyper(method, {"lr": 1.0}), 1)})
        sent = made.exchange.counters.wire_bytes_sent
        assert getattr(sent, MessageKind.GRADIENTS.value) == 2 * 10 * (8 + 4 * 4)
        assert made.num_rows("small") == 10

    on_ranks(3, body)


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
        method = resolve_method("sgd")
        choice = MethodChoice(method, parse_hyper(method, {"lr": 1.0}), 1)
        made.apply_methods({"small": choice, "large": choice})
        early = ahead.finish()
        for one, other in zip(early, made.lookup_all(wanted), strict=True):
            np.testing.assert_array_equal(one.rows, other.rows)
        assert made.prefetches.counters.rows_refreshed == 10

    on_ranks(2, body)


def test_a_storage_that_evicts_cannot_be_a_replica() -> None:
    def body(made: StepContainer) -> None:
        made.declare(SMALL, StorageChoice("hkv", {"capacity": 128, "policy": "lru"}))
        with pytest.raises(InvalidArgumentError, match="may evict different rows"):
            made.storage("small")

    on_ranks(2, body)


def test_an_unknown_placement_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="sharded or replicated"):
        TableConfig("small", 4, placement="everywhere")


@pytest.mark.parametrize("change", ["a row more", "a row less"])
def test_diverged_replicas_are_rejected_before_a_row_changes(change: str) -> None:
    def body(made: StepContainer) -> dict[int, np.ndarray]:
        train(made, [made.collective.rank], "sgd", 2)
        if made.collective.rank == 1:
            storage, keys = made.storage(SMALL.name), np.array([3 if "less" in change else 99])
            if "less" in change:
                storage.erase(keys)
            else:
                storage.upsert(keys, np.ones((1, storage.table.width), np.float32))
        before = rows_of(made, SMALL.name)
        found = made.lookup(SMALL.name, np.arange(4))
        made.resources.accumulate(found.shadow_id, np.ones_like(found.rows))
        method = resolve_method("sgd")
        choice = MethodChoice(method, parse_hyper(method, {"lr": 0.05}), NUM_STEPS + 1)
        with pytest.raises(InvalidArgumentError, match="'small': the replicas of its rows"):
            made.apply_methods({each.name: choice for each in TABLES})
        after = rows_of(made, SMALL.name)
        assert digest(before) == digest(after)
        return after

    assert len(np.unique([len(each) for each in on_ranks(2, body)])) == 2
