"""The loss `ranking`: a softmax over the items of a step on all ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from sparring import StepContainer
from sparring_tf import gather_over_ranks
from sparring_train.config.sections.kinds import Ranking
from sparring_train.loop.step_items import ItemCounts, StepItems

__all__ = ["ItemSoftmax", "normalize_pair"]


class ItemSoftmax:
    """Negative log likelihood of each example's item among the items of the step.

    Args:
        ranking: settings of the ranking.
        container: container of the ranks that compute each step together.
    """

    signature = (
        tf.TensorSpec([None], tf.int64),
        tf.TensorSpec([None], tf.float32),
        tf.TensorSpec([], tf.int64),
    )
    """Signature of the result of `tensors`."""

    def __init__(self, ranking: Ranking, container: StepContainer) -> None:
        self._ranking, self._container = ranking, container
        self.counts = ItemCounts()

    def tensors(self, step: StepItems) -> list[Any]:
        """Returns the items of a step, the log-Q correction of each item, and the index of this rank's
        first item."""
        corrections = (
            self.counts.add(step.ids)
            if self._ranking.log_q
            else np.zeros(len(step.ids), np.float32)
        )
        return [tf.constant(each) for each in (step.ids, corrections, np.int64(step.first))]

    def loss(self, pair: tuple[Any, Any], labels: Any, weights: Any, step: list[Any]) -> Any:
        """Returns the sum of the losses of this rank's examples.

        All ranks call it in each step, even a rank without examples.

        Args:
            pair: vectors of users and of items.
            labels: labels of the examples, if any.
            weights: weights of the examples, if any.
            step: result of `tensors`.
        """
        ids, corrections, first = step
        users, items = normalize_pair(self._ranking, *pair)
        # The lookups for `users` communicate, too. Gathering waits for them, so that all ranks
        # communicate in the same order.
        with tf.control_dependencies([users]):
            candidates = gather_over_ranks(tf.identity(items), self._container)
        logits = tf.matmul(users, candidates, transpose_b=True) / self._ranking.temperature
        logits -= tf.cast(corrections, logits.dtype)
        own = first + tf.range(tf.shape(users, tf.int64)[0])
        is_own = own[:, None] == tf.range(tf.shape(ids, tf.int64)[0])
        # Other occurrences of the same item in the step are not negatives.
        is_same = tf.gather(ids, own)[:, None] == ids
        mine = tf.gather(logits, own, batch_dims=1)
        logits = tf.where(is_same & ~is_own, logits.dtype.min, logits)
        losses = tf.reduce_logsumexp(logits, axis=1) - mine
        if self._ranking.positive is not None and labels is not None:
            losses *= tf.cast(labels >= self._ranking.positive, losses.dtype)
        return tf.reduce_sum(losses if weights is None else losses * tf.cast(weights, losses.dtype))


def normalize_pair(ranking: Ranking, users: Any, items: Any) -> tuple[Any, Any]:
    """Scales vectors to length 1 if the ranking requires it."""
    return (_of_length_one(users), _of_length_one(items)) if ranking.normalize else (users, items)


def _of_length_one(vectors: Any) -> Any:
    """Scales vectors to length 1, like `torch.nn.functional.normalize`."""
    squares = tf.reduce_sum(tf.square(vectors), axis=1, keepdims=True)
    return vectors / tf.sqrt(tf.maximum(squares, 1e-24))
