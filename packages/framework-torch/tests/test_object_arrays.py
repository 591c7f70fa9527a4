"""Messages for arrays of objects that are not ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.ids import to_tensor


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (None, "None"),
        (1.5, "1.5"),
        ([3, None, 5], "None"),
        ([3, 4.0], "4.0"),
        ([[3, 4], [5, None]], "None"),
        ([True, 2], "True"),
    ],
)
def test_the_value_that_is_not_an_integer_is_named(values: Any, found: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"found {found} in an array of objects") as it:
        to_tensor(np.array(values, object), "ids")
    assert "bags" not in str(it.value)


def test_bags_of_different_lengths_still_get_their_advice() -> None:
    bags = np.empty(2, object)
    bags[:] = [[1, 2], [3]]
    with pytest.raises(InvalidArgumentError, match="bags of different lengths"):
        to_tensor(bags, "ids")


def test_integers_of_any_shape_are_accepted() -> None:
    assert to_tensor(np.array(7, object), "ids").tolist() == 7
    assert to_tensor(np.array([[7, 8]], object), "ids").tolist() == [[7, 8]]
    assert to_tensor(np.array([], object), "ids").dtype is torch.int64


def test_text_and_wide_integers_keep_their_advice() -> None:
    with pytest.raises(InvalidArgumentError, match="hash_strings"):
        to_tensor(np.array("a", object), "ids")
    for values in (2**63, [1, 2**63]):
        with pytest.raises(InvalidArgumentError, match="fit into int64"):
            to_tensor(np.array(values, object), "ids")
