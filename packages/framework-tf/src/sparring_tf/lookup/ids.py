"""Converts the inputs of layers to int64 tensors, and rejects ids that may have been rounded."""

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
    """Validates an id in a setting.

    Args:
        given: the id, or None.
        what: name of the setting in error messages.

    Raises:
        InvalidArgumentError: `given` is not a 64-bit integer.
    """
    if given is None:
        return None
    is_whole = isinstance(given, Integral) and not isinstance(given, bool)
    if not is_whole or not -(2**63) <= given < 2**63:
        raise InvalidArgumentError(
            f"{what} must be an id, a 64-bit integer, or None; found {given!r}"
        )
    return int(given)


def validate_ids(values: Any, what: str, *, is_sparse_ok: bool = True) -> Any:
    """Returns `values` as an int64 tensor: dense, ragged or sparse, like the input.

    Floats are rejected, because float32 cannot represent all integers from 2**24 on, and Keras converts
    inputs without a dtype to float32. This includes floats that a functional model has already cast to
    int64. Other casts from floats that are visible in a graph cause a warning.

    Args:
        values: values of an integer dtype.
        what: name of the ids in error messages, for example ``table 'user'``.
        is_sparse_ok: whether a `tf.SparseTensor` is accepted.

    Raises:
        InvalidArgumentError: the values have the wrong dtype.
        UnsupportedError: the values are sparse, but `is_sparse_ok` is False.
    """
    if isinstance(values, tf.SparseTensor) and not is_sparse_ok:
        raise UnsupportedError(
            f"ids of {what} are a SparseTensor, but a lookup of one embedding per id requires dense or "
            "ragged ids; convert them, or pool them with EmbeddingBag"
        )
    if not isinstance(values, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        try:
            values = tf.convert_to_tensor(values)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"ids of {what} must be an int64 tensor, found {type(values).__name__}, which TensorFlow "
                f"cannot convert: {error}; pass integers"
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
    fix = "pass int64, and declare such an input as keras.Input(…, dtype='int64')"
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
    """Warns if ids were cast from floats, which may have been rounded before."""
    if isinstance(ids, tf.RaggedTensor):
        ids = ids.flat_values
    elif isinstance(ids, tf.SparseTensor):
        ids = ids.values
    # Tensors that a graph captures have no op.
    made_by = getattr(ids, "op", None)
    if made_by is not None and made_by.type == "Cast" and made_by.inputs[0].dtype.is_floating:
        found = made_by.inputs[0].dtype.name
        warnings.warn(
            f"ids of {what} come as {found} and are cast to int64: fractions are truncated, and float32 "
            f"cannot represent odd numbers above {_WHOLE_IN_FLOAT32:,}; pass int64",
            stacklevel=2,
        )
