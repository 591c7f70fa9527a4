"""The gain from overlap: the ring compared with `sequential`, on simulated links and storages.

Four ranks pull rows over links of 1 Gbit/s from storages whose lookup takes about as long as the
transfer. A step cannot be faster than the slower of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np

from benchmarks.measuring import Figure
from benchmarks.overlap import excess_figure, ratio_figure
from benchmarks.scale import Scale
from benchmarks.sequential import EXCHANGES
from benchmarks.shaped_links import ShapedGroup, run_ranks, slow_storage
from sparring import StepContainer
from sparring.adapter import TableUpdate
from sparring.contracts import Collective, Columns, ShardMap, TableConfig
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

__all__ = ["measure"]

WORLD_SIZE, DIM, NUM_KEYS, ROUNDS = 4, 64, 60_000, 5
GIGABIT = 125e6
FAST = 20e9
"""Bytes per second of links whose cost is negligible."""
LOSS_BAR = 1.05
TABLE = TableConfig("item", DIM)


def measure(scale: Scale) -> list[Figure]:
    """Pulls with and without overlap, alternately; returns the median round of the slowest rank."""
    num_keys = scale.rows(NUM_KEYS)
    transferred = num_keys * (WORLD_SIZE - 1) // WORLD_SIZE * (8 + DIM * 4 + 1)
    transfer = transferred / GIGABIT
    # Each rank finds as many rows as it requests, including its own.
    seconds_per_row = transfer / num_keys
    balanced = _seconds(scale, num_keys, GIGABIT, seconds_per_row)
    free = _seconds(scale, num_keys, FAST, 0.0)
    whole = _seconds(scale, num_keys, GIGABIT, seconds_per_row, run=_one_step)
    step_excess = whole["ring"] / (2 * transfer)
    loss = free["ring"] / free["sequential"]
    return [
        ratio_figure(
            f"pull of {num_keys:,} rows x {DIM}, {WORLD_SIZE} ranks, 1 Gbit/s, equally slow lookup",
            balanced,
        ),
        excess_figure(balanced, transfer, f"lookup and transfer: {transfer * 1e3:.0f} ms each"),
        ratio_figure(
            "a whole step: pull rows, push gradients, find rows again for the update", whole
        ),
        Figure(
            what="the same, compared with the slower of lookup and transfer in both directions",
            value=f"{step_excess:.2f} x max(lookup, transfer)",
            detail=f"{2 * transfer * 1e3:.0f} ms; {WORLD_SIZE} ranks share the cores of this machine for "
            "sums and initial values",
        ),
        Figure(
            what="the same with free links and lookups: overhead of the ring itself",
            value=f"{loss:.2f} x sequential's time",
            bar=f"<= {LOSS_BAR}",
            is_reached=loss <= LOSS_BAR,
            detail=f"ring {free['ring'] * 1e3:.1f} ms, sequential {free['sequential'] * 1e3:.1f} ms",
        ),
    ]


def _seconds(
    scale: Scale,
    num_keys: int,
    bytes_per_second: float,
    seconds_per_row: float,
    run: Callable[[str, int, float, float], float] | None = None,
) -> dict[str, float]:
    """Returns the seconds of a pull, or of another operation, of each schedule."""
    run = run or _one_pull
    times: dict[str, list[float]] = {schedule: [] for schedule in EXCHANGES}
    for _ in range(scale.rounds(ROUNDS)):
        for schedule, rounds in times.items():
            rounds.append(run(schedule, num_keys, bytes_per_second, seconds_per_row))
    return {schedule: median(rounds) for schedule, rounds in times.items()}


def _one_pull(
    schedule: str, num_keys: int, bytes_per_second: float, seconds_per_row: float
) -> float:
    group = ShapedGroup(WORLD_SIZE, bytes_per_second)
    shard_map = ShardMap.balanced(WORLD_SIZE)
    keys = np.arange(num_keys) * 1_000_003

    def body(collective: Collective) -> float:
        storage = slow_storage(TABLE, seconds_per_row)
        exchange = EXCHANGES[schedule](collective, shard_map)
        exchange.pull(storage, TABLE, keys, Columns(0, DIM))
        collective.barrier()
        begin = time.perf_counter()
        exchange.pull(storage, TABLE, keys, Columns(0, DIM))
        seconds = time.perf_counter() - begin
        exchange.close()
        return seconds

    return max(run_ranks(group, body))


def _one_step(
    schedule: str, num_keys: int, bytes_per_second: float, seconds_per_row: float
) -> float:
    group = ShapedGroup(WORLD_SIZE, bytes_per_second)

    def body(collective: Collective) -> float:
        container = StepContainer(
            collective=collective,
            rendezvous=ThreadRendezvous(WORLD_SIZE),
        )
        container.exchange.__class__ = EXCHANGES[schedule]
        container.declare(TABLE, slow_storage(TABLE, seconds_per_row))
        # Ids that belong to one rank only, so that each rank finds as many rows as it requests.
        ids = (np.arange(num_keys) * WORLD_SIZE + collective.rank) * 1_000_003
        gradient = np.ones((num_keys, DIM), np.float32)
        seconds = 0.0
        for _ in range(2):
            collective.barrier()
            begin = time.perf_counter()
            found = container.lookup("item", ids)
            seconds = time.perf_counter() - begin
            assert found.shadow_id is not None
            container.resources.accumulate(found.shadow_id, gradient)
            collective.barrier()
            begin = time.perf_counter()
            container.apply(_nothing)
            seconds += time.perf_counter() - begin
        return seconds

    return max(run_ranks(group, body))


def _nothing(_updates: Sequence[TableUpdate]) -> None:
    """Does nothing, because the update of rows is not measured."""
