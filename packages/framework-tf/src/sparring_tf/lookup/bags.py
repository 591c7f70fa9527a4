"""Bags of ids from dense, ragged and sparse inputs, and the factors that combine their embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from sparring.errors import InvalidArgumentError
from sparring_tf.lookup.ids import validate_ids

__all__ = ["Bags", "parse_bags"]


@dataclass(frozen=True, slots=True)
class Bags:
    """b bags with n ids."""

    ids: Any
    """``(n,)`` int64, ordered by bag."""
    lengths: Any
    """``(b,)`` int64, number of ids per bag."""
    weights: Any | None
    """``(n,)``, or None if all weights are 1."""

    def scales(self, combiner: str, dtype: Any) -> Any | None:
        """Returns the factor of each embedding before a bag is summed: ``(n,)``, or None for 1.

        As in `tf.nn.embedding_lookup_sparse`, ``mean`` divides by the sum of the weights and
        ``sqrtn`` by the square root of the sum of their squares.
        """
        if self.weights is None:
            if combiner == "sum":
                return None
            divisors = tf.cast(self.lengths, dtype)
            divisors = divisors if combiner == "mean" else tf.sqrt(divisors)
            # The divisor of an empty bag is 0, and is not used.
            return tf.repeat(tf.math.divide_no_nan(tf.ones_like(divisors), divisors), self.lengths)
        weights = tf.cast(self.weights, dtype)
        if combiner == "sum":
            return weights
        positions = self.positions()
        num_bags = tf.size(self.lengths)
        summed = weights if combiner == "mean" else tf.square(weights)
        divisors = tf.math.unsorted_segment_sum(summed, positions, num_bags)
        divisors = divisors if combiner == "mean" else tf.sqrt(divisors)
        return tf.math.divide_no_nan(weights, tf.gather(divisors, positions))

    def positions(self) -> Any:
        """Returns the bag of each id: ``(n,)``."""
        return tf.repeat(tf.range(tf.size(self.lengths)), self.lengths)


def parse_bags(inputs: Any, weights: Any, what: str) -> Bags:
    """Converts a layer's inputs to bags.

    Args:
        inputs: dense ``(b,)``, in which each id is a bag, or ``(b, n)``; ragged ``(b, None)``; or sparse
            ``(b, m)``, in which the values of a row are a bag.
        weights: weights of the same kind and shape as `inputs`, or None.
        what: name of the ids in error messages.

    Raises:
        InvalidArgumentError: the ids have another rank or dtype, or the weights have another kind or
            shape. If the positions of weights and ids differ in a graph, TensorFlow raises its error.
    """
    ids = validate_ids(inputs, what)
    if weights is not None:
        weights = _as_tensor(weights)
        _check_weights(ids, weights, what)
    if isinstance(ids, tf.RaggedTensor):
        if ids.shape.rank != 2 or ids.ragged_rank != 1:
            raise _wrong_rank_error(ids, what)
        lengths = tf.cast(ids.row_lengths(), tf.int64)
        if weights is not None:
            weights = _check_positions(weights.values, weights.row_splits, ids.row_splits, what)
        return Bags(ids.values, lengths, weights)
    if isinstance(ids, tf.SparseTensor):
        if ids.shape.rank not in (2, None):
            raise _wrong_rank_error(ids, what)
        is_one_place = weights is not None and weights.indices is ids.indices
        ids = tf.sparse.reorder(ids)
        if weights is not None:
            ordered = tf.sparse.reorder(weights)
            positions = ids.indices if is_one_place else ordered.indices
            weights = _check_positions(ordered.values, positions, ids.indices, what)
        rows = ids.indices[:, 0]
        lengths = tf.math.unsorted_segment_sum(tf.ones_like(rows), rows, ids.dense_shape[0])
        return Bags(ids.values, lengths, weights)
    if ids.shape.rank not in (1, 2):
        raise _wrong_rank_error(ids, what)
    shape = tf.shape(ids, out_type=tf.int64)
    length = shape[1] if ids.shape.rank == 2 else tf.ones([], tf.int64)
    flat = None if weights is None else tf.reshape(weights, [-1])
    return Bags(tf.reshape(ids, [-1]), tf.fill(shape[:1], length), flat)


def _as_tensor(values: Any) -> Any:
    if isinstance(values, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        return values
    return tf.convert_to_tensor(values)


def _check_weights(ids: Any, weights: Any, what: str) -> None:
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    kind = next((each for each in kinds if isinstance(ids, each)), tf.Tensor)
    if not isinstance(weights, kind) or not ids.shape.is_compatible_with(weights.shape):
        raise InvalidArgumentError(
            f"weights of {what} must have the kind and shape of the ids, {kind.__name__} "
            f"{ids.shape}, found {type(weights).__name__} {weights.shape}"
        )
    if kind in kinds and not ids.values.shape.is_compatible_with(weights.values.shape):
        raise InvalidArgumentError(
            f"weights of {what} must be one per id, found {weights.values.shape[0]} weights "
            f"for {ids.values.shape[0]} ids; create them with ids.with_values(…)"
        )
    if not weights.dtype.is_floating:
        raise InvalidArgumentError(
            f"weights of {what} must be floating-point numbers, found dtype {weights.dtype.name}; cast "
            "them to float32"
        )


def _check_positions(weights: Any, positions: Any, id_positions: Any, what: str) -> Any:
    """Returns `weights` after checking that they have the same positions as the ids."""
    if positions is id_positions:
        return weights
    message = (
        f"weights of {what} must have the same positions as the ids, one weight per id; create them from "
        "the ids, for example with ids.with_values(…)"
    )
    positions, id_positions = tf.cast(positions, tf.int64), tf.cast(id_positions, tf.int64)
    is_same = tf.cond(
        tf.reduce_all(tf.equal(tf.shape(positions), tf.shape(id_positions))),
        lambda: tf.reduce_all(tf.equal(positions, id_positions)),
        lambda: tf.constant(False),
    )
    if tf.executing_eagerly():
        if not is_same:
            raise InvalidArgumentError(message)
        return weights
    with tf.control_dependencies([tf.debugging.Assert(is_same, [message])]):
        return tf.identity(weights)


def _wrong_rank_error(ids: Any, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"ids of {what} must be (b,), (b, n), ragged (b, None) or sparse (b, m), found shape "
        f"{ids.shape}"
    )
