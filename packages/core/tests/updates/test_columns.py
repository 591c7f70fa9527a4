"""Methods that do not couple columns update blocks of columns exactly like whole rows."""

from __future__ import annotations

import numpy as np
import pytest

from sparring.contracts.storage.column_block import ColumnBlock
from sparring.contracts.storage.updates import MethodChoice, UpdateMethod, UpdateRows
from sparring.contracts.tables.table import TableConfig
from sparring.updates.builtin import BUILTIN_METHODS, keras_method
from sparring.updates.resolve import parse_hyper

DIM, COUNT, STEPS = 20, 7, 3
KERAS = ("keras_sgd", "keras_momentum", "keras_adagrad", "keras_rmsprop", "keras_adam")
METHODS = [*(made() for made in BUILTIN_METHODS.values()), *map(keras_method, KERAS)]


def moved(method: UpdateMethod, dtype: str, block: ColumnBlock, **given: float) -> np.ndarray:
    """Embeddings and state of a block of columns after some steps on only this block."""
    random = np.random.default_rng(1)
    hyper = parse_hyper(method, {"lr": 0.1, **given})
    rows = random.normal(size=(COUNT, DIM)).astype(dtype)[:, block.begin : block.end]
    state = np.tile(method.initial_state(block.width, hyper, dtype), (COUNT, 1))
    whole = np.ascontiguousarray(np.concatenate([rows, state], axis=1))
    for step in range(1, STEPS + 1):
        gradients = random.normal(size=(COUNT, DIM)).astype(dtype)
        own = np.ascontiguousarray(gradients[:, block.begin : block.end])
        given_rows = UpdateRows(
            np.arange(COUNT), whole, whole[:, : block.width], whole[:, block.width :], own, step
        )
        method.update(given_rows, hyper)
    return whole


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", METHODS, ids=lambda each: each.name)
def test_a_method_declares_whether_columns_may_be_updated_separately(
    method: UpdateMethod, dtype: str
) -> None:
    width = method.state_width(DIM)
    if width % DIM:
        assert method.couples_columns
        return
    given = {"l21": 0.1} if method.name == "group_ftrl" else {}
    whole = moved(method, dtype, ColumnBlock(0, DIM), **given)
    joined = np.zeros_like(whole)
    table = TableConfig("t", DIM, dtype, state_width=width)
    # Widths with complete and partial SIMD vectors.
    for block in (ColumnBlock(0, 1), ColumnBlock(1, 4), ColumnBlock(4, 12), ColumnBlock(12, DIM)):
        block.put(table, joined, moved(method, dtype, block, **given))
    assert (joined.tobytes() != whole.tobytes()) == method.couples_columns


def test_norms_of_rows_couple_columns_of_any_method() -> None:
    adam = BUILTIN_METHODS["adam"]()
    assert not MethodChoice(adam, parse_hyper(adam, {"clip_value": 1.0}), 1).why_coupled
    found = MethodChoice(adam, parse_hyper(adam, {"clip_norm": 1.0}), 1).why_coupled
    assert "clip_norm=1.0 applies to whole rows" in found
    lamb = BUILTIN_METHODS["lamb"]()
    assert MethodChoice(lamb, parse_hyper(lamb, {}), 1).why_coupled


def test_methods_of_plugins_couple_columns_by_default() -> None:
    assert UpdateMethod.couples_columns
