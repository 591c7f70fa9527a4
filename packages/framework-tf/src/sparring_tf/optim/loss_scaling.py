"""`LossScaleOptimizer`: Keras's loss scaling for models with tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from sparring_tf.saving.anchors import read_by_own_scaler

__all__ = ["LossScaleOptimizer", "adopt_scaler"]


@keras.saving.register_keras_serializable("sparring_tf")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """`keras.optimizers.LossScaleOptimizer` for the policy ``mixed_float16``.

    Keras's class checks a dense copy of each gradient for NaN, with as many rows as there are ids; this
    class only checks the existing values. `model.compile` wraps a `sparring_tf.Optimizer` in this class
    automatically. Create it yourself to pass options: first a `sparring_tf.Optimizer`, then the options
    of Keras, such as `initial_scale`, `dynamic_growth_steps` and `name`.
    """

    def apply(self, grads: Iterable[Any], trainable_variables: Any = None) -> None:
        """Calls `apply` of the inner optimizer with unscaled gradients if all of them are finite.

        Args:
            grads: see `Optimizer.apply`.
            trainable_variables: see `Optimizer.apply`.
        """
        with read_by_own_scaler():
            super().apply(grads, trainable_variables)

    def check_finite(self, grads: Iterable[Any]) -> Any:
        """Returns whether all gradients are finite, as a boolean tensor.

        Args:
            grads: gradients, dense or `tf.IndexedSlices`; None is skipped.
        """
        values = [
            each.values if isinstance(each, tf.IndexedSlices) else tf.convert_to_tensor(each)
            for each in grads
            if each is not None
        ]
        return tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in values])


def adopt_scaler(inner: Any) -> bool:
    """Changes the class of the `LossScaleOptimizer` whose constructor is wrapping `inner`.

    Under the policy ``mixed_float16``, `model.compile` creates Keras's class, and has no option for
    another one. The only visible effect on the inner optimizer is that an attribute is set.

    Args:
        inner: a `sparring_tf.Optimizer` whose attribute is being set.

    Returns:
        Whether the wrapper supports tables. It does not if it is a third party's class.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        outer = frame.f_locals.get("self")
        is_scaler = isinstance(outer, keras.optimizers.LossScaleOptimizer)
        if is_scaler and outer.__dict__.get("inner_optimizer") is inner:
            if type(outer) is keras.optimizers.LossScaleOptimizer:
                # The classes differ by methods alone.
                outer.__class__ = LossScaleOptimizer
            return isinstance(outer, LossScaleOptimizer)
    return False
