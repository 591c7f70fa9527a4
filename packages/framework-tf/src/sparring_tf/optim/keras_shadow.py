"""The variable that a Keras optimizer sees in place of a table.

    row    embedding        slot 0           slot 1
           0 … dim          dim … 2·dim      2·dim … 3·dim
           variable         momentums        velocities

A copy of the optimizer is built on one variable whose number of rows is open. For a step, rows go into
the variable and its slots, the optimizer updates them, and they come back: one graph.
"""

from __future__ import annotations

import os
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sparring.errors import UnsupportedError

__all__ = ["KerasShadow", "check_row_by_row"]

_ROWS, _STEPS = 4, 3
_TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


class KerasShadow:
    """One table's rows before a Keras optimizer.

    Args:
        native: the optimizer; it is copied, and stays as it is.
        dim: elements of an embedding.
        dtype: that the table computes in.

    Raises:
        UnsupportedError: the optimizer's state cannot be cut into rows, or rows influence each
            other; naming why.
    """

    def __init__(self, native: Any, dim: int, dtype: str) -> None:
        self.name = type(native).__name__
        try:
            self._make(native, dim, dtype)
            slots = [each.numpy() for each in self._slots]
        except UnsupportedError:
            raise
        except Exception as error:
            reason = f"it cannot be built on one row: {type(error).__name__}: {error}"
            raise make_unsupported_error(self.name, reason) from error
        for slot in slots:
            if slot.size and not (slot == slot.flat[0]).all():
                raise make_unsupported_error(
                    self.name, "its state of an untouched row is not one number"
                )
        self.initial_state = np.concatenate(
            [slot.reshape(-1) for slot in slots] or [np.empty(0)]
        ).astype(dtype)
        self._dim = dim
        self.why_coupled = ""
        """Why columns of a row cannot be stepped apart; empty: they can."""
        self._check_independence(dim, dtype)

    def initial_row(self, dim: int) -> npt.NDArray[Any]:
        """The state of a new row of a table of `dim`, of whose columns this has all or a block."""
        values = self.initial_state.reshape(-1, self._dim)[:, :1]
        return np.repeat(values, dim, axis=1).reshape(-1)

    @property
    def scalars(self) -> list[Any]:
        """State of the optimizer for the table as a whole, without its count of steps."""
        return list(self._scalars)

    def step(
        self,
        rows: npt.NDArray[Any],
        gradients: npt.NDArray[Any],
        learning_rate: float,
        iterations: int,
    ) -> npt.NDArray[Any]:
        """The rows ``(u, width)`` after a step with gradients ``(u, dim)``."""
        step = self._step if _may_nest() else self._plain_step
        after = step(
            tf.convert_to_tensor(rows),
            tf.convert_to_tensor(gradients),
            tf.constant(learning_rate, tf.float32),
            tf.constant(iterations, tf.int64),
        )
        result: npt.NDArray[Any] = after.numpy()
        return result

    def _make(self, native: Any, dim: int, dtype: str) -> None:
        config = native.get_config()
        # Each step says which it is.
        config["learning_rate"] = 1.0
        optimizer = type(native).from_config(config)
        self._check_initial_state(native, config, dim, dtype)
        reference = keras.Variable(np.zeros((1, dim)), dtype=dtype, name="rows")
        # Keras has no variable with an open number of rows, and TensorFlow has; optimizers ask
        # for the latter.
        _open(reference, dim)
        optimizer.build([reference])
        known = {id(optimizer.iterations), id(optimizer._learning_rate)}
        kept = [each for each in optimizer.variables if id(each) not in known]
        slots = [each for each in kept if tuple(each.shape) == (1, dim)]
        scalars = [each for each in kept if not tuple(each.shape)]
        if len(slots) + len(scalars) < len(kept):
            shapes = sorted({tuple(each.shape) for each in kept} - {(1, dim), ()})
            raise make_unsupported_error(
                self.name, f"it keeps state of shape {shapes[0]} for a row of {dim}"
            )
        self._optimizer, self._scalars = optimizer, tuple(scalars)
        self._slots = tuple(each.value for each in slots)
        for each in slots:
            _open(each, dim)
        variables = [reference.value, *(each.value for each in slots)]
        width = dim * len(variables)
        decay, clip = optimizer.weight_decay, optimizer.clipvalue

        def step(rows: Any, gradients: Any, learning_rate: Any, iterations: Any) -> Any:
            parts = tf.split(rows, len(variables), axis=1)
            for variable, part in zip(variables, parts, strict=True):
                variable.assign(part)
            optimizer.iterations.assign(tf.cast(iterations, optimizer.iterations.dtype))
            if clip is not None:
                gradients = tf.clip_by_value(gradients, -clip, clip)
            if decay is not None:
                rate = tf.cast(learning_rate, dtype) * tf.cast(decay, dtype)
                variables[0].assign_sub(variables[0] * rate)
            optimizer.update_step(gradients, variables[0], learning_rate)
            return tf.concat([each.read_value() for each in variables], axis=1)

        self._plain_step = step
        self._step = tf.function(
            step,
            input_signature=[
                tf.TensorSpec([None, width], dtype),
                tf.TensorSpec([None, dim], dtype),
                tf.TensorSpec([], tf.float32),
                tf.TensorSpec([], tf.int64),
            ],
            autograph=False,
        )

    def _check_initial_state(self, native: Any, config: Any, dim: int, dtype: str) -> None:
        """A new row's state is the same for all rows, so it must not depend on the row's values."""
        states = []
        for start in (np.zeros, np.ones):
            optimizer = type(native).from_config(dict(config))
            optimizer.build([keras.Variable(start((1, dim)), dtype=dtype, name="rows")])
            states.append([each.numpy() for each in optimizer.variables])
        if not all(map(np.array_equal, *states)):
            raise make_unsupported_error(
                self.name, "its state of a new row depends on the values of the row"
            )

    def _check_independence(self, dim: int, dtype: str) -> None:
        """Rows that are stepped together must move as rows stepped apart."""
        generator = np.random.default_rng(1)
        before = [each.numpy() for each in self._scalars]
        start = generator.normal(size=(_ROWS, dim)).astype(dtype)
        gradients = generator.normal(size=(_STEPS, _ROWS, dim)).astype(dtype)

        def run_step(start: npt.NDArray[Any], gradients: npt.NDArray[Any]) -> npt.NDArray[Any]:
            for scalar, value in zip(self._scalars, before, strict=True):
                scalar.assign(value)
            rows = np.concatenate([start, np.tile(self.initial_state, (len(start), 1))], axis=1)
            for number in range(_STEPS):
                rows = self.step(rows, gradients[number], 0.1, number)
            return rows[:, :dim]

        others, of_others = start.copy(), gradients.copy()
        others[:, 0] += 1
        of_others[:, :, 0] *= -3
        try:
            together = run_step(start, gradients)
            halves = [run_step(start[half], gradients[:, half]) for half in (slice(2), slice(2, 4))]
            apart = np.concatenate(halves)
            if not np.array_equal(run_step(others, of_others)[:, 1:], together[:, 1:]):
                self.why_coupled = "it moves an element of a row by others of the row"
        except Exception as error:
            reason = f"a step over gathered rows failed with {type(error).__name__}: {error}"
            raise make_unsupported_error(self.name, reason) from error
        for scalar, value in zip(self._scalars, before, strict=True):
            scalar.assign(value)
        if not np.isfinite(together).all() or not np.isfinite(apart).all():
            raise make_unsupported_error(
                self.name, "a step over gathered rows gives NaN or infinity"
            )
        if np.abs(together - apart).max() > _TOLERANCE[dtype] * max(1, np.abs(apart).max()):
            raise make_unsupported_error(
                self.name, "rows that are stepped together move differently from rows stepped apart"
            )


