"""Data that ranks divide are merged to the original."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.contracts.ranks.collective import Collective
from sparring_testing.processes.rank_threads import run_ranks
from sparring_train.columns import Column, ColumnBatch
from sparring_train.run.ranks import Ranks


def batch_of(size: int) -> ColumnBatch:
    """Each example has its number as its id, and a bag of up to two ids."""
    ids = np.arange(size, dtype=np.int64)
    lengths = ids % 3
    bags = Column(np.arange(lengths.sum()), lengths)
    numbers = np.empty((size, 0), np.float32)
    return ColumnBatch({"one": Column(ids), "some": bags}, numbers, ids.astype(np.float32))


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [0, 1, 2, 7, 64])
def test_the_parts_of_all_ranks_are_the_batch(world_size: int, size: int) -> None:
    batch = batch_of(size)

    def body(collective: Collective) -> tuple[ColumnBatch, np.ndarray]:
        ranks = Ranks(collective)
        part = ranks.part(batch)
        assert part.num_examples == size
        return part, ranks.gathered(part.labels * 2)

    results = run_ranks(world_size, body)
    joined = ColumnBatch.joined([part for part, _ in results])
    for name, column in batch.ids.items():
        np.testing.assert_array_equal(joined.ids[name].ids, column.ids)
        np.testing.assert_array_equal(joined.ids[name].counts, column.counts)
    sizes = [len(part) for part, _ in results]
    assert max(sizes) - min(sizes) <= 1
    for _, gathered in results:
        np.testing.assert_array_equal(gathered, batch.labels * 2)


def test_means_have_the_same_bits_on_all_ranks() -> None:
    values = np.random.default_rng(2).standard_normal((3, 1000))

    def body(collective: Collective) -> np.ndarray:
        return Ranks(collective).means([values[collective.rank]])[0]

    results = run_ranks(3, body)
    np.testing.assert_allclose(results[0], values.mean(0), rtol=1e-12)
    for each in results[1:]:
        assert each.tobytes() == results[0].tobytes()


@pytest.mark.parametrize("world_size", [1, 3])
def test_means_of_several_arrays_keep_shapes_and_dtypes(world_size: int) -> None:
    def body(collective: Collective) -> list[np.ndarray]:
        rank = collective.rank
        arrays = [np.full((2, 3), rank, np.float32), np.empty((0, 4)), np.array(rank + 0.5)]
        return Ranks(collective).means(arrays)

    for matrix, empty, number in run_ranks(world_size, body):
        assert (matrix.tolist(), matrix.dtype) == ([[(world_size - 1) / 2] * 3] * 2, np.float32)
        assert empty.shape == (0, 4)
        assert number == (world_size - 1) / 2 + 0.5


def test_counts_of_all_ranks_are_added_by_name() -> None:
    def body(collective: Collective) -> dict[str, int]:
        ranks = Ranks(collective)
        assert ranks.is_first is (collective.rank == 0)
        assert ranks.total({}) == {}
        return ranks.total({"user": collective.rank, "item": 2**40})

    assert run_ranks(3, body) == [{"user": 3, "item": 3 * 2**40}] * 3
