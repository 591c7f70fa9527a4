"""The ring exchange: W ranks pull and push the same rows and gradients as one rank."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.results import Columns
from sparring.contracts.tables.table import TableConfig
from sparring.engine.resource_manager import ResourceManager
from sparring.errors import InvalidArgumentError
from sparring.exchange.messenger import ExchangeCounters, Messenger
from sparring.exchange.ring import RingExchange
from sparring.exchange.session import (
    MAX_CHUNK_ROWS,
    MIN_CHUNK_ROWS,
    compute_chunk_rows,
    measure_chunk_rows,
)
from sparring.kernels import functions as kernels
from sparring.storage.open import open_storage
from sparring_testing.processes.rank_threads import run_ranks

TABLE = TableConfig("item", 3, "float64", state_width=1)
WORLD_SIZES = pytest.mark.parametrize("world_size", [1, 2, 3, 4])


@WORLD_SIZES
def test_each_hop_serves_the_rank_that_sends_its_request_at_this_hop(world_size: int) -> None:
    group = LocalGroup(world_size)
    ranks = [Messenger(group.join(rank), ExchangeCounters()) for rank in range(world_size)]
    for rank, messenger in enumerate(ranks):
        assert set(messenger.later_ranks) == set(range(world_size)) - {rank}
        for hop, peer in enumerate(messenger.earlier_ranks):
            assert ranks[peer].later_ranks[hop] == rank


def rows_for(keys: np.ndarray) -> np.ndarray:
    return np.stack([keys, keys * 2, keys * 3, keys + 0.5], axis=1).astype(np.float64)


def keys_of_rank(rank: int, world_size: int) -> np.ndarray:
    """Returns overlapping keys; the last of several ranks requests none."""
    if world_size > 1 and rank == world_size - 1:
        return np.empty(0, np.int64)
    return np.random.default_rng(rank).permutation(np.arange(-50, 50))[: 60 + rank]


@WORLD_SIZES
def test_pull_returns_to_each_rank_the_rows_of_its_keys_in_order(world_size: int) -> None:
    shard_map = ShardMap.balanced(world_size)
    stored = np.arange(-50, 30)

    def body(collective: Collective) -> None:
        storage = open_storage("memory", TABLE)
        owners = shard_map.owners[kernels.partition(stored)]
        mine = stored[owners == collective.rank]
        storage.upsert(mine, rows_for(mine))
        keys = keys_of_rank(collective.rank, world_size)
        exchange = RingExchange(collective, shard_map)
        for columns in (Columns(0, 4), Columns(1, 3)):
            pulled = exchange.pull(storage, TABLE, keys, columns)
            expected = np.where(
                (keys < 30)[:, None], rows_for(keys)[:, columns.begin : columns.end], 0
            )
            np.testing.assert_array_equal(pulled.rows, expected)
            np.testing.assert_array_equal(pulled.found, keys < 30)

    run_ranks(world_size, body)


@WORLD_SIZES
def test_push_adds_up_by_key_at_the_owner(world_size: int) -> None:
    shard_map = ShardMap.balanced(world_size)

    def body(collective: Collective) -> tuple[Any, Any]:
        keys = keys_of_rank(collective.rank, world_size)
        gradients = rows_for(keys)[:, :3] * (collective.rank + 1)
        owned = RingExchange(collective, shard_map).push(
            TABLE, keys, gradients, lambda: ResourceManager.make_accumulator(TABLE)
        )
        assert (shard_map.owners[kernels.partition(owned.keys)] == collective.rank).all()
        return owned.keys.copy(), owned.gradients.copy()

    total: dict[int, np.ndarray] = {}
    for rank in range(world_size):
        keys = keys_of_rank(rank, world_size)
        for key, gradient in zip(keys, rows_for(keys)[:, :3] * (rank + 1), strict=True):
            total[int(key)] = total.get(int(key), 0) + gradient
    seen: dict[int, np.ndarray] = {}
    for keys, gradients in run_ranks(world_size, body):
        for key, gradient in zip(keys, gradients, strict=True):
            assert int(key) not in seen, "two ranks own one key"
            seen[int(key)] = gradient
    assert seen.keys() == total.keys()
    for key, gradient in total.items():
        np.testing.assert_allclose(seen[key], gradient, rtol=1e-15)


def test_a_rank_without_storage_reads_nothing_but_takes_part() -> None:
    shard_map = ShardMap.balanced(2)

    def body(collective: Collective) -> bool:
        keys = np.arange(10)
        pulled = RingExchange(collective, shard_map).pull(None, TABLE, keys, Columns(0, 3))
        return bool(pulled.found.any() or pulled.rows.any())

    assert run_ranks(2, body) == [False, False]


def test_all_ranks_measure_the_same_chunk_size() -> None:
    def body(collective: Collective) -> int:
        return measure_chunk_rows(collective, 256)

    sizes = run_ranks(3, body)
    assert len(set(sizes)) == 1
    assert MIN_CHUNK_ROWS <= sizes[0] <= MAX_CHUNK_ROWS


@pytest.mark.parametrize(
    ("small", "large", "expected"),
    [
        (50e-6, 50e-6 + 1e-9, MAX_CHUNK_ROWS),  # bandwidth above any measurement
        (100e-6, 100e-6 + 8.4e-3, 1024),  # 1 Gbit/s, 70 us per message
        (60e-6, 60e-6 + 0.84e-3, 4096),  # 10 Gbit/s, the same
        (1e-6, 1.0, MIN_CHUNK_ROWS),
    ],
)
def test_chunks_are_large_enough_to_hide_the_cost_of_messages(
    small: float, large: float, expected: int
) -> None:
    assert compute_chunk_rows(small, large, 256) == expected


@pytest.mark.parametrize(("num_keys", "is_inline"), [(20_000, True), (100_000, False)])
def test_few_gradients_are_added_without_another_thread(num_keys: int, is_inline: bool) -> None:
    table = TableConfig("item", 4)
    keys = np.arange(num_keys)

    def body(collective: Collective) -> bool:
        threads = set()

        class Recording:
            def __init__(self) -> None:
                self.sums = ResourceManager.make_accumulator(table)

            def add(self, some: Any, gradients: Any) -> None:
                threads.add(threading.get_ident())
                self.sums.add(some, gradients)

            def take(self) -> Any:
                return self.sums.take()

        exchange = RingExchange(collective, ShardMap.balanced(2))
        owned = exchange.push(table, keys, np.ones((num_keys, 4), np.float32), Recording)
        np.testing.assert_array_equal(owned.gradients, np.full((len(owned.keys), 4), 2))
        return threads == {threading.get_ident()}

    assert run_ranks(2, body) == [is_inline, is_inline]


@pytest.mark.parametrize("chunk_rows", [1024, 16])
def test_rows_are_the_same_whether_or_not_streams_are_divided(chunk_rows: int) -> None:
    shard_map = ShardMap.balanced(3)
    stored = np.arange(-50, 30)

    def body(collective: Collective) -> None:
        with open_storage("hkv", TABLE) as storage:
            owners = shard_map.owners[kernels.partition(stored)]
            mine = stored[owners == collective.rank]
            storage.upsert(mine, rows_for(mine))
            keys = keys_of_rank(collective.rank, 3)
            exchange = RingExchange(collective, shard_map, ExchangeOptions(chunk_rows=chunk_rows))
            for _ in range(3):
                pulled = exchange.pull(storage, TABLE, keys, Columns(0, 4))
                expected = np.where((keys < 30)[:, None], rows_for(keys), 0)
                np.testing.assert_array_equal(pulled.rows, expected)
                np.testing.assert_array_equal(pulled.found, keys < 30)
            collective.barrier()

    run_ranks(3, body)


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_collective_supports_one_exchange(is_closed: bool) -> None:
    def body(collective: Collective) -> None:
        shard_map = ShardMap.balanced(2)
        first = RingExchange(collective, shard_map)
        if is_closed:
            first.close()
        with pytest.raises(InvalidArgumentError, match="put all tables into one StepContainer"):
            RingExchange(collective, shard_map)
        if not is_closed:
            assert len(first.pull(None, TABLE, np.arange(10), Columns(0, 3)).rows) == 10

    run_ranks(2, body)
    alone = LocalGroup(1).join(0)
    for _ in range(2):
        RingExchange(alone, ShardMap.balanced(1)).close()


@pytest.mark.parametrize("chunk_rows", [1, 1000])
def test_gradients_are_added_in_the_order_of_hops(chunk_rows: int) -> None:
    """The sum starts with a rank's own gradients, then adds the gradients of previous ranks."""
    table = TableConfig("item", 1)
    keys = np.arange(60)
    owners = ShardMap.balanced(3).owners[kernels.partition(keys)]

    def body(collective: Collective) -> list[float]:
        # Only in this order is the result 1: added to 1e8, a 1 is lost.
        by_hop = np.array([1e8, -1e8, 1], np.float32)
        gradients = by_hop[(owners - collective.rank) % 3][:, None].copy()
        options = ExchangeOptions(chunk_rows)
        exchange = RingExchange(collective, ShardMap.balanced(3), options)
        owned = exchange.push(
            table, keys, gradients, lambda: ResourceManager.make_accumulator(table)
        )
        found: list[float] = owned.gradients[:, 0].tolist()
        return found

    for found in run_ranks(3, body):
        assert found
        assert set(found) == {1.0}


