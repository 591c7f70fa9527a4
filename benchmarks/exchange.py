"""What overlap is worth: the ring against `sequential`, on links and storages of known speed.

Four ranks pull rows over links of 1 Gbit/s from storages whose lookup takes about as long as the
transfer. A step can be no faster than the slower of the two.
"""

from __future__ import annotations

import time
from statistics import median

import numpy as np

from benchmarks.measuring import Figure
from benchmarks.scale import Scale
from benchmarks.shaped_links import ShapedGroup, run_ranks, slow_storage
from sparring import Columns, TableConfig
from sparring.collective import Collective
from sparring.exchange import ExchangeOptions, RingExchange
from sparring.rendezvous import ShardMap

__all__ = ["measure"]

WORLD_SIZE, DIM, NUM_KEYS, ROUNDS = 4, 64, 60_000, 5
GIGABIT = 125e6
FAST = 20e9
"""Bytes per second of links that cost next to nothing."""
RATIO_BAR, EXCESS_BAR, LOSS_BAR = 1.6, 1.15, 1.05
TABLE = TableConfig("item", DIM)


def measure(scale: Scale) -> list[Figure]:
    """Pulls with overlap and without, alternately; the median round of the slowest rank."""
    num_keys = scale.rows(NUM_KEYS)
    transferred = num_keys * (WORLD_SIZE - 1) // WORLD_SIZE * (8 + DIM * 4 + 1)
    transfer = transferred / GIGABIT
    # Each rank finds as many rows as it asks for, its own among them.
    seconds_per_row = transfer / num_keys
    balanced = _seconds(scale, num_keys, GIGABIT, seconds_per_row)
    free = _seconds(scale, num_keys, FAST, 0.0)
    ratio = balanced["sequential"] / balanced["ring"]
    excess = balanced["ring"] / transfer
    loss = free["ring"] / free["sequential"]
    return [
        Figure(
            what=f"pull of {num_keys:,} rows x {DIM}, {WORLD_SIZE} ranks, 1 Gbit/s, lookup as slow",
            value=f"{ratio:.2f} x sequential",
            bar=f">= {RATIO_BAR}",
            is_reached=ratio >= RATIO_BAR,
            detail=f"ring {balanced['ring'] * 1e3:.0f} ms, "
            f"sequential {balanced['sequential'] * 1e3:.0f} ms",
            ratio=ratio,
        ),
        Figure(
            what="the same against the slower of lookup and transfer",
            value=f"{excess:.2f} x max(lookup, transfer)",
            bar=f"<= {EXCESS_BAR}",
            is_reached=excess <= EXCESS_BAR,
            detail=f"lookup and transfer: {transfer * 1e3:.0f} ms each",
        ),
        Figure(
            what="the same where neither costs anything: what the ring itself costs",
            value=f"{loss:.2f} x sequential's time",
            bar=f"<= {LOSS_BAR}",
            is_reached=loss <= LOSS_BAR,
            detail=f"ring {free['ring'] * 1e3:.1f} ms, sequential {free['sequential'] * 1e3:.1f} ms",
        ),
    ]


def _seconds(
    scale: Scale, num_keys: int, bytes_per_second: float, seconds_per_row: float
) -> dict[str, float]:
    """Schedule → seconds of a pull."""
    times: dict[str, list[float]] = {"ring": [], "sequential": []}
    for _ in range(scale.rounds(ROUNDS)):
        for schedule, rounds in times.items():
            rounds.append(_one_pull(schedule, num_keys, bytes_per_second, seconds_per_row))
    return {schedule: median(rounds) for schedule, rounds in times.items()}


def _one_pull(
    schedule: str, num_keys: int, bytes_per_second: float, seconds_per_row: float
) -> float:
    group = ShapedGroup(WORLD_SIZE, bytes_per_second)
    shard_map = ShardMap.balanced(WORLD_SIZE)
    keys = np.arange(num_keys) * 1_000_003

    def body(collective: Collective) -> float:
        storage = slow_storage(TABLE, seconds_per_row)
        exchange = RingExchange(collective, shard_map, ExchangeOptions(schedule))
        exchange.pull(storage, TABLE, keys, Columns(0, DIM))
        collective.barrier()
        begin = time.perf_counter()
        exchange.pull(storage, TABLE, keys, Columns(0, DIM))
        seconds = time.perf_counter() - begin
        exchange.close()
        return seconds

    return max(run_ranks(group, body))
