"""Optimizer classes by the names that configurations use."""

from __future__ import annotations

import torch

from sparring.adapter import native_class, optimizer_classes

__all__ = ["native_optimizer"]


def native_optimizer(name: str, setting: str) -> type[torch.optim.Optimizer]:
    """The class that a configuration names, ``adagrad``, in any case, or ``torch.optim.Adagrad``.

    Args:
        name: of the class.
        setting: the dotted key that holds it, for messages.

    Raises:
        ConfigError: `torch.optim` has no such optimizer.
    """
    known = optimizer_classes(torch.optim, torch.optim.Optimizer)
    return native_class(name, known, "torch.optim", setting)
