from __future__ import annotations

import pytest
import torch

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.jagged_tensor import JaggedTensor
from sparring_torch.jagged.keyed_jagged_tensor import KeyedJaggedTensor

FEATURES = ["user_features", "item_features"]
VALUES = [11, 12, 21, 22, 23, 101, 102, 201]


def example(**more: object) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(
        keys=FEATURES,
        lengths=[2, 3, 1, 2],
        values=torch.Tensor(VALUES),
        **more,  # type: ignore[arg-type]
    )


def bags(jt: JaggedTensor) -> list[list[float]]:
    return [bag.tolist() for bag in jt.to_dense()]


def test_each_feature_has_its_bags() -> None:
    kjt = example()
    assert kjt.keys() == FEATURES
    assert kjt.stride() == 2
    assert bags(kjt["user_features"]) == [[11, 12], [21, 22, 23]]
    assert bags(kjt["item_features"]) == [[101], [102, 201]]
    assert kjt.length_per_key() == [5, 3]
    assert kjt.offset_per_key() == [0, 5, 8]
    assert kjt.lengths_offset_per_key() == [0, 2, 4]
    assert kjt.offsets().tolist() == [0, 2, 5, 6, 8]
    assert list(kjt.to_dict()) == FEATURES
    assert "user_features" in kjt
    assert len(kjt) == 2


def test_offsets_with_and_without_the_end() -> None:
    for offsets in ([0, 2, 5, 6], [0, 2, 5, 6, 8]):
        kjt = KeyedJaggedTensor(FEATURES, torch.Tensor(VALUES), offsets=offsets)
        assert kjt.lengths().tolist() == [2, 3, 1, 2]


def test_starts_with_an_empty_last_bag_are_accepted() -> None:
    # Four starts for two features of two examples: the 2 at the end is a start, not the end.
    kjt = KeyedJaggedTensor(["a", "b"], [7, 8], offsets=[0, 1, 2, 2])
    assert kjt.lengths().tolist() == [1, 1, 0, 0]


def test_split_permute_and_concat_move_whole_features() -> None:
    kjt = example(weights=[float(each) for each in range(8)])
    users, items = kjt.split([1, 1])
    assert users.keys() == ["user_features"]
    assert bags(items["item_features"]) == [[101], [102, 201]]
    assert items.weights().tolist() == [5, 6, 7]
    turned = kjt.permute([1, 0])
    assert turned.keys() == FEATURES[::-1]
    assert turned.values().tolist() == VALUES[5:] + VALUES[:5]
    assert turned.weights().tolist() == [5, 6, 7, 0, 1, 2, 3, 4]
    again = KeyedJaggedTensor.concat([users, items])
    assert again.values().tolist() == VALUES
    assert again.lengths().tolist() == [2, 3, 1, 2]
    assert kjt.permute([]).keys() == []


def test_round_trip_through_a_dict() -> None:
    again = KeyedJaggedTensor.from_jt_dict(example().to_dict())
    assert again.values().tolist() == VALUES
    assert again.lengths().tolist() == [2, 3, 1, 2]
    assert again.keys() == FEATURES


def test_sync_and_unsync_change_nothing_visible() -> None:
    kjt = KeyedJaggedTensor.from_offsets_sync(FEATURES, torch.Tensor(VALUES), [0, 2, 5, 6, 8])
    assert kjt.length_per_key_or_none() == [5, 3]
    assert kjt.unsync().length_per_key_or_none() is None
    assert kjt.length_per_key() == [5, 3]
    also = KeyedJaggedTensor.from_lengths_sync(FEATURES, torch.Tensor(VALUES), [2, 3, 1, 2])
    assert also.offsets_or_none() is not None


def test_empty_and_empty_like() -> None:
    assert KeyedJaggedTensor.empty().stride() == 0
    like = KeyedJaggedTensor.empty_like(example())
    assert like.keys() == []
    assert like.stride() == 2
    assert like.values().dtype == torch.float32


def test_a_batch_of_no_ids() -> None:
    kjt = KeyedJaggedTensor(["a", "b"], torch.empty(0, dtype=torch.int64), lengths=[0] * 6)
    assert kjt.stride() == 3
    assert bags(kjt["b"]) == [[], [], []]


def test_moving_keeps_everything() -> None:
    moved = example(weights=[1.0] * 8).to("cpu", dtype=torch.float64)
    assert moved.weights().dtype == torch.float64
    assert moved.values().tolist() == VALUES
    assert "'item_features'" in repr(moved)


