"""Initial values beyond the range of a dtype, invalid initializers and invalid dtypes are rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sparring.contracts.tables.initializers import (
    Constant,
    Initializer,
    Normal,
    TruncatedNormal,
    Uniform,
    Xavier,
)
from sparring.contracts.tables.table import DTYPES, TableConfig
from sparring.errors import InvalidArgumentError
from sparring.kernels import functions as kernels
from sparring.kernels.mixed_precision import read_embeddings


@pytest.mark.parametrize(
    ("dtype", "initializer"),
    [
        ("float16", Constant(70_000.0)),
        ("float16", Normal(0.0, 20_000.0)),
        ("float16", TruncatedNormal(65_000.0, 300.0)),
        ("bfloat16", Constant(3.4e38)),
        ("float32", Constant(1e300)),
        ("float32", Constant(-1e300)),
        ("float32", Uniform(-1e39, 0.0)),
        ("float32", Xavier(1e39)),
        ("float64", Uniform(-1e308, 1e308)),
        ("float64", Normal(1e308, 1e308)),
        ("float64", Xavier(1e308)),
    ],
    ids=str,
)
def test_initial_values_beyond_the_range_of_the_dtype_are_rejected(
    dtype: str, initializer: Initializer
) -> None:
    with pytest.raises(
        InvalidArgumentError, match=rf"table 'big'.*the largest {dtype}.*wider dtype"
    ):
        TableConfig("big", 2, dtype, initializer)


@pytest.mark.parametrize("dtype", DTYPES)
def test_initial_values_up_to_the_maximum_of_the_dtype_are_finite(dtype: str) -> None:
    known = {"float16": 65_504.0, "bfloat16": (2 - 2**-7) * 2.0**127, "int8": 127 * 448.0}
    largest = known.get(dtype)
    if largest is None:
        largest = float(np.finfo(dtype).max)
    half = largest / 2
    for initializer in (
        Constant(-largest),
        Uniform(-half, half),
        Normal(0.0, largest / 6.5),
        TruncatedNormal(0.0, half),
    ):
        table = TableConfig("t", 4, dtype, initializer)
        rows = read_embeddings(table, kernels.initial_rows(np.arange(10_000), table))
        assert np.isfinite(rows.astype(np.float64)).all()


@pytest.mark.parametrize(
    "wrong",
    [
        5,
        None,
        {"kind": "constant", "value": "x"},
        {"kind": "constant", "value": None},
        {"kind": "constant", "value": "3"},
        {"kind": "constant", "value": True},
        {"kind": "constant", "value": 10**400},
        {"kind": "constant", "value": float("nan")},
        {"kind": "constant", 3: 4},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_invalid_initializers_are_rejected(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="initializer"):
        TableConfig("t", 2, initializer=wrong)


@pytest.mark.parametrize(
    "wrong", [object(), None, {}, [("a", int)], int, ">f4"], ids=lambda wrong: type(wrong).__name__
)
def test_invalid_dtypes_are_rejected(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"dtype of table 't': must be one of .* found"):
        TableConfig("t", 2, dtype=wrong)
