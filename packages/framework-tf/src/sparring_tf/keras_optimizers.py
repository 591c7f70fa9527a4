"""Optimizers of Keras by the names that configurations use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from sparring.adapter import native_class, optimizer_classes
from sparring.errors import ConfigError

__all__ = ["keras_optimizer"]


def keras_optimizer(name: str, hyperparameters: Mapping[str, Any], setting: str) -> Any:
    """The optimizer that a configuration describes.

    Args:
        name: ``adagrad``, in any case, or ``keras.optimizers.Adagrad``.
        hyperparameters: of the optimizer; `lr` is its learning rate.
        setting: the dotted key of the section, for messages.

    Raises:
        ConfigError: `keras.optimizers` has no such optimizer, or it does not accept these.
    """
    known = optimizer_classes(keras.optimizers, keras.optimizers.Optimizer)
    native = native_class(name, known, "keras.optimizers", f"{setting}.name")
    given = dict(hyperparameters)
    given["learning_rate"] = given.pop("lr")
    try:
        return native(**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{setting}: {native.__name__} does not accept {dict(hyperparameters)}: {error}",
            setting=setting,
        ) from error
