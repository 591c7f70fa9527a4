"""Kernels reject invalid arrays, and arrays that cannot be used in place, without side effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError
from sparring.kernels import functions as kernels

RAGGED: Any = [[1.0], [2.0, 3.0]]
ROWS: Any = [[1.0, 2.0]]
SPEC = kernels.initializer_spec(TableConfig("t", 2))


def rows() -> Any:
    return np.ones((1, 2), np.float32)


MISSING: Any = np.zeros(1, np.bool_)
NO_SPEC: Any = 5
NO_NUMBER: Any = 1.5


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: kernels.initialize(ROWS, [1], MISSING, SPEC), "rows must be.*found list"),
        (lambda: kernels.initialize(rows(), [1], ROWS, SPEC), "found must be.*found list"),
        (lambda: kernels.initialize(rows(), [1], MISSING, SPEC, ROWS), "state must be.*found list"),
        (lambda: kernels.initialize(rows(), [1], MISSING, NO_SPEC), "InitializerSpec.*found int"),
        (lambda: kernels.initialize(rows(), RAGGED, MISSING, SPEC), "keys must be.*found list"),
        (lambda: kernels.gather(rows(), [0], out=ROWS), "out must be.*found list"),
        (lambda: kernels.gather(RAGGED, [0]), "rows must be an array.*found list"),
        (lambda: kernels.pool(rows(), [0], [0, 1], weights=RAGGED), "weights must be.*found list"),
        (lambda: kernels.decode(ROWS), "rows must be.*found list"),
        (lambda: kernels.encode(rows(), ROWS), "out must be.*found list"),
        (lambda: kernels.route([1], [0] * 4096, NO_NUMBER), "world_size.*found 1.5"),
        (lambda: kernels.route([1], ["a"] * 4096, 1), "owners must be int64, found dtype <U1"),
        (lambda: kernels.dedup(RAGGED), "ids must be an array.*found list"),
        (lambda: kernels.is_finite(RAGGED), "values must be an array.*found list"),
    ],
)
def test_wrong_kinds_of_input_are_rejected_by_name(call: Callable[[], object], found: str) -> None:
    with pytest.raises(InvalidArgumentError, match=found):
        call()


def test_read_only_rows_are_not_initialized() -> None:
    read_only = rows()
    read_only.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="read-only"):
        kernels.initialize(read_only, [1], MISSING, SPEC)
    assert (read_only == 1).all()
