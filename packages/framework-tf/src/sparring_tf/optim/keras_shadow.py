"""Runs a Keras optimizer on the rows of a table, by means of a variable that contains these rows.

    row    embedding        slot 0           slot 1
           0 … dim          dim … 2·dim      2·dim … 3·dim
           variable         momentums        velocities

A copy of the optimizer is built on one variable with an unspecified number of rows. A step, which is a
single graph, copies rows into the variable and its slots, runs the optimizer, and returns the new rows.
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
    """Applies a Keras optimizer to rows of one dim and dtype.

    Args:
        native: the optimizer. It is copied and not changed.
        dim: number of elements of an embedding.
        dtype: dtype that the table computes in.

    Raises:
        UnsupportedError: the optimizer's state cannot be split into rows, or rows influence each other.
            The message contains the reason.
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
                    self.name, "its state of a new row is not a single number"
                )
        self.initial_state = np.concatenate(
            [slot.reshape(-1) for slot in slots] or [np.empty(0)]
        ).astype(dtype)
        self._dim = dim
        self.why_coupled = ""
        """Reason why the columns of a row must be updated together; empty if they are independent."""
        self._check_independence(dim, dtype)

    def initial_row(self, dim: int) -> npt.NDArray[Any]:
        """Returns the state of a new row.

        Args:
            dim: the dim of the table, even if this object updates only a block of its columns.
        """
        values = self.initial_state.reshape(-1, self._dim)[:, :1]
        return np.repeat(values, dim, axis=1).reshape(-1)

    @property
    def scalars(self) -> list[Any]:
        """State of the optimizer for the table as a whole, except the number of steps."""
        return list(self._scalars)

    def step(
        self,
        rows: npt.NDArray[Any],
        gradients: npt.NDArray[Any],
        learning_rate: float,
        iterations: int,
    ) -> npt.NDArray[Any]:
        """Applies one step with gradients ``(u, dim)`` and returns the new rows ``(u, width)``."""
        step = self._step if _may_nest() else self._plain_step
        after = step(
            tf.convert_to_tensor(rows),
            tf.convert_to_tensor(gradients),
            tf.constant(learning_rate, tf.float32),
            tf.constant(iterations, tf.int64),
        )
        result: npt.NDArray[Any] = after.numpy()
        return result

    def uses_iterations(self) -> bool:
        """Returns whether a step depends on the number of steps before it."""
        if self._scalars:
            return True
        rows = np.concatenate([np.ones(self._dim, self.initial_state.dtype), self.initial_state])
        gradients = np.linspace(-1, 1, self._dim, dtype=rows.dtype)[None] + 0.25
        first, later = (self.step(rows[None] + 0.5, gradients, 0.1, each) for each in (0, 1000))
        return not np.array_equal(first, later)

    def _make(self, native: Any, dim: int, dtype: str) -> None:
        config = native.get_config()
        # The learning rate is an argument of each step.
        config["learning_rate"] = 1.0
        optimizer = type(native).from_config(config)
        _check_copy(native, optimizer)
        self._check_initial_state(native, config, dim, dtype)
        reference = keras.Variable(np.zeros((1, dim)), dtype=dtype, name="rows")
        # Keras does not support an unspecified number of rows, but TensorFlow's variables do, and
        # optimizers use these.
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
            # As in Keras, 0 does not clip.
            if clip is not None and clip > 0:
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
        """Checks that the state of a new row does not depend on the values of the row."""
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
        """Checks that updating rows together or separately gives the same result."""
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
                self.why_coupled = (
                    "the update of an element of a row depends on other elements of the row"
                )
        except Exception as error:
            reason = f"a trial step over rows failed with {type(error).__name__}: {error}"
            raise make_unsupported_error(self.name, reason) from error
        for scalar, value in zip(self._scalars, before, strict=True):
            scalar.assign(value)
        if not np.isfinite(together).all() or not np.isfinite(apart).all():
            raise make_unsupported_error(
                self.name, "a trial step over rows returned NaN or infinity"
            )
        if np.abs(together - apart).max() > _TOLERANCE[dtype] * max(1, np.abs(apart).max()):
            raise make_unsupported_error(
                self.name,
                "rows that are updated together change differently from rows updated separately",
            )


def _may_nest() -> bool:
    """Whether a graph may run inside a waiting graph, which requires a second thread."""
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    return (threads or len(os.sched_getaffinity(0))) > 1


