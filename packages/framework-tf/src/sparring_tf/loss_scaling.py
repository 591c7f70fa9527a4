"""`LossScaleOptimizer`: Keras's, for models with tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from sparring_tf.optimizer import Optimizer

__all__ = ["LossScaleOptimizer"]


@keras.saving.register_keras_serializable("sparring_tf")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """`keras.optimizers.LossScaleOptimizer` for the policy ``mixed_float16``.

    Wrap `sparring_tf.Optimizer` in it; `model.compile` then adds none of its own. Keras's looks for
    NaN in a dense copy of each gradient, of as many rows as there are ids; this one looks at what
    is there.

    Args:
        inner_optimizer: a `sparring_tf.Optimizer`.
        **options: as Keras has them: `initial_scale`, `dynamic_growth_steps`, `name`.
    """

    def __init__(self, inner_optimizer: Any, **options: Any) -> None:
        super().__init__(inner_optimizer, **options)
        if isinstance(inner_optimizer, Optimizer):
            inner_optimizer.is_scaled_by_keras = False

    def check_finite(self, grads: Iterable[Any]) -> Any:
        """Whether all gradients are finite numbers."""
        values = [
            each.values if isinstance(each, tf.IndexedSlices) else tf.convert_to_tensor(each)
            for each in grads
            if each is not None
        ]
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in values])
