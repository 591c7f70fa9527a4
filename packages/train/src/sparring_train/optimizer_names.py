"""Optimizers by the names that configurations use.

Configurations are not trusted, so they import nothing: a name stands for an update method or for an
optimizer of the framework's own module. One from elsewhere is given to an adapter's `Optimizer` in a
program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TypeVar

from sparring import PluginManager, resolve_method, suggestion
from sparring.contracts import UpdateMethod
from sparring.errors import ConfigError, PluginError

__all__ = ["method_or_native", "native_class", "optimizer_classes"]

_Native = TypeVar("_Native")


def optimizer_classes(module: ModuleType, base: type[_Native]) -> dict[str, type[_Native]]:
    """The optimizers of a framework's module by their names in lower case.

    Args:
        module: as ``torch.optim``.
        base: what all of them inherit from.
    """
    return {
        name.lower(): candidate
        for name, candidate in vars(module).items()
        if isinstance(candidate, type) and issubclass(candidate, base) and candidate is not base
    }


def native_class(
    name: str, known: Mapping[str, type[_Native]], module: str, setting: str
) -> type[_Native]:
    """The class that a configuration names.

    Args:
        name: ``adagrad``, in any case, or with the module's name, as ``torch.optim.Adagrad``.
        known: what `optimizer_classes` gave.
        module: the module's name as users write it.
        setting: the dotted key that holds `name`, for messages.

    Raises:
        ConfigError: the module has no such optimizer.
    """
    short = name.removeprefix(f"{module}.").lower()
    if short not in known:
        raise ConfigError(
            f"{setting}: {module} has no optimizer {name!r}; {suggestion(short, known)}",
            setting=setting,
        )
    return known[short]


def method_or_native(
    name: str, plugin_manager: PluginManager, make_native: Callable[[], _Native]
) -> UpdateMethod | _Native:
    """The update method or optimizer that a configuration names for the rows of tables.

    Args:
        name: of either.
        plugin_manager: where update methods are looked up.
        make_native: gives the framework's optimizer of that name; raises `ConfigError`.

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
        return make_native()
    except ConfigError as error:
        raise ConfigError(
            f"{error}; or choose an update method: {suggestion(name, methods)}",
            setting=error.details["setting"],
        ) from error
