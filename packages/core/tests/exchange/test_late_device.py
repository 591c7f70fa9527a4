"""The ring exchange on a device with late streams: work that is not ordered by events reads garbage."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalCollective
from sparring.contracts.ranks.collective import Collective, Work
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.results import Columns
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.engine.resource_manager import ResourceManager
from sparring.exchange.messages import PullRequest, PushRequest
from sparring.exchange.ring import RingExchange
from sparring.kernels import functions as kernels
from sparring.storage.open import open_storage
from sparring_testing.processes.rank_threads import run_ranks

from ..runtime.late_device import LateDevice, LateKernels
from .on_device import OnDevice, rows_for, wanted

TABLES = (TableConfig("item", 6, "float32"), TableConfig("user", 2, "float64"))
OPTIONS = ExchangeOptions(chunk_rows=64, chunks_in_flight=2)


class DirectCollective(LocalCollective):
    """A collective that supports the device's memory, which is host memory."""

    devices = ("cpu", "late")

    def _receive_impl(self, buffer: Any, source: int, tag: int) -> Work:
        # Code that fills it does so at once, and on no stream.
        return super()._receive_impl(buffer.view(np.ndarray), source, tag)


def shards(rank: int, shard_map: ShardMap) -> list[Storage]:
    storages = []
    stored = np.arange(300)
    for table in TABLES:
        storage = open_storage("memory", table)
        mine = stored[shard_map.owners[kernels.partition(stored)] == rank]
        storage.upsert(mine, rows_for(table, mine))
        storages.append(storage)
    return storages


def keys_of(rank: int, place: int) -> Any:
    count = 0 if rank == 2 and place == 0 else 120 + 60 * rank
    return np.random.default_rng(10 * rank + place).permutation(400)[:count]


def gradients_of(rank: int, place: int) -> Any:
    numbers = np.random.default_rng(50 * rank + place).standard_normal((400, TABLES[place].dim))
    return numbers[: len(keys_of(rank, place))].astype(TABLES[place].computing_dtype)


def on_host(collective: Collective) -> Any:
    shard_map = ShardMap.balanced(collective.world_size)
    rank = collective.rank
    with RingExchange(collective, shard_map, OPTIONS) as exchange:
        pulled = exchange.pull_all(
            [
                PullRequest(storage, table, keys_of(rank, place), Columns(0, table.dim))
                for place, (storage, table) in enumerate(
                    zip(shards(rank, shard_map), TABLES, strict=True)
                )
            ]
        )
        pushed = exchange.push_all(
            [
                PushRequest(
                    table,
                    keys_of(rank, place),
                    gradients_of(rank, place),
                    lambda table=table: ResourceManager.make_accumulator(table),
                )
                for place, table in enumerate(TABLES)
            ]
        )
        return (
            [(each.rows, each.found) for each in pulled],
            [(each.keys, each.gradients) for each in pushed],
        )


@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "staged"])
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_streams_are_ordered_by_events(world_size: int, is_direct: bool) -> None:
    shard_map = ShardMap.balanced(world_size)

    def on_device(collective: Collective) -> Any:
        rank = collective.rank
        device = LateDevice(seed=100 * rank)
        late = LateKernels(device)

        # The caller's arrays are late, too: they are created on its own stream, just before.
        def made(array: Any) -> Any:
            given = device.given(array)
            out = device.empty(array.shape, array.dtype.name)
            out[...] = given
            return out

        storages = shards(rank, shard_map)
        with RingExchange(collective, shard_map, OPTIONS) as exchange:
            ring = OnDevice(exchange, late)
            assert ring.stager.is_direct == is_direct
            pulled = ring.pull_all(
                [
                    wanted(storage, table, made(keys_of(rank, place)))
                    for place, (storage, table) in enumerate(zip(storages, TABLES, strict=True))
                ]
            )
            assert all(0 in array.known_on for each in pulled for array in (each.rows, each.found))
            copies = [
                (late.arrays.to_host(each.rows), late.arrays.to_host(each.found)) for each in pulled
            ]
            pushed = ring.push_all(
                [
                    PushRequest(table, made(keys_of(rank, place)), made(gradients_of(rank, place)))
                    for place, table in enumerate(TABLES)
                ]
            )
            known = [array.known_on for each in pushed for array in (each.keys, each.gradients)]
            assert all(0 in streams for streams in known), "their memory may be given out too early"
            sums = [
                (late.arrays.to_host(each.keys), late.arrays.to_host(each.gradients))
                for each in pushed
            ]
        return copies, sums

    begin = time.monotonic()
    found = run_ranks(
        world_size, on_device, 30.0, DirectCollective if is_direct else LocalCollective
    )
    assert time.monotonic() - begin < 25.0
    expected = run_ranks(world_size, on_host)
    for of_rank, known_of_rank in zip(found, expected, strict=True):
        for (rows, flags), (known_rows, known_flags) in zip(
            of_rank[0], known_of_rank[0], strict=True
        ):
            np.testing.assert_array_equal(flags, known_flags)
            assert rows.tobytes() == known_rows.tobytes()
        for (keys, sums), (known_keys, known_sums) in zip(
            of_rank[1], known_of_rank[1], strict=True
        ):
            np.testing.assert_array_equal(keys, known_keys)
            assert sums.tobytes() == known_sums.tobytes()
