"""Promises of `all_to_all`, `all_gather`, `all_reduce` and `barrier`."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from sparring.contracts import Collective, Reduction
from sparring.errors import InvalidArgumentError

__all__ = ["OperationTests"]


class OperationTests:
    """Operations that all ranks call together."""

    @pytest.mark.parametrize("world_size", [1, 2, 3])
    def test_each_rank_gets_its_parts_of_uneven_sizes(
        self, run_ranks: Any, world_size: int
    ) -> None:
        assert run_ranks(world_size, exchange_uneven) == [True] * world_size

    def test_empty_parts_are_accepted(self, run_ranks: Any) -> None:
        assert run_ranks(3, exchange_nothing) == [[[0, 4]] * 3] * 3

    @pytest.mark.parametrize("world_size", [1, 3])
    def test_gathered_arrays_keep_their_order_and_shapes(
        self, run_ranks: Any, world_size: int
    ) -> None:
        expected = [((rank, 3, 2), float(rank)) for rank in range(world_size)]
        assert run_ranks(world_size, gather_shapes) == [expected] * world_size

    @pytest.mark.parametrize("reduction", list(Reduction), ids=lambda each: each.value)
    @pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
    @pytest.mark.parametrize("shape", [(7, 11), (211, 97)], ids=["small", "large"])
    def test_reductions_are_bit_equal_on_all_ranks(
        self, run_ranks: Any, reduction: Reduction, dtype: str, shape: tuple[int, ...]
    ) -> None:
        results = run_ranks(3, reduce_random, reduction, dtype, shape)
        assert len({result.tobytes() for result in results}) == 1
        parts = [random_part(rank, dtype, shape) for rank in range(3)]
        expected = {
            Reduction.SUM: lambda: parts[0] + parts[1] + parts[2],
            Reduction.MEAN: lambda: (parts[0] + parts[1] + parts[2]) / 3,
            Reduction.MAX: lambda: np.maximum(np.maximum(parts[0], parts[1]), parts[2]),
        }[reduction]()
        assert results[0].shape == expected.shape
        assert results[0].tobytes() == expected.tobytes()

    def test_arrays_of_other_shapes_are_not_reduced(self, run_ranks: Any) -> None:
        assert run_ranks(2, reduce_wrongly) == [["shape", "dtype", "parts", "one dtype"]] * 2

    def test_a_barrier_waits_for_the_last_rank(self, run_ranks: Any) -> None:
        waited = run_ranks(3, meet_late, 0.3)
        assert waited[0] >= 0.25
        assert waited[1] >= 0.25

    def test_operations_do_not_mix_with_messages_of_the_user(self, run_ranks: Any) -> None:
        assert run_ranks(2, mix_with_messages) == [1, 0]

    def test_many_operations_one_after_the_other(self, run_ranks: Any) -> None:
        assert run_ranks(3, exchange_often, 300) == [True] * 3


def exchange_uneven(collective: Collective) -> bool:
    # Rank r gives rank i a part of (r * i) % 3 rows: sizes differ, and some are empty.
    def part(source: int, target: int) -> Any:
        return np.full(((source * target) % 3, 5), source * 10 + target, np.float32)

    world = range(collective.world_size)
    received = collective.all_to_all([part(collective.rank, target) for target in world])
    expected = [part(source, collective.rank) for source in world]
    return all(
        got.shape == wanted.shape and got.tobytes() == wanted.tobytes()
        for got, wanted in zip(received, expected, strict=True)
    )


def exchange_nothing(collective: Collective) -> list[list[int]]:
    parts = [np.empty((0, 4), np.int64)] * collective.world_size
    return [list(part.shape) for part in collective.all_to_all(parts)]


def gather_shapes(collective: Collective) -> list[tuple[tuple[int, ...], float]]:
    mine = np.full((collective.rank, 3, 2), collective.rank, np.float32)
    scalars = collective.all_gather(np.array(float(collective.rank)))
    assert all(scalar.shape == () for scalar in scalars)
    return [
        (gathered.shape, float(scalar))
        for gathered, scalar in zip(collective.all_gather(mine), scalars, strict=True)
    ]


def random_part(rank: int, dtype: str, shape: tuple[int, ...]) -> Any:
    numbers = np.random.default_rng(rank).normal(size=shape) * 1000
    return numbers.astype(dtype)


def reduce_random(
    collective: Collective, reduction: Reduction, dtype: str, shape: tuple[int, ...]
) -> Any:
    return collective.all_reduce(random_part(collective.rank, dtype, shape), reduction)


def reduce_wrongly(collective: Collective) -> list[str]:
    refused = []
    with pytest.raises(InvalidArgumentError, match="shape"):
        collective.all_reduce(np.zeros((2, 3 + collective.rank)))
    with pytest.raises(InvalidArgumentError, match="shape"):
        collective.all_reduce(np.zeros((200 + collective.rank, 300)))
    refused.append("shape")
    with pytest.raises(InvalidArgumentError, match="dtype"):
        collective.all_gather(np.zeros(2, ["int32", "float32"][collective.rank]))
    refused.append("dtype")
    with pytest.raises(InvalidArgumentError, match="2 ranks, found 1"):
        collective.all_to_all([np.zeros(1)])
    refused.append("parts")
    with pytest.raises(InvalidArgumentError, match="one dtype"):
        collective.all_to_all([np.zeros(1, np.int8), np.zeros(1, np.int16)])
    refused.append("one dtype")
    return refused


def meet_late(collective: Collective, seconds: float) -> float:
    collective.barrier()
    if collective.rank == 2:
        time.sleep(seconds)
    start = time.monotonic()
    collective.barrier()
    return time.monotonic() - start


def mix_with_messages(collective: Collective) -> int:
    other, got = 1 - collective.rank, np.empty(1, np.int64)
    receiving = collective.receive(got, other)
    for _ in range(5):
        collective.barrier()
    collective.send(np.array([collective.rank]), other).wait()
    collective.all_gather(np.zeros(3))
    receiving.wait()
    return int(got[0])


def exchange_often(collective: Collective, count: int) -> bool:
    world = collective.world_size
    for turn in range(count):
        received = collective.all_to_all(
            [np.full(turn % 4, turn * 9 + collective.rank * 3 + target) for target in range(world)]
        )
        for source, part in enumerate(received):
            assert part.tolist() == [turn * 9 + source * 3 + collective.rank] * (turn % 4)
    return True
