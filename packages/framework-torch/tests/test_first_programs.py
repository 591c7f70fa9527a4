"""The first programs that a user writes, exactly as documented."""

from __future__ import annotations

import torch

from sparring_torch.jagged.jagged_tensor import JaggedTensor
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor

# fmt: off


def test_a_jagged_tensor_from_lengths_or_offsets() -> None:
    jt = JaggedTensor(lengths=[2, 3, 1], values=torch.Tensor([101, 102, 201, 202, 203, 301]))
    assert [bag.tolist() for bag in jt.to_dense()] == [[101, 102], [201, 202, 203], [301]]
    for offsets in ([0, 2, 5], [0, 2, 5, 6]):
        same = JaggedTensor(offsets=offsets, values=torch.Tensor([101, 102, 201, 202, 203, 301]))
        assert same.lengths().tolist() == jt.lengths().tolist()
        assert same.offsets().tolist() == jt.offsets().tolist() == [0, 2, 5, 6]


def test_a_keyed_jagged_tensor_of_two_features() -> None:
    kjt = KeyedJaggedTensor(keys=["user_features", "item_features"], lengths=[2, 3, 1, 2], values=torch.Tensor([11, 12, 21, 22, 23, 101, 102, 201]))  # noqa: E501 - as users write it
    users, items = kjt["user_features"], kjt["item_features"]
    assert [bag.tolist() for bag in users.to_dense()] == [[11, 12], [21, 22, 23]]
    assert [bag.tolist() for bag in items.to_dense()] == [[101], [102, 201]]
