"""Tests that simulated steps take as long as real ones with links and storages of known speeds."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparring import ExchangeOptions, _native
from sparring.contracts import Collective, Columns, ShardMap, TableConfig
from sparring.exchange.messages import PushRequest
from sparring_plan.simulation.model import Compute, Network, SimulatedSchedule, Workload
from sparring_plan.simulation.replay import simulate

pytestmark = pytest.mark.alone

ROOT = Path(__file__).resolve().parents[1]
NUM_KEYS, DIM, CHUNK_ROWS = 12_000, 64, 1024
BYTES_PER_SECOND, LATENCY, FIND = 40e6, 1e-3, 10e-6
LEAST, MOST = 0.92, 1.35
"""Limits of measured over predicted time: waits may end late, and computation is added."""
SLOWER = (1, 1, 4, 16, 64)
"""If a run took too long, the next one uses links and storages that are slower by this factor, so that
the time that a busy machine adds becomes a smaller fraction."""


def even_keys(world_size: int) -> Any:
    """Returns keys, equally many of each owner."""
    keys = np.arange(3 * NUM_KEYS, dtype=np.int64)
    owners = ShardMap.balanced(world_size).owners
    order, offsets = _native.route(keys, owners, world_size)
    count = NUM_KEYS // world_size
    return np.concatenate([keys[order[at : at + count]] for at in offsets[:-1]])


def measured(import_program: Any, world_size: int, schedule: str, slower: int) -> tuple[float, int]:
    shaped_links = import_program("benchmarks.shaped_links")
    exchanges = import_program("benchmarks.sequential").EXCHANGES
    table = TableConfig("item", DIM)
    group = shaped_links.ShapedGroup(world_size, BYTES_PER_SECOND / slower, LATENCY * slower)
    keys = even_keys(world_size)
    gradients = np.ones((NUM_KEYS, DIM), np.float32)
    accumulator = partial(_native.GradientAccumulator, DIM, "float32")
    sent = [0] * world_size

    def body(collective: Collective) -> float:
        storage = shaped_links.slow_storage(table, FIND * slower)
        options = ExchangeOptions(CHUNK_ROWS)
        exchange = exchanges[schedule](collective, ShardMap.balanced(world_size), options)
        collective.barrier()
        begin = time.perf_counter()
        exchange.pull(storage, table, keys, Columns(0, DIM))
        exchange.push_all([PushRequest(table, keys, gradients, accumulator)])
        exchange.commit([0])
        seconds = time.perf_counter() - begin
        sent[collective.rank] = exchange.counters.wire_bytes_sent.total
        exchange.close()
        return seconds

    return max(shaped_links.run_ranks(group, body)), sent[0]


@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("schedule", ["ring", "sequential"])
def test_a_prediction_equals_the_time_of_modelled_links(
    world_size: int, schedule: str, import_program: Any
) -> None:
    workload = Workload(NUM_KEYS, 1.0, DIM, chunk_rows=CHUNK_ROWS)
    for slower in SLOWER:
        network = Network(LATENCY * slower, BYTES_PER_SECOND / slower, 0.0)
        compute = Compute(FIND * slower, 0.0, 0.0)
        predicted = simulate(SimulatedSchedule(schedule), world_size, network, compute, workload)
        seconds, wire_bytes = measured(import_program, world_size, schedule, slower)
        ratio = seconds / predicted.seconds
        if ratio <= MOST:
            break
    assert LEAST <= ratio <= MOST, (
        f"predicted {predicted.seconds:.3f} s, took {ratio:.2f} times that"
    )
    shapes = 72 * 3 * (world_size - 1) if schedule == "sequential" else 0
    assert predicted.wire_bytes == wire_bytes + shapes
