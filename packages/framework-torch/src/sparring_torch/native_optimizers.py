"""Optimizer classes by the names that configurations use."""

from __future__ import annotations

import importlib

import torch

from sparring.errors import ConfigError
from sparring_torch.suggestions import suggestion

__all__ = ["native_optimizer"]


def native_optimizer(name: str, setting: str) -> type[torch.optim.Optimizer]:
    """The class that a configuration names.

    Args:
        name: ``adagrad``, in any case, for one of `torch.optim`; or ``package.module.Class``.
        setting: the dotted key that holds it, for messages.

    Raises:
        ConfigError: there is no such class, or it is no optimizer.
    """
    if "." in name:
        module, _, attribute = name.rpartition(".")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"{setting}: no optimizer {name!r} ({error}); name a class as package.module.Class",
                setting=setting,
            ) from error
        if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
            raise ConfigError(
                f"{setting}: {name!r} is no subclass of torch.optim.Optimizer", setting=setting
            )
        return found
    known = {
        each.lower(): candidate
        for each, candidate in vars(torch.optim).items()
        if isinstance(candidate, type)
        and issubclass(candidate, torch.optim.Optimizer)
        and candidate is not torch.optim.Optimizer
    }
    if name.lower() not in known:
        raise ConfigError(
            f"{setting}: torch.optim has no optimizer {name!r}; {suggestion(name, known)}",
            setting=setting,
        )
    return known[name.lower()]
