"""Optimizers of Keras by the names that configurations use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

from sparring.errors import ConfigError, PluginError
from sparring.names import suggestion
from sparring.plugins import PluginManager
from sparring.updates import UpdateMethod, resolve_method

__all__ = ["keras_optimizer", "row_optimizer"]

_PREFIX = "keras.optimizers."


def keras_optimizer(name: str, hyperparameters: Mapping[str, Any], setting: str) -> Any:
    """The optimizer that a configuration describes.

    Configurations are not trusted, so they import nothing: an optimizer from elsewhere is given
    to `sparring_tf.Optimizer` in a program.

    Args:
        name: ``adagrad``, in any case, or ``keras.optimizers.Adagrad``.
        hyperparameters: of the optimizer; `lr` is its learning rate.
        setting: the dotted key of the section, for messages.

    Raises:
        ConfigError: `keras.optimizers` has no such optimizer, or it does not accept these.
    """
    known = {
        each.lower(): candidate
        for each, candidate in vars(keras.optimizers).items()
        if isinstance(candidate, type)
        and issubclass(candidate, keras.optimizers.Optimizer)
        and candidate is not keras.optimizers.Optimizer
    }
    short = name.removeprefix(_PREFIX).lower()
    if short not in known:
        raise ConfigError(
            f"{setting}.name: keras.optimizers has no optimizer {name!r}; "
            + suggestion(short, known),
            setting=f"{setting}.name",
        )
    given = dict(hyperparameters)
    given["learning_rate"] = given.pop("lr")
    try:
        return known[short](**given)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{setting}: {known[short].__name__} does not accept {dict(hyperparameters)}: {error}",
            setting=setting,
        ) from error


def row_optimizer(
    name: str, hyperparameters: Mapping[str, Any], setting: str, plugin_manager: PluginManager
) -> Any | UpdateMethod:
    """What a configuration describes for rows of tables: an update method, or else an optimizer.

    Raises:
        ConfigError: there is neither.
        PluginError: a plugin offers such a method, but is broken or not the only one.
    """
    try:
        return resolve_method(name, plugin_manager)
    except PluginError as error:
        if "known" not in error.details:  # it exists, and cannot be used
            raise
    methods = [
        offer.name for offer in plugin_manager.descriptors() if offer.kind == "update_methods"
    ]
    try:
        return keras_optimizer(name, hyperparameters, setting)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; or choose an update method: {suggestion(name, methods)}",
            setting=error.details["setting"],
        ) from error
