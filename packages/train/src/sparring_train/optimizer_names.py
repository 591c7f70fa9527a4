"""Finds the optimizer that a configuration names. This is an update method, an optimizer of the
framework, or a class ``package.module:Class``."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeVar

from sparring import PluginManager
from sparring.adapter import format_suggestion, resolve_method
from sparring.contracts import UpdateMethod
from sparring.errors import ConfigError, PluginError
from sparring_train.named_classes import find_class

__all__ = ["find_update_method", "find_native_class", "list_optimizer_classes"]

_Native = TypeVar("_Native")


def list_optimizer_classes(module: ModuleType, base: type[_Native]) -> dict[str, type[_Native]]:
    """Returns the optimizers in a framework's module by their names in lower case.

    Args:
        module: module of optimizers, such as ``torch.optim``.
        base: base class of all optimizers.
    """
    return {
        name.lower(): candidate
        for name, candidate in vars(module).items()
        if isinstance(candidate, type) and issubclass(candidate, base) and candidate is not base
    }


def find_native_class(
    name: str, module: ModuleType, base: type[_Native], setting: str
) -> type[_Native]:
    """Returns the optimizer class that a configuration names.

    Args:
        name: a name such as ``adagrad``, in upper or lower case, or ``package.module:Class``.
        module: the framework's module of optimizers, such as ``torch.optim``.
        base: base class of all optimizers.
        setting: the dotted key that contains `name`, for messages.

    Raises:
        ConfigError: there is no such class, or it is not an optimizer.
    """
    if ":" in name:
        return find_class(name, setting, base)
    known, short = list_optimizer_classes(module, base), name.lower()
    if short not in known:
        raise ConfigError(
            f"{setting}: {module.__name__} has no optimizer {name!r}; {format_suggestion(short, known)}, "
            "or name a class as package.module:Class",
            setting=setting,
        )
    return known[short]


def find_update_method(
    name: str, plugin_manager: PluginManager, make_native: Callable[[], _Native]
) -> UpdateMethod | _Native:
    """Returns the update method or optimizer that a configuration names for table rows.

    Args:
        name: name of an update method or optimizer.
        plugin_manager: finds update methods.
        make_native: creates the framework's optimizer of that name; raises `ConfigError`.

    Raises:
        ConfigError: there is neither a method nor an optimizer of this name.
        PluginError: the plugin with this method is broken, or several plugins have such a method.
    """
    if ":" in name:
        return make_native()
    try:
        return resolve_method(name, plugin_manager)
    except PluginError as error:
        if "known" not in error.details:  # The method exists, but is unusable.
            raise
    methods = [
        offer.name for offer in plugin_manager.descriptors() if offer.kind == "update_methods"
    ]
    try:
        return make_native()
    except ConfigError as error:
        raise ConfigError(
            f"{error}; or choose an update method: {format_suggestion(name, methods)}",
            setting=error.details["setting"],
        ) from error
