"""The ops of ``native/lookup_ops.cc`` and their gradients.

The gradient of a lookup is one gradient per id, as `tf.IndexedSlices` of the layer's anchor.
Therefore Keras can process it like any gradient, with tapes, loss scaling and clipping by value.
The lookup itself need not be stored.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sparring.errors import UnsupportedError
from sparring_tf.op_library import ops

__all__ = ["attach", "gather", "pool"]


def gather(ids: Any, anchor: Any, guard: Any, collection: Any) -> Any:
    """Returns one embedding per id: ``(…)`` int64 → ``(…, dim)``.

    Args:
        ids: any number of dimensions.
        anchor: ``(0, dim)``, receives the gradient.
        guard: handle of a variable that steps write to.
        collection: number of a `Publication` of one table.
    """
    return ops().sparring_gather(ids=ids, anchor=anchor, guard=guard, collection=collection)


def pool(ids: Any, lengths: Any, weights: Any, anchors: Any, guard: Any, collection: Any) -> Any:
    """Returns one embedding per bag and feature, concatenated by feature: ``(b, sum of dims)``.

    Args:
        ids: ``(n,)``, ordered by feature, then by bag.
        lengths: ``(features, b)``, number of ids per bag.
        weights: ``(n,)``, or ``(0,)`` for no weights.
        anchors: ``(0, dim)`` per feature.
        guard: see `gather`.
        collection: number of a `Publication` of several features with sum pooling.
    """
    return ops().sparring_pool(
        ids=ids,
        lengths=lengths,
        weights=weights,
        anchors=anchors,
        guard=guard,
        collection=collection,
    )


def attach(embeddings: Any, ids: Any, anchor: Any) -> Any:
    """Returns `embeddings` unchanged. Their gradient flows to `anchor`, as in `gather`.

    Args:
        embeddings: ``(n, dim)``, from another kind of lookup.
        ids: ``(n,)``.
        anchor: ``(0, dim)``.
    """
    return ops().sparring_attach(embeddings=embeddings, ids=ids, anchor=anchor)


def _slices(gradient: Any, ids: Any, anchor: Any) -> Any:
    if ids.shape.rank != 1:
        ids = tf.reshape(ids, [-1])
    elif not tf.executing_eagerly():
        # The gradient of a function is a separate function, which cannot return a captured tensor.
        ids = tf.identity(ids)
    return tf.IndexedSlices(
        gradient if gradient.shape.rank == 2 else tf.reshape(gradient, [-1, anchor.shape[1]]),
        ids,
        tf.constant(anchor.shape.as_list(), tf.int64),
    )


def _reject_dense_gradient(
    value: Any,
    dtype: Any = None,  # noqa: ARG001 - arguments of TensorFlow's conversion functions
    name: Any = None,  # noqa: ARG001
    as_ref: bool = False,  # noqa: ARG001
) -> Any:
    """Explains why the gradient of an anchor, which has no rows, cannot be converted to a tensor."""
    shape = None if value.dense_shape is None else tf.get_static_value(value.dense_shape)
    if shape is None or len(shape) != 2 or shape[0]:
        return NotImplemented
    raise UnsupportedError(
        "the gradient of a table's rows, tf.IndexedSlices, was converted to a dense tensor, but a table "
        "has no fixed number of rows. Pass it to sparring_tf.Optimizer as the tape returns it, and "
        "change it only with operations on its values, such as tf.clip_by_value; do not look up ids "
        "inside tf.while_loop, tf.scan, tf.map_fn or a loop over tf.range whose gradient is computed "
        "outside: look up all ids before the loop"
    )


# Before TensorFlow's own function, whose error would be that an id is out of range.
tf.register_tensor_conversion_function(tf.IndexedSlices, _reject_dense_gradient, priority=50)


@tf.RegisterGradient("SparringGather")
def _gather_gradient(op: Any, gradient: Any) -> list[Any]:
    ids, anchor, _, _ = op.inputs
    return [None, _slices(gradient, ids, anchor), None, None]


@tf.RegisterGradient("SparringAttach")
def _attach_gradient(op: Any, gradient: Any) -> list[Any]:
    _, ids, anchor = op.inputs
    return [None, None, _slices(gradient, ids, anchor)]


@tf.RegisterGradient("SparringPool")
def _pool_gradient(op: Any, gradient: Any) -> list[Any]:
    ids, lengths, weights, *anchors, guard, collection = op.inputs
    spread = ops().sparring_spread(
        gradient=gradient, ids=ids, lengths=lengths, weights=weights, anchors=anchors
    )
    slices = [
        _slices(values, own_ids, anchor)
        for own_ids, values, anchor in zip(spread.own_ids, spread.values, anchors, strict=True)
    ]
    of_weights = None
    # An op that was recorded by a tape lists the gradients that are not needed.
    if weights.shape[0] != 0 and _WEIGHTS not in (getattr(op, "skip_input_indices", None) or ()):
        of_weights = _weights_gradient(gradient, ids, lengths, anchors, guard, collection)
    return [None, None, of_weights, *slices, None, None]


_WEIGHTS = 2
"""Index of the weights among the inputs of SparringPool."""


def _weights_gradient(
    gradient: Any, ids: Any, lengths: Any, anchors: Any, guard: Any, collection: Any
) -> Any:
    """Returns the dot product of each id's embedding with the gradient of its bag: ``(n,)``.

    Each id is looked up again in a separate bag, which is empty for all other features.
    """
    num_features, num_ids = len(anchors), tf.size(ids)
    per_feature = tf.reduce_sum(lengths, axis=1)
    feature_of = tf.repeat(tf.range(num_features), per_feature)
    singles = tf.one_hot(feature_of, num_features, axis=0, dtype=tf.int64)
    embeddings = pool(ids, singles, tf.zeros([0], gradient.dtype), anchors, guard, collection)
    bags = tf.tile(tf.range(tf.shape(lengths)[1]), [num_features])
    bag_of = tf.repeat(bags, tf.reshape(lengths, [-1]))
    products = tf.reduce_sum(embeddings * tf.gather(gradient, bag_of), axis=1)
    return tf.ensure_shape(tf.reshape(products, [num_ids]), ids.shape)
