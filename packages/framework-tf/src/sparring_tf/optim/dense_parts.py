"""Keeps calls and rates of the optimizer of ordinary variables in line with those for rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from sparring.errors import InvalidArgumentError

__all__ = ["find_ratio", "scale_rate", "start_again_unless"]


def find_ratio(optimizer: Any, dense: Any) -> float:
    """Returns the rate of `dense` per rate of `optimizer`; 1 if one of them is 0 or not a number."""
    rates = optimizer._learning_rate, dense._learning_rate
    if not all(isinstance(each, keras.Variable) for each in rates):
        return 1.0
    rows, ordinary = (float(keras.ops.convert_to_numpy(each)) for each in rates)
    return ordinary / rows if rows > 0 and ordinary > 0 else 1.0


def scale_rate(dense: Any, before: Any, rate: Any, ratio: float) -> None:
    """Changes the rate of an optimizer by the factor by which another rate changes.

    Args:
        dense: the optimizer.
        before: the other rate.
        rate: its new value.
        ratio: rate of `dense` per other rate, if `before` is 0.

    Raises:
        InvalidArgumentError: one of the rates is not a number.
    """
    own = dense._learning_rate
    is_function = callable(rate) and not isinstance(rate, keras.Variable)
    if is_function or not all(isinstance(each, keras.Variable) for each in (before, own)):
        raise InvalidArgumentError(
            f"Optimizer: found learning_rate={rate!r}, assigned after the constructor, but the rate of "
            f"{type(dense).__name__}, passed as dense, cannot follow it unless all are numbers; create "
            "an Optimizer whose optimizers both have a number, or both a schedule"
        )
    was, now = tf.convert_to_tensor(before), tf.cast(tf.convert_to_tensor(rate), own.dtype)
    factor = now / tf.where(was > 0, was, 1)
    own.assign(tf.where(was > 0, own * factor, now * ratio))


def start_again_unless(
    dense: Any, count: Any, gradients: Sequence[tuple[Any, Any]]
) -> list[tuple[Any, Any]]:
    """Prepares a call of an optimizer that makes one step of several calls.

    If the gradients that it kept are not those of `count` calls, it drops them, as they were dropped for
    rows.

    Args:
        dense: the optimizer of ordinary variables, which is built.
        count: number of earlier calls of this step, a scalar.
        gradients: pairs of gradient and variable.

    Returns:
        The pairs; if all gradients are None, zeros for all variables, so that the call is counted.
    """
    calls = tf.cast(dense._iterations.value, tf.int64)
    kept = calls % dense.gradient_accumulation_steps

    def start_again() -> Any:
        dense._backend_reset_gradient_accumulators()
        dense._iterations.assign(tf.cast(calls - kept, dense._iterations.dtype))
        return tf.constant(True)

    tf.cond(kept == count, lambda: tf.constant(False), start_again)
    if any(gradient is not None for gradient, _ in gradients):
        return list(gradients)
    return [(tf.zeros_like(each), each) for each in dense._trainable_variables]
