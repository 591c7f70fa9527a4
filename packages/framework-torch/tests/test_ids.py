from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparring.errors import InvalidArgumentError
from sparring_torch.jagged.ids import to_ids, to_integer_ids


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_int64_is_unchanged(numbers: list[int]) -> None:
    assert to_ids(torch.tensor(numbers, dtype=torch.int64), "x").tolist() == numbers


@given(st.lists(st.integers(-(2**24) + 1, 2**24 - 1)))
def test_integral_floats_are_exact(numbers: list[int]) -> None:
    for dtype in (torch.float32, torch.float64):
        assert to_ids(torch.tensor(numbers, dtype=dtype), "x").tolist() == numbers


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, torch.uint32])
def test_smaller_integers_are_widened(dtype: torch.dtype) -> None:
    ids = to_ids(torch.tensor([1, 2], dtype=dtype), "x")
    assert ids.dtype == torch.int64
    assert ids.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("value", "dtype", "says"),
    [
        (1.5, torch.float32, "not a whole number"),
        (float("nan"), torch.float32, "not a whole number"),
        (float("inf"), torch.float64, "not a whole number"),
        (2.0**24 + 1, torch.float32, "rounds integers"),
        (-(2.0**53) - 1, torch.float64, "rounds integers"),
        (2.0**11 + 1, torch.float16, "rounds integers"),
    ],
)
def test_inexact_floats_are_rejected(value: float, dtype: torch.dtype, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says) as caught:
        to_ids(torch.tensor([0.0, value], dtype=dtype), "feature 'user'")
    assert "feature 'user'" in str(caught.value)
    assert caught.value.details["position"] == 1


def test_other_dtypes_and_ranks_are_rejected() -> None:
    with pytest.raises(InvalidArgumentError, match=r"found dtype torch\.bool"):
        to_ids(torch.tensor([True]), "x")
    with pytest.raises(InvalidArgumentError, match="one dimension"):
        to_ids(torch.zeros(2, 2), "x")
    assert to_integer_ids(torch.zeros(2, 2), "x").shape == (2, 2)
