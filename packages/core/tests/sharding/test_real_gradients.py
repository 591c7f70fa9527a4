"""Rows of all sharding kinds and both transfers after many steps with gradients whose sums are
rounded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective
from sparring.contracts.ranks.layout import TableSharding
from sparring.contracts.storage.updates import MethodChoice
from sparring.engine.container import StepContainer
from sparring.engine.lookup.pooled import BagLookup, look_up_bags
from sparring.kernels.functions import pool_backward
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.sharded_jobs import (
    DIM,
    KINDS,
    collect_pieces,
    join_pieces,
    open_container,
)

STEPS, WORLD_SIZE, BAGS, PER_BAG = 50, 3, 6, 4
# Other tests cover the layouts of all kinds; these differ in how gradients are summed.
SHORT = {("data_parallel", "rows"), ("grid", "pooled")}
CASES = [
    pytest.param(kind, transfer, marks=[] if (kind, transfer) in SHORT else pytest.mark.slow)
    for kind in KINDS
    for transfer in ("rows", "pooled")
    if (kind, transfer) != ("data_parallel", "pooled")
]


def train(container: StepContainer, ranks: Sequence[int]) -> Any:
    """Trains with the bags of several ranks, and returns the rows of this rank."""
    method = resolve_method("adagrad")
    offsets = np.arange(len(ranks) * BAGS + 1, dtype=np.int64) * PER_BAG
    for step in range(STEPS):
        drawn = [np.random.default_rng((step, rank)) for rank in ranks]
        ids = np.concatenate([each.integers(-20, 20, BAGS * PER_BAG) for each in drawn])
        gradient = np.concatenate([each.standard_normal((BAGS, DIM), np.float32) for each in drawn])
        if container.transfer("user")[0] == "pooled":
            (pools,) = look_up_bags(
                container.state, [BagLookup("user", ids, offsets)], is_training=True
            )
            assert pools.shadow_id is not None
            container.resources.accumulate_bags(pools.shadow_id, gradient)
        else:
            found = container.lookup("user", ids)
            assert found.shadow_id is not None
            by_key = pool_backward(gradient, found.inverse, offsets, len(found.keys))
            container.resources.accumulate(found.shadow_id, by_key)
        choice = MethodChoice(method, parse_hyper(method, {"lr": 0.125}), step + 1)
        container.apply_methods({"user": choice})
    return collect_pieces(container)


def arrays(held: Any) -> Any:
    """Returns embeddings and state, ``(2, keys, dim)``."""
    rows = join_pieces(held)
    found = np.stack([np.frombuffer(rows[key][0], np.float32) for key in sorted(rows)])
    return np.stack([found[:, :DIM], found[:, DIM:]])


@pytest.fixture(scope="module")
def expected() -> Any:
    with open_container(None, "") as alone:
        return arrays([train(alone, range(WORLD_SIZE))])


@pytest.mark.parametrize(("kind", "transfer"), CASES)
def test_after_50_steps_rows_equal_one_process_to_a_millionth(
    kind: str, transfer: Any, expected: Any
) -> None:
    made = KINDS[kind](WORLD_SIZE)
    sharding = TableSharding(made) if isinstance(made, str) else made
    sharding = replace(sharding, transfer=transfer)

    def body(collective: Collective) -> Any:
        with open_container(collective, kind, sharding=sharding) as container:
            return train(container, [collective.rank])

    found = arrays(run_ranks(WORLD_SIZE, body))
    assert found.shape == expected.shape
    for mine, whole in zip(found, expected, strict=True):
        difference = np.abs(mine - whole).max() / np.abs(whole).max()
        assert difference <= 1e-6
