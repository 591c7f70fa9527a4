"""Keras optimizers whose steps over rows can be executed by an update method.

Works like `sparring_torch.optim.known_optimizers`: classes are recognized by name, and then tested on
sample rows. If a release of Keras computes different rows, the optimizer itself updates the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from sparring.adapter import is_equal_up_to_rounding, keras_method, parse_hyper
from sparring.contracts import HyperParameters
from sparring.errors import InvalidArgumentError
from sparring_tf.optim.keras_shadow import KerasShadow

__all__ = ["KnownOptimizer", "known_optimizer"]

Rows = npt.NDArray[Any]
_RATE = 0.05


class UnknownFormError(Exception):
    """No update method can execute a step. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class _Known:
    """Describes a class of Keras: the mapping of its settings, and their required values."""

    method_of: Callable[[Mapping[str, Any]], str]
    """Returns the method's name for the optimizer's configuration."""
    taken: Mapping[str, str]
    """Setting of Keras → hyper-parameter of the method."""
    required: Mapping[str, Any]
    """Setting of Keras → the only value for which the method computes the same rows."""


_EPSILON = {"epsilon": "eps"}
_ADAM = _Known(
    lambda _: "keras_adam",
    {**_EPSILON, "beta_1": "beta1", "beta_2": "beta2"},
    {"amsgrad": False},
)
_KNOWN: dict[type, _Known] = {
    keras.optimizers.SGD: _Known(
        lambda config: "keras_momentum" if config["momentum"] else "keras_sgd",
        {"momentum": "momentum", "nesterov": "nesterov"},
        {},
    ),
    keras.optimizers.Adagrad: _Known(
        lambda _: "keras_adagrad",
        {**_EPSILON, "initial_accumulator_value": "initial_accumulator_value"},
        {},
    ),
    keras.optimizers.RMSprop: _Known(
        lambda _: "keras_rmsprop", {**_EPSILON, "rho": "alpha"}, {"momentum": 0, "centered": False}
    ),
    keras.optimizers.Adam: _ADAM,
    keras.optimizers.AdamW: _ADAM,
}
# Settings of every optimizer. Those in _SHARED are arguments of each step; other values than those in
# _UNUSED are rejected for tables (`check_row_by_row`).
_SHARED = {"learning_rate", "weight_decay", "clipvalue", "name"}
_UNUSED: dict[str, Any] = {
    "clipnorm": None,
    "global_clipnorm": None,
    "use_ema": False,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}
# Settings of averages, which are not used.
_IRRELEVANT = {"ema_momentum", "ema_overwrite_frequency", "jit_compile"}


class KnownOptimizer:
    """Computes the hyper-parameters of an update method for the steps of a Keras optimizer.

    Args:
        native: the optimizer.

    Raises:
        UnknownFormError: no update method computes the same.
    """

    def __init__(self, native: Any) -> None:
        name = type(native).__name__
        known = _KNOWN.get(type(native))
        if known is None:
            raise UnknownFormError(f"no update method is known for {name}")
        config = native.get_config()
        required = {**_UNUSED, **known.required}
        unknown = set(config) - {*known.taken, *required, *_SHARED, *_IRRELEVANT}
        if unknown:
            raise UnknownFormError(f"settings {', '.join(sorted(unknown))} are unknown")
        for setting, value in required.items():
            if config.get(setting, value) != value:
                raise UnknownFormError(f"found {setting}={config[setting]}")
        self.method = keras_method(known.method_of(config))
        fields = self.method.hyperparameters.model_fields
        given = {ours: config[theirs] for theirs, ours in known.taken.items() if ours in fields}
        try:
            self._hyper = parse_hyper(
                self.method, {**given, "clip_value": config["clipvalue"] or 0.0}
            )
        except InvalidArgumentError as error:
            raise UnknownFormError(str(error)) from error
        self._decay = config["weight_decay"] or 0.0
        self._betas = (config["beta_1"], config["beta_2"]) if "beta_1" in config else None

    def hyper(self, rate: float, iterations: int, dtype: str) -> HyperParameters | str:
        """Returns the hyper-parameters of a step over rows that compute in `dtype`, or a reason.

        Args:
            rate: the learning rate.
            iterations: number of steps before this one.
            dtype: dtype that the rows compute in.

        Returns:
            The hyper-parameters, or the reason why the update method cannot execute this step.
        """
        if not 0 <= rate < np.inf:
            return f"found learning_rate={rate}"
        number = np.dtype(dtype).type
        # Keras passes the rate in float32.
        lr = number(np.float32(rate))
        changed = {"lr": float(lr), "weight_decay": float(lr * number(self._decay))}
        if self._betas is not None:
            changed["lr"] = _adam_rate(lr, self._betas, iterations, dtype)
        return self._hyper.model_copy(update=changed)


def _adam_rate(lr: Any, betas: tuple[float, float], iterations: int, dtype: str) -> float:
    """Returns Adam's learning rate with both bias corrections, computed with Keras's operations."""
    step = tf.constant(iterations + 1, dtype)
    first, second = (tf.pow(tf.constant(beta, dtype), step) for beta in betas)
    return float(tf.constant(lr, dtype) * tf.sqrt(1 - second) / (1 - first))


def known_optimizer(
    native: Any, shadows: Iterable[tuple[KerasShadow, int, str]]
) -> KnownOptimizer | str:
    """Returns the known form of an optimizer, or the reason why no update method computes the same.

    Args:
        native: the optimizer.
        shadows: the shadows of its tables, each with its dim and dtype.
    """
    try:
        known = KnownOptimizer(native)
        for shadow, dim, dtype in shadows:
            _check_rounding(known, shadow, dim, dtype)
    except UnknownFormError as error:
        return str(error)
    return known


def _check_rounding(known: KnownOptimizer, shadow: KerasShadow, dim: int, dtype: str) -> None:
    def hyper_of(number: int) -> HyperParameters:
        hyper = known.hyper(_RATE, number, dtype)
        assert isinstance(hyper, HyperParameters)
        return hyper

    def step(rows: Rows, gradients: Rows, number: int) -> Rows:
        return shadow.step(rows, gradients, _RATE, number)

    if shadow.scalars or not is_equal_up_to_rounding(
        known.method, hyper_of, step, shadow.initial_state, dim
    ):
        raise UnknownFormError("this release of Keras rounds differently")
