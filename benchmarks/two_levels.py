"""Steps of the ring in one and in two levels, over gloo on TCP links between hosts.

Each host is a network namespace with some ranks, which share memory, and one link whose bandwidth the
kernel limits. Both ways alternate in one run, with the same container.

    python -m benchmarks.two_levels ROUNDS KEYS,… MEETING      one rank; rank 0 prints JSON
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.links import run_on_hosts
from benchmarks.measuring import Figure
from benchmarks.rank_exchange import slowest_of_each_round
from benchmarks.scale import Scale
from sparring import ExchangeOptions, StepContainer, TableConfig, make_plugin_manager
from sparring.adapter import EnvironmentRendezvous, TableUpdate
from sparring.contracts import Collective, EnvironmentOptions, Rendezvous, validate_options
from sparring.exchange.two_levels import choose_levels
from sparring_shm.meeting import connect_local_ranks
from sparring_testing.faults.isolated_links import IsolatedLinks, why_isolation_is_unavailable

__all__ = ["measure"]

HOSTS = ((2, 2), (2, 4), (4, 4))
"""Numbers of hosts, and of ranks per host."""
NUM_KEYS, ROUNDS = (64, 1024, 8192), 20
BITS_PER_SECOND = 10**9
TABLE = TableConfig("item", 64)


def measure(scale: Scale) -> list[Figure]:
    """Returns the median step of the slowest rank, for several numbers of ranks and of ids."""
    reason = why_isolation_is_unavailable()
    if reason is not None:
        return [Figure(what="steps in two levels", value="not measured", detail=reason)]
    figures = []
    for num_hosts, per_host in HOSTS[: 1 if scale.is_quick else None]:
        found = _steps(num_hosts, per_host, scale.rounds(ROUNDS), scale.rows(max(NUM_KEYS)))
        for num_keys, seconds in found["seconds"].items():
            one, two = (median(seconds[name]) for name in ("one", "two"))
            figures.append(
                Figure(
                    what=f"a step of {int(num_keys):,} ids x {TABLE.dim} per rank, {num_hosts} hosts x "
                    f"{per_host} ranks, links of 1 Gbit/s",
                    value=f"two levels take {two / one:.2f} x the time of the ring",
                    detail=f"ring {one * 1e3:.2f} ms, two levels {two * 1e3:.2f} ms; auto chooses "
                    f"{found['choice']}",
                )
            )
    return figures


def _steps(num_hosts: int, per_host: int, rounds: int, most_keys: int) -> Any:
    """Returns the seconds of each round, by number of keys and way, and the choice of `auto`."""
    sizes = ",".join(str(each) for each in NUM_KEYS if each <= most_keys)
    world_size = num_hosts * per_host
    with (
        tempfile.TemporaryDirectory() as folder,
        IsolatedLinks(num_hosts, BITS_PER_SECOND) as links,
    ):
        program = [
            sys.executable,
            "-m",
            "benchmarks.two_levels",
            str(rounds),
            sizes,
            f"{folder}/meeting",
        ]
        return run_on_hosts(links, [rank // per_host for rank in range(world_size)], program)


def _measure_rank(
    collective: Collective, rendezvous: Rendezvous, rounds: int, sizes: list[int]
) -> dict[str, object]:
    with StepContainer(
        collective=collective, rendezvous=rendezvous, exchange=ExchangeOptions(chunk_rows=65_536)
    ) as container:
        container.declare(TABLE)
        session = container.exchange.session

        def step(num_keys: int) -> None:
            keys = np.arange(num_keys) * 1_000_003
            with container.step(_descend) as one:
                found = one.lookup(TABLE.name, keys)
                one.accumulate(found, np.ones_like(found.rows))

        step(1)
        choice = "one level"
        if session.levels is not None:
            choice = f"two levels up to {session.levels.max_part_bytes:,.0f} bytes"
        ways = {"one": None, "two": choose_levels(session.messenger, True)}

        def run(way: str, num_keys: int) -> None:
            session.use_levels(ways[way])
            step(num_keys)

        seconds = {}
        for num_keys in sizes:
            contenders: dict[str, Callable[[], object]] = {
                way: partial(run, way, num_keys) for way in ways
            }
            seconds[num_keys] = slowest_of_each_round(collective, contenders, rounds)
        return {"seconds": seconds, "choice": choice}


def _descend(updates: Iterable[TableUpdate]) -> None:
    for each in updates:
        each.rows[:, : TABLE.dim] -= 0.25 * each.gradients


def _main(rounds: str, sizes: str, meeting: str) -> None:
    rendezvous = EnvironmentRendezvous(EnvironmentOptions())
    membership = rendezvous.membership()
    descriptor = make_plugin_manager().collective("torch")
    options = validate_options("collective", descriptor, {"init_method": f"file://{meeting}"})
    joined = descriptor.factory(membership, options, 60.0)
    with connect_local_ranks(joined) as collective:
        found = _measure_rank(
            collective, rendezvous, int(rounds), [int(each) for each in sizes.split(",")]
        )
        if collective.rank == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