def test_unknown_feature_is_named_with_a_suggestion() -> None:
    with pytest.raises(InvalidArgumentError, match="did you mean 'user_features'") as caught:
        example()["user_feature"]
    assert caught.value.details["feature"] == "user_feature"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"lengths": [2, 3, 3]}, "bags for 2 features, expected"),
        ({"lengths": [2, 3, 1, 2], "stride": 3}, "expected 3 per feature"),
        ({"lengths": [2, -3, 1, 8]}, "negative"),
        ({"lengths": [2, 3, 1, 1]}, "found 7"),
        ({"lengths": [2, 3, 1, 2], "weights": [1.0]}, "1 weights"),
    ],
)
def test_invalid_input_is_rejected(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        KeyedJaggedTensor(FEATURES, torch.Tensor(VALUES), **arguments)  # type: ignore[arg-type]


def test_values_of_wrong_rank_and_repeated_names_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match="one dimension"):
        KeyedJaggedTensor(["a"], torch.zeros(2, 2), lengths=[2])
    with pytest.raises(InvalidArgumentError, match="more than once"):
        KeyedJaggedTensor(["a", "a"], torch.zeros(2), lengths=[1, 1])
    with pytest.raises(InvalidArgumentError, match="split"):
        example().split([1, 2])
    with pytest.raises(InvalidArgumentError, match="permute"):
        example().permute([0, 0])
    with pytest.raises(InvalidArgumentError, match="equal numbers of bags"):
        KeyedJaggedTensor.from_jt_dict(
            {"a": JaggedTensor([1], lengths=[1]), "b": JaggedTensor([1], lengths=[1, 0])}
        )


def shared_bags(**more: object) -> KeyedJaggedTensor:
    """Two users, of whom the first has three of the four examples."""
    return KeyedJaggedTensor(
        FEATURES,
        torch.tensor([11, 12, 21, 101, 102, 201]),
        lengths=[2, 1, 1, 0, 2, 0],
        stride_per_key_per_rank=[[2], [4]],
        **more,  # type: ignore[arg-type]
    )


INVERSE = (FEATURES, torch.tensor([[0, 0, 1, 0], [0, 1, 2, 3]]))


def test_features_may_differ_in_their_number_of_bags() -> None:
    kjt = shared_bags(inverse_indices=INVERSE)
    assert kjt.variable_stride_per_key()
    assert kjt.stride() == 4
    assert kjt.stride_per_key() == [2, 4]
    assert kjt.stride_per_key_per_rank() == [[2], [4]]
    assert kjt.lengths_offset_per_key() == [0, 2, 6]
    assert kjt.length_per_key() == [3, 3]
    for each in (kjt, kjt.to("cpu"), KeyedJaggedTensor.concat(kjt.split([1, 1]))):
        assert bags(each["user_features"]) == [[11, 12], [21]]
        assert bags(each["item_features"]) == [[101], [], [102, 201], []]
        assert each.inverse_indices()[1].tolist() == INVERSE[1].tolist()
    swapped = kjt.permute([1, 0])
    assert swapped.stride_per_key() == [4, 2]
    assert swapped.inverse_indices()[1].tolist() == INVERSE[1].flip(0).tolist()
    assert bags(swapped["user_features"]) == [[11, 12], [21]]


def test_even_features_form_an_ordinary_batch() -> None:
    kjt = example(stride_per_key_per_rank=torch.tensor([[2], [2]]))
    assert not kjt.variable_stride_per_key()
    assert kjt.stride() == 2
    assert kjt.with_even_stride() is kjt
    assert bags(shared_bags().with_even_stride()["user_features"]) == [[11, 12], [21], [], []]


def test_wrong_strides_and_inverse_indices_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match=r"one list for each of 2 features.*\[2, 1\]"):
        example(stride_per_key_per_rank=[[2], [1]])
    with pytest.raises(InvalidArgumentError, match="for all features"):
        shared_bags(inverse_indices=(FEATURES[:1], torch.zeros(1, 4, dtype=torch.int64)))
    with pytest.raises(InvalidArgumentError, match="give inverse_indices="):
        shared_bags().inverse_indices()
    first, _ = shared_bags(inverse_indices=INVERSE).split([1, 1])
    _, second = shared_bags().split([1, 1])
    with pytest.raises(InvalidArgumentError, match="inverse_indices on 1 of 2"):
        KeyedJaggedTensor.concat([first, second])


def test_batches_are_trees_of_tensors() -> None:
    for kjt in (example(), shared_bags(), shared_bags(inverse_indices=INVERSE)):
        doubled = torch.utils._pytree.tree_map_only(torch.Tensor, lambda part: part * 2, kjt)
        assert doubled.values().tolist() == (kjt.values() * 2).tolist()
        assert doubled.keys() == kjt.keys()
        assert doubled.stride_per_key() == kjt.stride_per_key()
        again = torch.utils._pytree.tree_map(lambda part: part, kjt)
        assert repr(again) == repr(kjt)
        assert (again.inverse_indices_or_none() is None) == (kjt.inverse_indices_or_none() is None)
