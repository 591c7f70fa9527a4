"""Quantized rows: sizes, errors, and stored rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import sparring_packed
from sparring import TableConfig
from sparring.errors import InvalidArgumentError, UnknownTableError

SHARES = {"fp32": 1.0, "fp16": 0.51, "bf16": 0.51, "int8": 0.27, "int4": 0.15}


@pytest.mark.parametrize("dtype", SHARES)
def test_rows_have_their_size_and_error(new_training: Any, dtype: str) -> None:
    training = new_training(TableConfig("item", dim=64))
    ids = np.arange(800)
    training.save(training.draw(ids, 0))
    written = training.publish(quantize={"item": dtype})
    with sparring_packed.open(training.served) as tables:
        table = tables.tables["item"]
        assert table.dtype == dtype
        assert table.row_bytes <= SHARES[dtype] * 256
        rows, stored = tables.lookup("item", ids), tables.pull({"item": ids}, dtype="stored")
    expected = training.expected(ids)
    error = np.abs(rows.astype(np.float64) - expected)
    spread = expected.max(1, keepdims=True) - expected.min(1, keepdims=True)
    most = {
        "fp32": 0 * spread,
        "fp16": 2.0**-11 * np.abs(expected) + 2.0**-25,
        "bf16": 2.0**-8 * np.abs(expected),
        # Half a quantization step, plus the rounding of scale and bias to float16.
        "int8": 0.5 * (spread / 255) * 1.01,
        "int4": 0.6 * spread,
    }[dtype]
    assert (error <= most).all()
    # For the whole table, the search of int4 reduces the error of the plain range.
    relative = np.sqrt((error**2).sum() / (expected.astype(np.float64) ** 2).sum())
    assert relative == pytest.approx(written.relative_error["item"], rel=1e-5, abs=1e-12)
    assert relative <= {"fp32": 0, "fp16": 3e-4, "bf16": 3e-3, "int8": 6e-3, "int4": 0.088}[dtype]
    assert stored.rows["item"].shape == (800, table.row_bytes)


def test_stored_int8_rows_are_levels_scale_and_bias(new_training: Any) -> None:
    training = new_training(TableConfig("item", dim=64))
    training.save(training.draw([5], 0))
    training.publish(quantize={"item": "int8"})
    with sparring_packed.open(training.served) as tables:
        stored = tables.pull({"item": [5, 6]}, dtype="stored").rows["item"]
        rows = tables.lookup("item", [5])
        # An id without a row has the quantized values of its initial value.
        zeros = tables.pull({"item": [6]}, dtype="stored", missing="zeros").rows["item"]
        initial = tables.lookup("item", [6])
    scale, bias = stored[:, 64:].copy().view(np.float16).astype(np.float64).T
    decoded = stored[:, :64] * scale[:, None] + bias[:, None]
    assert (decoded[0].astype(np.float32) == rows[0]).all()
    assert np.abs(decoded[1] - initial[0]).max() <= 0.51 * scale[1]
    assert not zeros.any()


def test_stored_int4_rows_have_the_even_element_in_the_low_half(new_training: Any) -> None:
    training = new_training(TableConfig("item", dim=5))
    training.save({1: np.array([0, 15, 3, 7, 9], np.float32)})
    training.publish(quantize={"item": "int4"})
    with sparring_packed.open(training.served) as tables:
        (stored,) = tables.pull({"item": [1]}, dtype="stored").rows["item"]
        assert tables.lookup("item", [1]).tolist() == [[0, 15, 3, 7, 9]]
    assert stored[:3].tolist() == [0xF0, 0x73, 0x09]


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize(
    "row",
    [[0.0] * 4, [1.5] * 4, [-3.0, -3.0, -3.0, 2.0], [1e-8, 0, 0, 0], [6e4, -6e4, 0, 1], [-0.0] * 4],
    ids=str,
)
def test_unusual_rows_are_represented(new_training: Any, dtype: str, row: list[float]) -> None:
    training = new_training(TableConfig("item", dim=4))
    training.save({1: np.array(row, np.float32)})
    training.publish(quantize={"item": dtype})
    with sparring_packed.open(training.served) as tables:
        (found,) = tables.lookup("item", [1])
    steps = 255 if dtype == "int8" else 15
    assert np.abs(found - row).max() <= 1.01 * np.ptp(row) / steps + 6e-8


def test_rows_that_a_dtype_cannot_represent_are_rejected(new_training: Any) -> None:
    training = new_training(TableConfig("item", dim=2))
    training.save({7: np.array([7e4, 0], np.float32)})
    for dtype in ("fp16", "int8", "int4"):
        with pytest.raises(InvalidArgumentError, match=f"embedding of id 7 .*{dtype} cannot"):
            training.publish(quantize={"item": dtype})
    with pytest.raises(
        InvalidArgumentError, match="cannot be stored as 'int2'; choose one of fp32"
    ):
        training.publish(quantize={"item": "int2"})
    with pytest.raises(UnknownTableError, match="has no table 'film'; it has item"):
        training.publish(quantize={"film": "int8"})
    training.publish(quantize={"item": "bf16"})


def test_a_table_of_float64_is_stored_as_specified(new_training: Any) -> None:
    training = new_training(TableConfig("item", dim=2, dtype="float64"))
    training.save({7: np.array([0.1, 3], np.float64)})
    with pytest.raises(InvalidArgumentError, match="add 'item': 'fp32' to quantize"):
        training.publish()
    training.publish(quantize={"item": "fp32"})
    with sparring_packed.open(training.served) as tables:
        assert (tables.lookup("item", [7]) == np.float32([[0.1, 3]])).all()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_base_and_delta_round_equally(new_training: Any, dtype: str) -> None:
    training = new_training(TableConfig("item", dim=33))
    training.save(training.draw(np.arange(50), 0))
    training.publish(quantize={"item": dtype})
    base = training.served_url()
    tables = sparring_packed.open(base)
    before = tables.lookup("item", np.arange(50))
    training.save(dict(training.rows))
    training.publish(base=base)
    assert tables.refresh(training.served)
    assert tables.tables["item"].dtype == dtype
    assert (tables.lookup("item", np.arange(50)) == before).all()


@pytest.mark.parametrize("dim", [1, 7, 64])
@pytest.mark.parametrize("dtype", SHARES)
def test_stored_rows_are_widened_to_the_bits_of_a_lookup(
    new_training: Any, dtype: str, dim: int
) -> None:
    training = new_training(TableConfig("item", dim=dim))
    ids = np.arange(600)
    training.save(training.draw(ids, 0))
    training.publish(quantize={"item": dtype})
    with sparring_packed.open(training.served) as tables:
        stored = tables.pull({"item": ids}, dtype="stored").rows["item"]
        rows = tables.lookup("item", ids)
    out = np.full((600, dim), np.nan, np.float32)
    sparring_packed.widen_rows(stored.data.cast("B"), dtype, out)
    assert np.array_equal(out, rows)
    sparring_packed.widen_rows(b"", dtype, out[:0])


def test_bytes_that_are_not_rows_are_not_widened() -> None:
    out = np.zeros((3, 4), np.float32)
    with pytest.raises(
        InvalidArgumentError, match="3 rows of dim 4 as int8 have 8 bytes each; found 25"
    ):
        sparring_packed.widen_rows(bytes(25), "int8", out)
    with pytest.raises(InvalidArgumentError, match=r"dtype must be one of fp32, .*found 'fp8'"):
        sparring_packed.widen_rows(bytes(24), "fp8", out)
    with pytest.raises(InvalidArgumentError, match="C-contiguous"):
        sparring_packed.widen_rows(bytes(24), "int8", out.T)
