"""Keeps the calls of the optimizer of ordinary variables equal to those for rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

__all__ = ["start_again_unless"]


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