def _open(variable: Any, dim: int) -> None:
    """Replaces the value of a Keras variable by one with an unspecified number of rows."""
    variable._value = tf.Variable(
        variable.value.read_value(), shape=tf.TensorShape([None, dim]), trainable=False
    )


def check_row_by_row(native: Any) -> None:
    """Checks that the settings of a Keras optimizer only involve single rows.

    Raises:
        UnsupportedError: a setting involves more than one row. The message contains the alternative.
    """
    name = type(native).__name__
    if isinstance(native, keras.optimizers.LossScaleOptimizer):
        raise make_unsupported_error(
            name, "it scales losses; wrap sparring_tf.Optimizer in a sparring_tf.LossScaleOptimizer"
        )
    # Keras has MultiOptimizer since 3.15.
    if isinstance(native, getattr(keras.optimizers, "MultiOptimizer", ())):
        raise make_unsupported_error(
            name, "it updates variables with different optimizers; pass them as sparse and dense"
        )
    settings = {
        "clipnorm": "a norm would include rows on other ranks; use clipvalue",
        "global_clipnorm": "a norm would include rows on other ranks; use clipvalue",
        "use_ema": "averages of rows are not stored; leave it out",
        "gradient_accumulation_steps": "give it to sparring_tf.Optimizer",
        "loss_scale_factor": "wrap sparring_tf.Optimizer in a sparring_tf.LossScaleOptimizer",
    }
    _check_overrides(native, name)
    excluded = ("_exclude_from_weight_decay", "_exclude_from_weight_decay_pattern")
    if any(getattr(native, each, None) for each in excluded):
        raise UnsupportedError(
            f"optimizer {name} with exclude_from_weight_decay cannot update rows of a table, because it "
            "would still decay the rows; pass a separate optimizer for ordinary variables, dense=…, and "
            "call exclude_from_weight_decay of that optimizer",
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


_LIBRARIES = ("keras", "tensorflow", "builtins")
_NOT_CALLED = (
    *("apply", "apply_gradients", "stateless_apply", "learning_rate", "iterations"),
    *("scale_loss", "finalize_variable_values"),
    *("_clip_gradients", "_apply_weight_decay", "_use_weight_decay", "_get_current_learning_rate"),
    *("_backend_apply_gradients", "_backend_update_step", "_distributed_tf_update_step"),
    *("_backend_increment_gradient_accumulators", "_backend_reset_gradient_accumulators"),
    *("_clip_by_norm", "_filter_empty_gradients", "_overwrite_variables_directly_with_gradients"),
)
"""Methods that a step over rows does not call. It calls `update_step`, after clipping and decay."""


def _check_overrides(native: Any, name: str) -> None:
    """Checks that a subclass does not override methods that are not called for rows."""
    own = [each for each in type(native).__mro__ if each.__module__.split(".")[0] not in _LIBRARIES]
    for method in _NOT_CALLED:
        if method in vars(native) or any(method in vars(each) for each in own):
            raise UnsupportedError(
                f"optimizer {name} cannot update rows of a table: it overrides {method}, which is not "
                "called for rows; override update_step, which is called with the gradients of rows, or "
                "give Optimizer a class of Keras, and this one as dense=…",
                optimizer=name,
                setting=method,
            )


_PLAIN = (bool, int, float, str, type(None))
_DIFFERENT = ("built", "name", "_lock")
"""Attributes in which a copy of an optimizer may differ."""


def _check_copy(native: Any, copy: Any) -> None:
    """Checks that a copy has the attributes of the optimizer, which `get_config` must return."""
    name = type(native).__name__
    for attribute, value in vars(native).items():
        if not isinstance(value, _PLAIN) or attribute in _DIFFERENT:
            continue
        found = vars(copy).get(attribute)
        # Compared by identity too, because of NaN.
        if found is not value and found != value and not attribute.startswith("_self_"):
            raise UnsupportedError(
                f"optimizer {name} cannot update rows of a table: rows are updated by a copy that "
                f"from_config creates, whose attribute {attribute} is {found!r}, expected {value!r}; "
                f"return the argument of the constructor from get_config of {name}",
                optimizer=name,
                setting=attribute,
            )


def make_unsupported_error(name: str, reason: str) -> UnsupportedError:
    """Creates the error for an optimizer that cannot update rows."""
    return UnsupportedError(
        f"optimizer {name} cannot update rows of a table: {reason}; choose an elementwise optimizer, "
        "such as SGD, Adagrad, Adam, AdamW, RMSprop, Ftrl or Lion",
        optimizer=name,
        reason=reason,
    )
