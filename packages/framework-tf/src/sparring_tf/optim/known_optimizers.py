"""Optimizers of Keras whose step over rows an update method can take.

Works like `sparring_torch.optim.known_optimizers`: classes are recognized by name, and then tried out
with sample rows. If a release of Keras computes differently, its rows are updated through shadows.
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
    """Why no update method takes a step."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A class of Keras: where its settings go, and what they must be."""

    method_of: Callable[[Mapping[str, Any]], str]
    """The method's name, from the optimizer's configuration."""
    taken: Mapping[str, str]
    """Setting of Keras → hyper-parameter of the method."""
    required: Mapping[str, Any]
    """Setting of Keras → the only value under which the method does the same."""


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
# Settings of every optimizer. The first of them come with each step; others are refused for tables
# where they are not as here (`check_row_by_row`).
_SHARED = {"learning_rate", "weight_decay", "clipvalue", "name"}
_UNUSED: dict[str, Any] = {
    "clipnorm": None,
    "global_clipnorm": None,
    "use_ema": False,
    "loss_scale_factor": None,
    "gradient_accumulation_steps": None,
}
# Of averages, which are not used.
_IRRELEVANT = {"ema_momentum", "ema_overwrite_frequency", "jit_compile"}


class KnownOptimizer:
    """Steps of an optimizer of Keras, for its update method.

    Args:
        native: the optimizer.

    Raises:
        UnknownFormError: no update method does the same.
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
        """Hyper-parameters of a step over rows that compute in `dtype`; or why there are none.

        Args:
            rate: the learning rate.
            iterations: steps before this one.
        """
        if not 0 <= rate < np.inf:
            return f"found learning_rate={rate}"
        number = np.dtype(dtype).type
        # Keras hands the rate over in float32.
        lr = number(np.float32(rate))
        changed = {"lr": float(lr), "weight_decay": float(lr * number(self._decay))}
        if self._betas is not None:
            changed["lr"] = _adam_rate(lr, self._betas, iterations, dtype)
        return self._hyper.model_copy(update=changed)


def _adam_rate(lr: Any, betas: tuple[float, float], iterations: int, dtype: str) -> float:
    """Adam's learning rate with both bias corrections, by the operations that Keras takes."""
    step = tf.constant(iterations + 1, dtype)
    first, second = (tf.pow(tf.constant(beta, dtype), step) for beta in betas)
    return float(tf.constant(lr, dtype) * tf.sqrt(1 - second) / (1 - first))


def known_optimizer(
    native: Any, shadows: Iterable[tuple[KerasShadow, int, str]]
) -> KnownOptimizer | str:
    """The known form of an optimizer; or the reason why no update method is the same.

    Args:
        native: the optimizer.
        shadows: those of its tables, with the dim and the dtype that each is for.
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
        raise UnknownFormError("this release of Keras rounds otherwise")
