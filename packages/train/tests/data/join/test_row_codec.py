"""Encoded examples are decoded unchanged, in any order."""

from __future__ import annotations

import numpy as np
import pytest

from sparring_train.columns import Column, ColumnBatch, Feature, Schema
from sparring_train.data.join.row_codec import RowCodec


@pytest.mark.parametrize("has_weights", [False, True])
@pytest.mark.parametrize("is_matrix", [False, True])
def test_examples_are_decoded_unchanged(has_weights: bool, is_matrix: bool) -> None:
    random = np.random.default_rng(3)
    features = [Feature("user"), Feature("city", may_be_missing=not is_matrix)]
    ids = {
        "user": Column(random.integers(-(2**63), 2**63 - 1, 50)),
        "city": Column(random.integers(0, 9, 50)),
    }
    if not is_matrix:
        features.append(Feature("tags", is_list=True))
        for name, most in (("city", 2), ("tags", 4)):
            lengths = random.integers(0, most, 50)
            ids[name] = Column(random.integers(0, 9, lengths.sum()), lengths)
    numbers = random.normal(size=(50, 3)).astype(np.float32)
    weights = random.gamma(2, size=50).astype(np.float32) if has_weights else None
    batch = ColumnBatch(ids, numbers, None, weights)
    codec = RowCodec(Schema(tuple(features), ("a", "b", "c")), has_weights=has_weights)
    order = random.permutation(50)
    rows = codec.encode(batch)
    found, expected = codec.decode([rows[at] for at in order]), batch.take(order)
    for name, column in expected.ids.items():
        assert found.ids[name].ids.tolist() == column.ids.tolist()
        assert found.ids[name].counts.tolist() == column.counts.tolist()
    assert found.numbers.tolist() == expected.numbers.tolist()
    if has_weights:
        assert found.weights is not None
        assert expected.weights is not None
        assert found.weights.tolist() == expected.weights.tolist()
    assert codec.encode(batch.take(slice(0, 0))) == []
