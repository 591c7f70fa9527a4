"""The ops of ``native/lookup_ops.cc`` and their gradients.

The gradient of a lookup is the gradient of each id's embedding, as `tf.IndexedSlices` of the layer's
anchor. So it goes wherever a gradient of Keras goes, through tapes, loss scaling and clipping by value,
and nothing need remember what was looked up.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from sparring_tf.op_library import ops

__all__ = ["attach", "gather", "pool"]


def gather(ids: Any, anchor: Any, guard: Any, collection: Any) -> Any:
    """One embedding for each id: ``(…)`` int64 → ``(…, dim)``.

    Args:
        ids: any number of dimensions.
        anchor: ``(0, dim)``, to which the gradient goes.
        guard: the handle of a variable that steps write to.
        collection: the number of a `Publication` that shows one table.
    """
    return ops().sparring_gather(ids=ids, anchor=anchor, guard=guard, collection=collection)


def pool(ids: Any, lengths: Any, weights: Any, anchors: Any, guard: Any, collection: Any) -> Any:
    """One embedding for each bag of each feature, side by side: ``(b, sum of dims)``.

    Args:
        ids: ``(n,)``, feature after feature, bag after bag.
        lengths: ``(features, b)``: ids in each bag.
        weights: ``(n,)``, or ``(0,)`` for none.
        anchors: ``(0, dim)`` of each feature.
        guard: as in `gather`.
        collection: the number of a `Publication` that shows a collection of sums.
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
    """`embeddings` as they are; their gradient goes to `anchor` as that of a `gather`.

    Args:
        embeddings: ``(n, dim)``, found by other means.
        ids: ``(n,)``.
        anchor: ``(0, dim)``.
    """
    return ops().sparring_attach(embeddings=embeddings, ids=ids, anchor=anchor)


def _slices(gradient: Any, ids: Any, anchor: Any) -> Any:
    if ids.shape.rank != 1:
        ids = tf.reshape(ids, [-1])
    elif not tf.executing_eagerly():
        # A function's gradient is a function of its own, which cannot give out what is in another.
        ids = tf.identity(ids)
    return tf.IndexedSlices(
        gradient if gradient.shape.rank == 2 else tf.reshape(gradient, [-1, anchor.shape[1]]),
        ids,
        tf.constant(anchor.shape.as_list(), tf.int64),
    )


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
    # An op that a tape recorded says which gradients are not needed.
    if weights.shape[0] != 0 and _WEIGHTS not in (getattr(op, "skip_input_indices", None) or ()):
        of_weights = _weights_gradient(gradient, ids, lengths, anchors, guard, collection)
    return [None, None, of_weights, *slices, None, None]


_WEIGHTS = 2
"""The place of the weights among the inputs of SparringPool."""


def _weights_gradient(
    gradient: Any, ids: Any, lengths: Any, anchors: Any, guard: Any, collection: Any
) -> Any:
    """Of each id, the product of its embedding and its bag's gradient: ``(n,)``.

    Each id is looked up again, as a bag of its own that is empty for all features but its own.
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
