"""Ranks as processes, with gloo and MPI, train like one process on the joined batches.

``SPARRING_LARGEST_WORLD=8`` adds worlds of 4 and of 8 processes, and functions over rows in all worlds;
``nox -s tests_long`` sets it. test_exactness tests ranks as threads with every method.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring_testing.processes.rank_launchers import BACKENDS, launch_ranks
from sparring_testing.processes.rank_processes import RankProcesses
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

from .exchange_scenario import Scenario, Shard, check, train

# Starting ranks takes seconds, and test_killed_ranks compares rows of processes and of threads, too.
pytestmark = [pytest.mark.alone, pytest.mark.slow]

LARGEST_WORLD = int(os.environ.get("SPARRING_LARGEST_WORLD", "3"))
WORLD_SIZES = [size for size in (2, 3, 4, 8) if size <= LARGEST_WORLD]
METHODS = [
    pytest.param("sgd", marks=pytest.mark.long),
    pytest.param("adagrad", marks=pytest.mark.long),
    "adam",
]

needs_hkv = pytest.mark.skipif(
    importlib.util.find_spec("sparring_hkv") is None,
    reason='sparring-hkv is not installed: pip install "sparring[hkv]"',
)

CheckRanks = Callable[[Scenario], None]


def train_as_rank(collective: Collective, scenario: Scenario) -> dict[str, Shard]:
    """Runs a scenario in each process."""
    if scenario.exchange.two_levels:
        collective.hosts = [[0, 2], [1]]
    return train(scenario, collective, ThreadRendezvous(scenario.world_size))


@cache
def alone(scenario: Scenario) -> dict[str, Shard]:
    return train(scenario, None, None)


@pytest.fixture(scope="module")
def worlds() -> Iterator[dict[tuple[str, int], RankProcesses]]:
    """Processes of each backend and world size, which are started at their first use."""
    started: dict[tuple[str, int], RankProcesses] = {}
    yield started
    for processes in started.values():
        processes.close()


@pytest.fixture(params=BACKENDS)
def check_ranks(
    request: pytest.FixtureRequest, worlds: dict[tuple[str, int], RankProcesses]
) -> CheckRanks:
    """Trains a scenario in processes, and compares the rows."""
    backend: str = request.param

    def run(scenario: Scenario) -> None:
        # Over gloo fewer ranks may meet than there are processes; MPI has exactly those it started.
        size = max(WORLD_SIZES) if backend == "torch" else scenario.world_size
        if (backend, size) not in worlds:
            worlds[backend, size] = launch_ranks(backend, size, __name__)
        shards: list[Any] = worlds[backend, size].run(
            scenario.world_size, train_as_rank, scenario, deadline_seconds=30.0
        )
        check(shards, alone(scenario))

    return run


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "world_size",
    [size if size == 3 else pytest.param(size, marks=pytest.mark.long) for size in WORLD_SIZES],
)
def test_processes_train_like_one(check_ranks: CheckRanks, world_size: int, method: str) -> None:
    """Its batches include ranks without samples, and steps in which one rank has all ids."""
    check_ranks(Scenario(world_size, method))


@pytest.mark.long  # of short runs, native tables try a function over rows
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("world_size", WORLD_SIZES if LARGEST_WORLD > 3 else [3])
def test_processes_with_a_function_over_rows_train_like_one(
    check_ranks: CheckRanks, world_size: int, method: str
) -> None:
    check_ranks(Scenario(world_size, method, is_fused=False))


@needs_hkv
@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "function"])
def test_native_tables_of_processes_train_like_one(check_ranks: CheckRanks, is_fused: bool) -> None:
    check_ranks(Scenario(3, "adam", is_fused, backend="hkv"))


def test_sums_of_processes_are_also_exact(check_ranks: CheckRanks) -> None:
    check_ranks(Scenario(3, "adagrad", reduction=Reduction.SUM, num_steps=30))


def test_processes_in_two_levels_train_like_one(check_ranks: CheckRanks) -> None:
    check_ranks(Scenario(3, "adam", exchange=ExchangeOptions(two_levels=True)))
