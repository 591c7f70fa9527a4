"""Tables that are sharded by columns and pooled by the owners of each block train like in one
process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective
from sparring.contracts.tables.admission import Frequency
from sparring.engine.container import StepContainer
from sparring.engine.lookup.pooled import BagLookup, bag_weight_gradients, look_up_bags
from sparring.engine.state import NonFinite
from sparring.errors import InvalidArgumentError
from sparring.kernels.functions import pool, pool_backward
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.sharded_jobs import (
    DIM,
    KINDS,
    collect_pieces,
    join_pieces,
    make_batch,
    open_container,
)
from sparring_testing.processes.table_steps import choose_method

DIVIDED = ("column_wise", "table_column_wise", "grid")
STEPS = 5


def pooled(collective: Collective, kind: str, **more: Any) -> StepContainer:
    sharding = replace(KINDS[kind](collective.world_size), transfer="pooled")
    return open_container(collective, kind, sharding=sharding, **more)


def bags(step: int, ranks: list[int]) -> tuple[Any, Any, Any]:
    """Returns ids, offsets of bags of three ids, and gradients of pools, of several ranks together."""
    parts = [make_batch(step, [rank]) for rank in ranks]
    lengths = [np.full(len(ids) // 3, 3) for ids, _ in parts]
    ids = [ids[: 3 * len(each)] for (ids, _), each in zip(parts, lengths, strict=True)]
    gradients = [given[: len(each)] for (_, given), each in zip(parts, lengths, strict=True)]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    joint = np.concatenate(gradients).astype(np.float32)
    return np.concatenate(ids), offsets.astype(np.int64), joint


def train(container: StepContainer, ranks: list[int]) -> list[Any]:
    seen = []
    for step in range(STEPS):
        for micro in range(2):
            ids, offsets, gradient = bags(2 * step + micro, ranks)
            if container.collective.world_size > 1:
                wanted = [BagLookup("user", ids, offsets)]
                (found,) = look_up_bags(container.state, wanted, is_training=True)
                assert found.shadow_id is not None
                container.resources.accumulate_bags(found.shadow_id, gradient)
                assert container.resources.has_gradient("user")
                seen.append(found.pools)
                continue
            rows = container.lookup("user", ids)
            assert rows.shadow_id is not None
            by_key = pool_backward(gradient, rows.inverse, offsets, len(rows.keys))
            container.resources.accumulate(rows.shadow_id, by_key)
            seen.append(pool(rows.rows, rows.inverse, offsets))
        container.apply_methods(choose_method(container, "adagrad", step + 1, lr=0.125))
    return seen


@pytest.mark.parametrize(
    ("world_size", "more"),
    [
        pytest.param(3, {"admission": Frequency(2)}, id="3-admission"),
        pytest.param(4, {}, id="4-plain", marks=pytest.mark.slow),
        pytest.param(2, {}, id="2-plain", marks=pytest.mark.long),
        pytest.param(2, {"admission": Frequency(2)}, id="2-admission", marks=pytest.mark.long),
        pytest.param(3, {}, id="3-plain", marks=pytest.mark.long),
        pytest.param(4, {"admission": Frequency(2)}, id="4-admission", marks=pytest.mark.long),
    ],
)
def test_pooled_blocks_have_the_bits_of_one_process(world_size: int, more: dict[str, Any]) -> None:
    with open_container(None, "", **more) as alone:
        outputs = train(alone, list(range(world_size)))
        expected = join_pieces([collect_pieces(alone)])
    assert len(expected) > 20
    for kind in DIVIDED:

        def body(collective: Collective, kind: str = kind) -> Any:
            with pooled(collective, kind, **more) as container:
                assert container.transfer("user")[0] == "pooled"
                pools = train(container, [collective.rank])
                return collect_pieces(container), pools, len(container.entry("user").parts)

        held = run_ranks(world_size, body)
        assert all(num_blocks > 1 for *_, num_blocks in held)
        assert join_pieces([each for each, _, _ in held]) == expected
        for step, whole in enumerate(outputs):
            mine = np.concatenate([pools[step] for _, pools, _ in held])
            np.testing.assert_allclose(mine, whole, rtol=0, atol=1e-6)


def test_weights_of_pooled_blocks_get_the_gradients_of_whole_rows() -> None:
    def body(collective: Collective) -> None:
        ids, offsets, gradient = bags(1 + collective.rank, [collective.rank])
        weights = np.linspace(0.5, 2, len(ids)).astype(np.float32)
        with pooled(collective, "column_wise") as container:
            (rows,) = container.lookup_all([("user", ids)], is_registered=False)
            wanted = [BagLookup("user", ids, offsets, "sum", weights, True)]
            (found,) = look_up_bags(container.state, wanted, is_training=True)
            with pytest.raises(InvalidArgumentError, match=r"found .* float64"):
                bag_weight_gradients(container.state, [found], [gradient.astype(np.float64)])
            (got,) = bag_weight_gradients(container.state, [found], [gradient])
            expected = np.repeat(gradient, 3, axis=0) * rows.rows[rows.inverse]
            np.testing.assert_allclose(got, expected.sum(axis=1), rtol=0, atol=1e-5)

    run_ranks(2, body)


def test_nan_in_one_block_excludes_the_key_from_all() -> None:
    def body(collective: Collective) -> Any:
        with pooled(collective, "column_wise") as container:
            container.non_finite_gradients = NonFinite.SKIP
            ids = np.array([1, 2, 3 + collective.rank], np.int64)
            wanted = [BagLookup("user", ids, np.array([0, 2, 3], np.int64))]
            (found,) = look_up_bags(container.state, wanted, is_training=True)
            gradient = np.ones((2, DIM), np.float32)
            gradient[0, -1] = np.nan
            container.resources.accumulate_bags(found.shadow_id, gradient)
            container.apply_methods(choose_method(container, "adagrad", 0 + 1, lr=0.125))
            return collect_pieces(container), container.counters.rows_skipped_non_finite

    held = run_ranks(2, body)
    assert set(join_pieces([each for each, _ in held])) == {3, 4}
    assert sum(count for _, count in held) == 4
