"""Ids from what a layer was given: int64 tensors, and exactly what was meant."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sparring.errors import InvalidArgumentError, UnsupportedError

__all__ = ["whole_ids"]


def whole_ids(values: Any, what: str, *, is_sparse_ok: bool = True) -> Any:
    """`values` as a tensor of int64: dense, ragged or sparse as they are.

    Floats are refused: from 2**24 on, float32 does not tell neighbours apart, and Keras makes float32
    of what it is not told the dtype of.

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
        values = tf.convert_to_tensor(values)
    dtype = values.dtype
    if dtype == tf.int64:
        return values
    if dtype == tf.uint64 or not dtype.is_integer:
        raise InvalidArgumentError(
            f"ids of {what} must be int64, found dtype {dtype.name}; give tf.int64, and declare "
            "such an input as keras.Input(…, dtype='int64')",
            dtype=dtype.name,
        )
    return tf.cast(values, tf.int64)
