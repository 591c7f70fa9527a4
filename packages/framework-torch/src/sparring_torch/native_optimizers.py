"""Optimizer classes by the names that configurations use."""

from __future__ import annotations

import torch

from sparring.errors import ConfigError, PluginError
from sparring.names import suggestion
from sparring.plugins import PluginManager
from sparring.updates import UpdateMethod, resolve_method

__all__ = ["native_optimizer", "row_optimizer"]

_PREFIX = "torch.optim."


def native_optimizer(name: str, setting: str) -> type[torch.optim.Optimizer]:
    """The class that a configuration names.

    Configurations are not trusted, so they import nothing: an optimizer from elsewhere is given
    to `sparring_torch.Optimizer` in a program.

    Args:
        name: ``adagrad``, in any case, or ``torch.optim.Adagrad``.
        setting: the dotted key that holds it, for messages.

    Raises:
        ConfigError: `torch.optim` has no such optimizer.
    """
    known = {
        each.lower(): candidate
        for each, candidate in vars(torch.optim).items()
        if isinstance(candidate, type)
        and issubclass(candidate, torch.optim.Optimizer)
        and candidate is not torch.optim.Optimizer
    }
    short = name.removeprefix(_PREFIX).lower()
    if short not in known:
        raise ConfigError(
            f"{setting}: torch.optim has no optimizer {name!r}; {suggestion(short, known)}",
            setting=setting,
        )
    return known[short]


def row_optimizer(
    name: str, setting: str, plugin_manager: PluginManager
) -> type[torch.optim.Optimizer] | UpdateMethod:
    """What a configuration names for the rows of tables: an update method, or else a class.

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
        return native_optimizer(name, setting)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; or choose an update method: {suggestion(name, methods)}", setting=setting
        ) from error
