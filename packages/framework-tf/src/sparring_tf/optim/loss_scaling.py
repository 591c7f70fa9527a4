"""`LossScaleOptimizer`: Keras's, for models with tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

__all__ = ["LossScaleOptimizer", "adopt_scaler"]


@keras.saving.register_keras_serializable("sparring_tf")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """`keras.optimizers.LossScaleOptimizer` for the policy ``mixed_float16``.

    Keras's looks for NaN in a dense copy of each gradient, of as many rows as there are ids; this one
    looks at what is there. `model.compile` puts one around a `sparring_tf.Optimizer` by itself; wrap it
    to give options: first a `sparring_tf.Optimizer`, then Keras's own, as `initial_scale`,
    `dynamic_growth_steps` and `name`.
    """

    def check_finite(self, grads: Iterable[Any]) -> Any:
        """Whether all gradients are finite numbers."""
        values = [
            each.values if isinstance(each, tf.IndexedSlices) else tf.convert_to_tensor(each)
            for each in grads
            if each is not None
        ]
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in values])


def adopt_scaler(inner: Any) -> bool:
    """Makes the `LossScaleOptimizer` that is just being made around an optimizer one for tables.

    `model.compile` makes Keras's own under the policy ``mixed_float16``, and has no option for another.
    All that this optimizer sees of it is that an attribute is set.

    Args:
        inner: a `sparring_tf.Optimizer` whose attribute is being set.

    Returns:
        Whether it is one now; it is not if it is of a class of somebody else.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        outer = frame.f_locals.get("self")
        is_scaler = isinstance(outer, keras.optimizers.LossScaleOptimizer)
        if is_scaler and outer.__dict__.get("inner_optimizer") is inner:
            if type(outer) is keras.optimizers.LossScaleOptimizer:
                # It differs by one method.
                outer.__class__ = LossScaleOptimizer
            return isinstance(outer, LossScaleOptimizer)
    return False