def _may_nest() -> bool:
    """Whether a graph may run inside a graph that waits for it: that takes a second thread."""
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    return (threads or len(os.sched_getaffinity(0))) > 1


def _open(variable: Any, dim: int) -> None:
    """Leaves the number of rows of a Keras variable open."""
    variable._value = tf.Variable(
        variable.value.read_value(), shape=tf.TensorShape([None, dim]), trainable=False
    )


def check_row_by_row(native: Any) -> None:
    """Refuses settings of a Keras optimizer that are about more than single rows.

    Raises:
        UnsupportedError: naming the setting, and what to use instead.
    """
    name = type(native).__name__
    if isinstance(native, keras.optimizers.LossScaleOptimizer):
        raise make_unsupported_error(
            name, "it scales losses; wrap sparring_tf.Optimizer in a sparring_tf.LossScaleOptimizer"
        )
    # Keras has it since 3.15.
    if isinstance(native, getattr(keras.optimizers, "MultiOptimizer", ())):
        raise make_unsupported_error(
            name, "it updates variables by different optimizers; give sparse and dense one each"
        )
    settings = {
        "clipnorm": "a norm is over rows that other ranks may hold; use clipvalue",
        "global_clipnorm": "a norm is over rows that other ranks may hold; use clipvalue",
        "use_ema": "averages of rows are not kept",
        "gradient_accumulation_steps": "give it to sparring_tf.Optimizer",
        "loss_scale_factor": "wrap sparring_tf.Optimizer in a sparring_tf.LossScaleOptimizer",
    }
    excluded = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
    if any(getattr(native, each, None) for each in excluded):
        raise UnsupportedError(
            f"optimizer {name} with exclude_from_weight_decay cannot update rows of a table: it would "
            "decay them all the same; give ordinary variables an optimizer of their own, dense=…, and "
            "exclude them there",
            optimizer=name,
            setting="exclude_from_weight_decay",
        )
    for setting, remedy in settings.items():
        if getattr(native, setting, None):
            raise UnsupportedError(
                f"optimizer {name} with {setting}={getattr(native, setting)} cannot update rows of "
                f"a table: {remedy}",
                optimizer=name,
                setting=setting,
            )


def make_unsupported_error(name: str, reason: str) -> UnsupportedError:
    """The error for an optimizer that will not do."""
    return UnsupportedError(
        f"optimizer {name} cannot update rows of a table: {reason}; choose one that works element "
        "by element, as SGD, Adagrad, Adam, AdamW, RMSprop, Ftrl or Lion",
        optimizer=name,
        reason=reason,
    )
