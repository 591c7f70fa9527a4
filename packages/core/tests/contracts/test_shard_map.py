"""Shard maps and membership."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparring.contracts.ranks.rendezvous import Membership
from sparring.contracts.ranks.shard_map import NUM_PARTITIONS, ShardMap
from sparring.errors import DeadlineError, InvalidArgumentError
from sparring.rendezvous.environment import SingleRendezvous

world_sizes = st.integers(1, 300)


def shares(shard_map: ShardMap) -> np.ndarray:
    return np.bincount(shard_map.owners, minlength=shard_map.world_size)


@given(world_sizes)
def test_a_fresh_map_is_balanced_to_one_partition(world_size: int) -> None:
    counts = shares(ShardMap.balanced(world_size))
    assert counts.sum() == NUM_PARTITIONS
    assert counts.max() - counts.min() <= 1


def test_equal_maps_are_equal_and_immutable() -> None:
    assert ShardMap.balanced(3) == ShardMap.balanced(3)
    assert hash(ShardMap.balanced(3)) == hash(ShardMap.balanced(3))
    assert ShardMap.balanced(3) != ShardMap.balanced(4)
    with pytest.raises(ValueError, match="read-only"):
        ShardMap.balanced(3).owners[0] = 1
    owned = [ShardMap.balanced(3).partitions_of(rank) for rank in range(3)]
    assert sorted(np.concatenate(owned).tolist()) == list(range(NUM_PARTITIONS))


@pytest.mark.parametrize(
    ("owners", "world_size", "found"),
    [
        (np.zeros(5, int), 1, r"shape \(5,\)"),
        (np.full(NUM_PARTITIONS, 2), 2, "found 2 to 2"),
        (np.full(NUM_PARTITIONS, -1), 2, "found -1"),
        # Truncated to int32, these would be valid ranks.
        (np.zeros(NUM_PARTITIONS), 1, "found dtype float64"),
        (np.full(NUM_PARTITIONS, 2**32), 1, "found 4294967296"),
        (["a"] * NUM_PARTITIONS, 1, "found dtype <U1"),
        ([[0], [1, 2]], 1, "found list"),
        ([0] * NUM_PARTITIONS, 1.5, "found 1.5"),
        ([0] * NUM_PARTITIONS, NUM_PARTITIONS + 1, "found 4097"),
    ],
    ids=str,
)
def test_impossible_maps_are_rejected(owners: Any, world_size: Any, found: str) -> None:
    with pytest.raises(InvalidArgumentError, match=found):
        ShardMap(owners, world_size)


@pytest.mark.parametrize("world_size", [0, 1.5, True, "2", NUM_PARTITIONS + 1])
def test_an_invalid_world_size_is_rejected(world_size: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="world_size must be a whole number"):
        ShardMap.balanced(world_size)


def test_a_single_rank_owns_all_partitions() -> None:
    rendezvous = SingleRendezvous()
    assert rendezvous.membership() == Membership(rank=0, world_size=1, local_rank=0, device="cpu")
    assert rendezvous.shard_map() == ShardMap.balanced(1)
    rendezvous.set("run", b"abc")
    assert rendezvous.get("run", 0.0) == b"abc"
    with pytest.raises(DeadlineError, match="'walk'"):
        rendezvous.get("walk", 0.01)


def test_a_rank_outside_its_world_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="rank 3 of 3"):
        Membership(rank=3, world_size=3)
