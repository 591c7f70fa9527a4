"""Ids from what a layer was given: int64 tensors, and exactly what was meant."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any

import tensorflow as tf

from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_tf.lookup.cast_inputs import find_float_input

__all__ = ["validate_id", "validate_ids"]

_WHOLE_IN_FLOAT32 = 2**24


def validate_id(given: int | None, what: str) -> int | None:
    """An id that a setting names, or None.

    Args:
        given: of the setting.
        what: how the message names it.

    Raises:
        InvalidArgumentError: it is no whole number of 64 bits.
    """
    if given is None:
        return None
    is_whole = isinstance(given, Integral) and not isinstance(given, bool)
    if not is_whole or not -(2**63) <= given < 2**63:
        raise InvalidArgumentError(
            f"{what} must be an id, a whole number of 64 bits, or None; found {given!r}"
        )
    return int(given)


def validate_ids(values: Any, what: str, *, is_sparse_ok: bool = True) -> Any:
    """`values` as a tensor of int64: dense, ragged or sparse as they are.

    Floats are refused: from 2**24 on, float32 does not tell neighbors apart, and Keras makes float32
    of what it is not told the dtype of.

    So are those that a functional model has cast to int64 already, for an input that was declared so.
    Of other casts from floats is warned, where a graph shows them.

    Args:
        values: of an integer dtype.
        what: how the message names them, as ``table 'user'``.
        is_sparse_ok: they may be a `tf.SparseTensor`.

    Raises:
        InvalidArgumentError: they are of another dtype.
        UnsupportedError: they are sparse, and may not be.
    """
    if isinstance(values, tf.SparseTensor) and not is_sparse_ok:
        raise UnsupportedError(
            f"ids of {what} are a SparseTensor, and one embedding was asked for each of them; give "
            "dense or ragged ids, or pool them with EmbeddingBag"
        )
    if not isinstance(values, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        try:
            values = tf.convert_to_tensor(values)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"ids of {what} must be an int64 tensor, found {type(values).__name__}: {error}"
            ) from error
    dtype = values.dtype
    if dtype == tf.int64:
        floats = find_float_input(values)
        if floats is not None:
            raise _wrong_dtype_error(floats, what)
        if not tf.executing_eagerly():
            _warn_of_floats(values, what)
        return values
    if dtype == tf.uint64 or not dtype.is_integer:
        raise _wrong_dtype_error(dtype.name, what)
    return tf.cast(values, tf.int64)


def _wrong_dtype_error(dtype: str, what: str) -> InvalidArgumentError:
    fix = "feed int64, and declare such an input as keras.Input(…, dtype='int64')"
    if dtype == "string":
        fix = (
            "convert the strings before they become tensors, with sparring.hash_strings(strings), as "
            f"`sparring serve` and its clients do; {fix}"
        )
    return InvalidArgumentError(
        f"ids of {what} must be int64, found dtype {dtype}; {fix}",
        dtype=dtype,
    )


def _warn_of_floats(ids: Any, what: str) -> None:
    """Somebody may cast what was rounded, and somebody what was not."""
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.flat_values
    elif isinstance(ids, tf.SparseTensor):
        ids = ids.values
    # Tensors that a graph takes from outside come of no op.
    made_by = getattr(ids, "op", None)
    if made_by is not None and made_by.type == "Cast" and made_by.inputs[0].dtype.is_floating:
        found = made_by.inputs[0].dtype.name
        warnings.warn(
            f"ids of {what} come as {found} and are cast to int64: fractions are cut off, and float32 "
            f"has no odd numbers beyond {_WHOLE_IN_FLOAT32:,}; feed int64",
            stacklevel=2,
        )
