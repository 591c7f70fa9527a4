"""`DatasetTests`: tests every promise of a kind of data of `sparring train`.

Use:
    class TestMyData(DatasetTests):
        @pytest.fixture
        def open_dataset(self):
            return lambda request: MyDataset(section, request)

It reads batches in the format of ``sparring_train.data`` without importing that package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from sparring_testing.guard import find_violations

__all__ = ["DatasetRequest", "DatasetTests"]


@dataclass(frozen=True, slots=True)
class DatasetRequest:
    """Fields of `sparring_train.data.dataset.OpenRequest` that the kit varies."""

    seed: int = 3
    rank: int = 0
    world_size: int = 1


OpenDataset = Callable[[DatasetRequest], Any]


class DatasetTests:
    """Tests a data set of a few hundred examples and more than one step per epoch."""

    @pytest.fixture
    def open_dataset(self) -> OpenDataset:
        """Required: a callable that opens the data set of one rank."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the fixture open_dataset: a callable "
            "(request: DatasetRequest) that opens the data set"
        )

    @pytest.fixture
    def num_examples(self) -> int | None:
        """Total number of examples in all parts, or None if it is unknown."""
        return None

    @pytest.fixture
    def has_validation(self) -> bool:
        """Whether the data set has validation examples."""
        return False

    def test_no_standard_test_is_removed_or_overridden_without_a_reason(self) -> None:
        violations = find_violations(type(self), DatasetTests)
        assert not violations, "\n".join(violations)

    def test_batches_match_the_schema(
        self, open_dataset: OpenDataset, has_validation: bool
    ) -> None:
        data = open_dataset(DatasetRequest())
        for part in (data.batches(0), *_held_out_examples(data, has_validation)):
            for batch in part:
                _check_batch(batch, data.schema)

    def test_every_example_occurs_once(
        self, open_dataset: OpenDataset, num_examples: int | None, has_validation: bool
    ) -> None:
        data = open_dataset(DatasetRequest())
        train = _examples(data.batches(0))
        held_out = [_examples(each) for each in _held_out_examples(data, has_validation)]
        assert train, "there are no training examples"
        assert held_out[0], "there are no test examples"
        assert held_out[-1], "there are no validation examples"
        if num_examples is not None:
            assert len(train) + sum(map(len, held_out)) == num_examples

    def test_every_epoch_has_the_same_examples(self, open_dataset: OpenDataset) -> None:
        data = open_dataset(DatasetRequest())
        first, second = (Counter(_examples(data.batches(epoch))) for epoch in (0, 1))
        assert first == second

    def test_the_seed_repeats_every_order(self, open_dataset: OpenDataset) -> None:
        first, second = (open_dataset(DatasetRequest()) for _ in range(2))
        for epoch in (0, 1):
            assert _examples(first.batches(epoch)) == _examples(second.batches(epoch))
        assert _examples(first.test_batches()) == _examples(second.test_batches())

    def test_the_test_part_has_one_order(
        self, open_dataset: OpenDataset, has_validation: bool
    ) -> None:
        data = open_dataset(DatasetRequest())
        first, second = (_held_out_examples(data, has_validation) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            assert _examples(one) == _examples(other)

    def test_steps_per_epoch_is_the_number_of_batches(self, open_dataset: OpenDataset) -> None:
        data = open_dataset(DatasetRequest())
        if data.steps_per_epoch is not None:
            assert len(list(data.batches(0))) == data.steps_per_epoch

    @pytest.mark.parametrize("world_size", [2, 3, 8])
    def test_a_step_has_the_same_examples_at_every_number_of_ranks(
        self, open_dataset: OpenDataset, world_size: int, has_validation: bool
    ) -> None:
        alone = open_dataset(DatasetRequest())
        ranks = [open_dataset(DatasetRequest(3, each, world_size)) for each in range(world_size)]
        for epoch in (0, 1):
            steps = [_examples([batch]) for batch in alone.batches(epoch)]
            assert _steps_of([each.batches(epoch) for each in ranks]) == steps
        held_out = [_held_out_examples(each, has_validation) for each in ranks]
        for number, part in enumerate(_held_out_examples(alone, has_validation)):
            steps = [_examples([batch]) for batch in part]
            assert _steps_of([each[number] for each in held_out]) == steps

    def test_labels_are_in_the_declared_range(self, open_dataset: OpenDataset) -> None:
        data = open_dataset(DatasetRequest())
        if data.label_range is None:
            return
        labels = np.concatenate([batch.labels for batch in data.batches(0)])
        assert data.label_range.minimum == labels.min()
        assert data.label_range.maximum == labels.max()
        assert np.isclose(data.label_range.mean, labels.mean(dtype=np.float64), rtol=1e-5)


def _held_out_examples(data: Any, has_validation: bool) -> list[Iterable[Any]]:
    """Returns the batches of the test part and, if there is one, of the validation part."""
    return [data.test_batches(), *([data.validation_batches()] if has_validation else [])]


def _check_batch(batch: Any, schema: Any) -> None:
    assert set(batch.ids) == {feature.name for feature in schema.features}
    for feature in schema.features:
        column = batch.ids[feature.name]
        counts = column.counts
        assert column.ids.dtype == np.int64, (
            f"{feature.name}: ids must be int64, not {column.ids.dtype}"
        )
        assert len(counts) == len(batch), f"{feature.name}: {len(counts)} of {len(batch)} examples"
        assert counts.sum() == len(column.ids), f"{feature.name}: counts and number of ids disagree"
        assert feature.is_list or (counts <= 1).all(), f"{feature.name}: more than one id"
        may_be_none = feature.is_list or feature.may_be_missing
        assert may_be_none or (counts == 1).all(), f"{feature.name}: an id is missing"
    assert batch.numbers.dtype == np.float32
    assert batch.numbers.shape == (len(batch), len(schema.numbers))
    assert np.isfinite(batch.numbers).all()
    assert (batch.labels is None) == (schema.label is None)
    if batch.labels is not None:
        assert batch.labels.shape == (len(batch),)
        assert np.isfinite(batch.labels).all()
        assert schema.label != "binary" or np.isin(batch.labels, [0, 1]).all()
    assert (batch.weights is not None) == schema.has_weights
    if batch.weights is not None:
        assert (np.isfinite(batch.weights) & (batch.weights >= 0)).all()


def _examples(batches: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Returns the examples, in order, as tuples that can be compared."""
    found: list[tuple[Any, ...]] = []
    for batch in batches:
        columns: list[Any] = [map(bytes, batch.numbers)]
        for name in sorted(batch.ids):
            column = batch.ids[name]
            ends = np.cumsum(column.counts)
            parts = zip(ends - column.counts, ends, strict=True)
            columns.append([bytes(column.ids[begin:end]) for begin, end in parts])
        columns += [each.tolist() for each in (batch.labels, batch.weights) if each is not None]
        found += zip(*columns, strict=True)
    return found


def _steps_of(ranks: list[Iterable[Any]]) -> list[list[tuple[Any, ...]]]:
    """Returns the examples of each step, joined over all ranks."""
    steps = []
    # With strict, an error means that ranks return different numbers of batches.
    for parts in zip(*ranks, strict=True):
        totals = {batch.total for batch in parts}
        assert len(totals) == 1, f"ranks report different totals for a step: {totals}"
        if totals == {None}:
            whole = [_examples([batch]) for batch in parts]
            assert all(each == whole[0] for each in whole), "ranks return different whole batches"
            steps.append(whole[0])
            continue
        steps.append([example for batch in parts for example in _examples([batch])])
        assert len(steps[-1]) == totals.pop(), "the parts of the ranks do not add up to the total"
    return steps
