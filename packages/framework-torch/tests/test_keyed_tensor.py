from __future__ import annotations

import pytest
import torch

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.keyed_tensor import KeyedTensor


def example() -> KeyedTensor:
    return KeyedTensor(["user", "item"], [3, 2], torch.arange(10.0).reshape(2, 5))


def test_each_feature_is_a_view_of_the_values() -> None:
    keyed = example()
    assert keyed["item"].tolist() == [[3, 4], [8, 9]]
    assert keyed["user"].shape == (2, 3)
    assert keyed["item"].data_ptr() == keyed.values()[:, 3:].data_ptr()
    assert keyed.length_per_key() == [3, 2]
    assert keyed.offset_per_key() == [0, 3, 5]
    assert keyed.key_dim() == 1
    assert {name: part.tolist() for name, part in keyed.to_dict().items()} == {
        "user": [[0, 1, 2], [5, 6, 7]],
        "item": [[3, 4], [8, 9]],
    }
    assert "item" in keyed
    assert "'item': (2, 2)" in repr(keyed.to("cpu"))


def test_from_tensor_list_joins() -> None:
    keyed = KeyedTensor.from_tensor_list(["a", "b"], [torch.ones(2, 1), torch.zeros(2, 3)])
    assert keyed.length_per_key() == [1, 3]
    assert keyed.values().tolist() == [[1, 0, 0, 0]] * 2


def test_regroup_picks_features_from_several() -> None:
    other = KeyedTensor(["context"], [1], torch.tensor([[7.0], [8.0]]))
    left, right = KeyedTensor.regroup([example(), other], [["context", "item"], ["user"]])
    assert left.tolist() == [[7, 3, 4], [8, 8, 9]]
    assert right.shape == (2, 3)
    named = KeyedTensor.regroup_as_dict([example(), other], [["context"]], ["side"])
    assert named["side"].tolist() == [[7], [8]]


def test_gradients_flow_through_a_feature() -> None:
    values = torch.zeros(2, 5, requires_grad=True)
    KeyedTensor(["user", "item"], [3, 2], values)["item"].sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [[0, 0, 0, 1, 1]] * 2


def test_invalid_input_is_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="did you mean 'user'"):
        example()["users"]
    with pytest.raises(InvalidArgumentError, match=r"must sum to .* found 4"):
        KeyedTensor(["a", "b"], [2, 2], torch.zeros(2, 5))
    with pytest.raises(InvalidArgumentError, match="one number per feature"):
        KeyedTensor(["a", "b"], [5], torch.zeros(2, 5))
    with pytest.raises(InvalidArgumentError, match="name each feature once"):
        KeyedTensor(["a", "a"], [2, 3], torch.zeros(2, 5))
    with pytest.raises(InvalidArgumentError, match="no feature 'x'"):
        KeyedTensor.regroup([example()], [["x"]])
    twice = KeyedTensor(["user"], [1], torch.zeros(2, 1))
    (item,) = KeyedTensor.regroup([example(), twice], [["item"]])
    assert item.tolist() == [[3, 4], [8, 9]]
    with pytest.raises(InvalidArgumentError, match="2 tensors contain it"):
        KeyedTensor.regroup([example(), twice], [["item", "user"]])
    with pytest.raises(InvalidArgumentError, match="one name per"):
        KeyedTensor.regroup_as_dict([example()], [["user"]], [])
