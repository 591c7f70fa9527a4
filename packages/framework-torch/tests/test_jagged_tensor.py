from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.jagged_tensor import JaggedTensor

VALUES = [101, 102, 201, 202, 203, 301]


@pytest.mark.parametrize(
    "description",
    [
        {"lengths": [2, 3, 1]},
        {"offsets": [0, 2, 5]},
        {"offsets": [0, 2, 5, 6]},
        {"lengths": torch.tensor([2, 3, 1], dtype=torch.int32)},
        {"offsets": torch.tensor([0, 2, 5, 6])},
        {"lengths": torch.tensor([2.0, 3.0, 1.0])},
        {"lengths": [2, 3, 1], "offsets": [0, 2, 5]},
    ],
)
def test_lengths_and_offsets_are_equivalent(description: dict[str, object]) -> None:
    jt = JaggedTensor(values=torch.Tensor(VALUES), **description)  # type: ignore[arg-type]
    assert jt.lengths().tolist() == [2, 3, 1]
    assert jt.offsets().tolist() == [0, 2, 5, 6]
    assert [bag.tolist() for bag in jt.to_dense()] == [[101, 102], [201, 202, 203], [301]]


def test_trailing_empty_bag_is_kept() -> None:
    assert JaggedTensor([1, 2], offsets=[0, 2, 2]).lengths().tolist() == [2, 0]
    assert JaggedTensor([1, 2], lengths=[2, 0, 0]).offsets().tolist() == [0, 2, 2, 2]


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4), max_size=6))
def test_dense_round_trip(bags: list[list[int]]) -> None:
    flat = [each for bag in bags for each in bag]
    jt = JaggedTensor(torch.tensor(flat, dtype=torch.int64), lengths=[len(bag) for bag in bags])
    assert [bag.tolist() for bag in jt.to_dense()] == bags
    if bags:
        again = JaggedTensor.from_dense(jt.to_dense())
        assert again.values().tolist() == flat
        padded = jt.to_padded_dense(3, padding_value=-7)
        assert padded.tolist() == [(bag + [-7] * 3)[:3] for bag in bags]
        longest = max(len(bag) for bag in bags)
        whole = JaggedTensor.from_dense_lengths(jt.to_padded_dense(longest), jt.lengths())
        assert whole.values().tolist() == flat


def test_padding_of_embeddings_and_weights() -> None:
    values = torch.arange(6.0).reshape(3, 2)
    jt = JaggedTensor(values, weights=[1.0, 2.0, 3.0], lengths=[1, 0, 2])
    assert jt.to_padded_dense().tolist() == [
        [[0, 1], [0, 0]],
        [[0, 0], [0, 0]],
        [[2, 3], [4, 5]],
    ]
    weights = jt.to_padded_dense_weights(1)
    assert weights is not None
    assert weights.tolist() == [[1], [0], [2]]
    dense = jt.to_dense_weights()
    assert dense is not None
    assert [each.tolist() for each in dense] == [[1.0], [], [2.0, 3.0]]


def test_empty_has_no_bags() -> None:
    jt = JaggedTensor.empty(is_weighted=True, values_dtype=torch.int64)
    assert jt.lengths().tolist() == []
    assert jt.offsets().tolist() == [0]
    assert jt.to_padded_dense().shape == (0, 0)
    assert jt.weights().numel() == 0


def test_moving_keeps_everything() -> None:
    jt = JaggedTensor([1, 2, 3], weights=[0.5, 1.0, 2.0], offsets=[0, 1, 3])
    moved = jt.to("cpu")
    assert moved.values().tolist() == [1, 2, 3]
    assert moved.weights().tolist() == [0.5, 1.0, 2.0]
    assert moved.lengths().tolist() == [1, 2]
    assert "[1], [2, 3]" in repr(moved)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"lengths": [2, -1, 5]}, "negative"),
        ({"lengths": [2, 3]}, "found 5"),
        ({"lengths": [[2, 3], [1, 0]]}, "one dimension"),
        ({"lengths": [2.5, 3.5]}, "must be integers"),
        ({"offsets": [0, 4, 2]}, "must not decrease"),
        ({"offsets": [1, 2]}, "start at 0"),
        ({"offsets": [0, 9]}, "found 9"),
        ({"lengths": [2, 3, 1], "offsets": [0, 1]}, "disagree"),
        ({"lengths": [6], "weights": [1.0]}, "1 weights for 6 values"),
        ({}, "lengths or offsets"),
    ],
)
def test_invalid_input_is_rejected(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        JaggedTensor(values=torch.Tensor(VALUES), **arguments)  # type: ignore[arg-type]


def test_a_scalar_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="scalar"):
        JaggedTensor(torch.tensor(3), lengths=[1])


def test_missing_weights_are_reported() -> None:
    jt = JaggedTensor([1], lengths=[1])
    assert jt.weights_or_none() is None
    with pytest.raises(InvalidArgumentError, match=r"weights: this .* has none"):
        jt.weights()
