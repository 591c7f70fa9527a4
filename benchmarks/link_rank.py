"""One rank of `benchmarks.links`.

    python -m benchmarks.link_rank SCHEDULE,… NUM_KEYS ROUNDS SECONDS_PER_ROW MEETING

Rank 0 prints JSON with the seconds of each round on the slowest rank, per schedule.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np

from benchmarks.sequential import EXCHANGES
from benchmarks.shaped_links import slow_storage
from sparring import make_plugin_manager
from sparring.adapter import EnvironmentRendezvous
from sparring.contracts import (
    Collective,
    Columns,
    EnvironmentOptions,
    Reduction,
    ShardMap,
    TableConfig,
    validate_options,
)
from sparring.exchange.ring import RingExchange

__all__ = ["TABLE", "measure_pulls"]

TABLE = TableConfig("item", 64)


def measure_pulls(
    collective: Collective,
    schedules: list[str],
    num_keys: int,
    num_rounds: int,
    seconds_per_row: float,
) -> dict[str, list[float]]:
    """Pulls with each schedule in turn, in rounds."""
    shard_map = ShardMap.balanced(collective.world_size)
    storage = slow_storage(TABLE, seconds_per_row)
    keys = np.arange(num_keys) * 1_000_003
    # One exchange for all schedules, because a collective supports only one.
    exchange = RingExchange(collective, shard_map)
    times: dict[str, list[float]] = {schedule: [] for schedule in schedules}
    # The first round tunes and is not counted.
    for number in range(num_rounds + 1):
        for schedule in schedules:
            exchange.__class__ = EXCHANGES[schedule]
            collective.barrier()
            begin = time.perf_counter()
            exchange.pull(storage, TABLE, keys, Columns(0, TABLE.dim))
            mine = np.array([time.perf_counter() - begin])
            slowest = float(collective.all_reduce(mine, Reduction.MAX)[0])
            if number:
                times[schedule].append(slowest)
    return times


def _main(
    schedules: str, num_keys: str, num_rounds: str, seconds_per_row: str, meeting: str
) -> None:
    membership = EnvironmentRendezvous(EnvironmentOptions()).membership()
    descriptor = make_plugin_manager().collective("torch")
    options = validate_options("collective", descriptor, {"init_method": f"file://{meeting}"})
    with descriptor.factory(membership, options, 60.0) as collective:
        times = measure_pulls(
            collective, schedules.split(","), int(num_keys), int(num_rounds), float(seconds_per_row)
        )
        if collective.rank == 0:
            print(json.dumps(times), flush=True)
        collective.barrier()


if __name__ == "__main__":
    _main(*sys.argv[1:])
