"""W ranks train like one process on the joined batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest

from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring_testing.devices import why_unavailable
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

from .exchange_scenario import Scenario, Shard, check, train
from .late_transport import LateGroup

SHORT = {(1, "sgd"), (2, "adam"), (3, "adagrad"), (4, "adam")}
"""Numbers of ranks and methods that are always tested. Long tests cover all pairs."""


@cache
def alone(scenario: Scenario) -> dict[str, Shard]:
    return train(scenario, None, None)


def check_ranks(scenario: Scenario) -> None:
    def body(collective: Collective) -> dict[str, Shard]:
        return train(scenario, collective, ThreadRendezvous(scenario.world_size))

    check(run_ranks(scenario.world_size, body, 60.0), alone(scenario))


@pytest.mark.parametrize(
    ("world_size", "method"),
    [
        pytest.param(size, method, marks=[] if (size, method) in SHORT else pytest.mark.long)
        for size in (1, 2, 3, 4, 8)
        for method in ("sgd", "adagrad", "adam")
    ],
)
def test_ranks_train_like_one_process(world_size: int, method: str) -> None:
    steps = 30 if (world_size, method) in SHORT else 100
    check_ranks(Scenario(world_size, method, num_steps=steps))


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.long), 3])
def test_a_function_over_rows_counts_steps_equally_on_all_ranks(world_size: int) -> None:
    check_ranks(Scenario(world_size, "adam", is_fused=False, num_steps=30))


@pytest.mark.parametrize(
    ("world_size", "is_fused"),
    [
        pytest.param(2, True, id="fused-2"),
        pytest.param(4, False, id="function-4", marks=pytest.mark.slow),
        pytest.param(2, False, id="function-2", marks=pytest.mark.long),
        pytest.param(4, True, id="fused-4", marks=pytest.mark.long),
    ],
)
def test_sums_over_ranks_are_also_exact(world_size: int, is_fused: bool) -> None:
    check_ranks(Scenario(world_size, "sgd", is_fused, Reduction.SUM, num_steps=15))


@pytest.mark.parametrize(
    "chunk_rows", [*(pytest.param(each, marks=pytest.mark.slow) for each in (1, None)), 3]
)
def test_chunks_do_not_change_the_trained_rows(chunk_rows: int | None) -> None:
    exchange = ExchangeOptions(chunk_rows, chunks_in_flight=2)
    check_ranks(Scenario(3, "adagrad", num_steps=12, exchange=exchange))


@pytest.mark.parametrize(
    ("world_size", "seed"),
    [
        pytest.param(size, seed, marks=[] if (size, seed) in {(2, 1), (4, 2)} else pytest.mark.long)
        for size in (2, 4, 5)
        for seed in (1, 2)
    ],
)
def test_it_is_exact_over_the_most_minimal_transport(world_size: int, seed: int) -> None:
    """With one chunk in flight and with many; buffers are overwritten as early as allowed."""
    exchange = ExchangeOptions(chunk_rows=2, chunks_in_flight=1 if seed == 1 else 6)
    scenario = Scenario(world_size, "adagrad", num_steps=8, exchange=exchange)
    group = LateGroup(world_size, seed, is_hasty=seed == 2)

    def body(rank: int) -> dict[str, Shard]:
        return train(scenario, group.join(rank), ThreadRendezvous(world_size))

    with ThreadPoolExecutor(world_size) as threads:
        check(list(threads.map(body, range(world_size))), alone(scenario))


def test_every_run_gives_the_same_bits() -> None:
    runs = []
    for chunk_rows in (2, 64, 1):
        exchange = ExchangeOptions(chunk_rows)
        scenario = Scenario(4, "adam", num_steps=9, exchange=exchange)

        def body(collective: Collective, scenario: Scenario = scenario) -> dict[str, Shard]:
            return train(scenario, collective, ThreadRendezvous(4))

        runs.append(run_ranks(4, body, 60.0))
    for other in runs[1:]:
        for mine, theirs in zip(runs[0], other, strict=True):
            for name, shard in mine.items():
                assert shard.keys == theirs[name].keys
                for key, row in shard.rows.items():
                    assert row.tobytes() == theirs[name].rows[key].tobytes()


@pytest.mark.skipif(
    why_unavailable("emulated") is not None, reason=str(why_unavailable("emulated"))
)
@pytest.mark.parametrize(
    ("world_size", "is_fused"),
    [
        pytest.param(1, True, id="1-fused"),
        pytest.param(2, False, id="2-function"),
        pytest.param(4, True, id="4-fused"),
        pytest.param(1, False, id="1-function", marks=pytest.mark.long),
        pytest.param(2, True, id="2-fused", marks=pytest.mark.long),
        pytest.param(4, False, id="4-function", marks=pytest.mark.long),
    ],
)
def test_ranks_with_tables_on_a_device_train_the_rows_of_ranks_on_cpus(
    world_size: int, is_fused: bool
) -> None:
    """Exchanges via host arrays, like containers on several ranks."""
    trained = []
    for device in ("cpu", "emulated"):
        options = {"device": device}
        scenario = Scenario(
            world_size, "adagrad", is_fused, num_steps=12, backend="hkv", options=options
        )

        def body(collective: Collective, scenario: Scenario = scenario) -> dict[str, Shard]:
            return train(scenario, collective, ThreadRendezvous(world_size))

        trained.append(run_ranks(world_size, body, 60.0))
    for on_cpu, on_device in zip(*trained, strict=True):
        for name, shard in on_cpu.items():
            assert on_device[name].keys == shard.keys
            for key, row in shard.rows.items():
                assert on_device[name].rows[key].tobytes() == row.tobytes()