def test_the_number_of_chunks_in_flight_is_bounded() -> None:
    """Therefore the memory of an exchange is bounded for any batch."""
    keys = np.arange(900)

    def body(collective: Collective) -> dict[tuple[str, bool], int]:
        options = ExchangeOptions(chunk_rows=10, chunks_in_flight=3)
        exchange = RingExchange(collective, ShardMap.balanced(3), options)
        messenger, most = exchange.session.messenger, Counter[tuple[str, bool]]()
        started = messenger._register

        def count(transfer: Any) -> Any:
            result = started(transfer)
            kind = transfer.kind.value, transfer.is_sent
            under_way = [
                each
                for each in messenger._under_way.values()
                if (each.kind.value, each.is_sent) == kind
            ]
            most[kind] = max(most[kind], len(under_way))
            return result

        messenger._register = count  # type: ignore[method-assign]
        exchange.pull(open_storage("memory", TABLE), TABLE, keys, Columns(0, 3))
        gradients = np.ones((len(keys), 3))
        exchange.push(TABLE, keys, gradients, lambda: ResourceManager.make_accumulator(TABLE))
        return dict(most)

    for most in run_ranks(3, body):
        for kind in ("keys", "rows", "gradients"):
            for is_sent in (False, True):
                assert 1 <= most[kind, is_sent] <= 3, (kind, is_sent)
