"""Finds the trainer of a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparring_train import hookspecs
from sparring_train.hookspecs import TrainerDescriptor

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["trainer_of"]


def trainer_of(framework: str, manager: PluginManager) -> TrainerDescriptor:
    """The trainer of a framework.

    Raises:
        PluginError: no plugin offers it, two distributions do, or its plugin was rejected.
    """
    manager.extend(hookspecs, {"trainers": TrainerDescriptor})
    return manager.find("trainers", framework, TrainerDescriptor)
