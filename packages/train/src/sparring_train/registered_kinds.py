"""Finds kinds of data, models and trainers that plugins register."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparring_train import built_in_kinds, hookspecs
from sparring_train.hookspecs import (
    DataDescriptor,
    JoinStoreDescriptor,
    ModelDescriptor,
    StreamDescriptor,
    TrackerDescriptor,
    TrainerDescriptor,
)

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = [
    "data_kinds",
    "find_join_store",
    "find_stream",
    "find_tracker",
    "find_trainer",
    "model_kinds",
    "stream_kinds",
    "trainer_names",
]


def find_trainer(framework: str, manager: PluginManager) -> TrainerDescriptor:
    """Returns the trainer of a framework.

    Args:
        framework: name of the framework, for example ``torch``.
        manager: the plugin manager.

    Raises:
        PluginError: no plugin registers it, two distributions do, or its plugin was rejected.

    Examples:
        >>> from sparring import make_plugin_manager
        >>> from sparring_train import find_trainer
        >>> find_trainer("torch", make_plugin_manager()).name
        'torch'
    """
    return _extended(manager).find("trainers", framework, TrainerDescriptor)


def trainer_names(manager: PluginManager) -> list[str]:
    """Returns the names of frameworks that have a trainer."""
    return [
        each.name for each in _found(manager, "trainers") if isinstance(each, TrainerDescriptor)
    ]


def data_kinds(manager: PluginManager | None = None) -> dict[str, DataDescriptor]:
    """Returns kind → descriptor; the built-in kinds if the manager has none."""
    found = _found(manager, "data") or built_in_kinds.data_kinds()
    return {each.name: each for each in found if isinstance(each, DataDescriptor)}


def model_kinds(manager: PluginManager | None = None) -> dict[str, ModelDescriptor]:
    """Returns kind → descriptor; the built-in kinds if the manager has none."""
    found = _found(manager, "models") or built_in_kinds.model_kinds()
    return {each.name: each for each in found if isinstance(each, ModelDescriptor)}


def stream_kinds(manager: PluginManager | None = None) -> dict[str, StreamDescriptor]:
    """Returns scheme → descriptor; the built-in kinds if the manager has none."""
    found = _found(manager, "streams") or built_in_kinds.stream_kinds()
    return {each.name: each for each in found if isinstance(each, StreamDescriptor)}


def find_stream(scheme: str, manager: PluginManager | None = None) -> StreamDescriptor | None:
    """Returns the kind of stream of a scheme; None if no plugin registers it.

    Args:
        scheme: the part of a URL before ``://``.
        manager: the plugin manager; None: only built-in kinds.

    Raises:
        PluginError: two distributions register it.
    """
    found = stream_kinds(manager).get(scheme)
    if found is None and manager is not None:
        for each in manager.conflicts():
            if (each.kind, each.name) == ("streams", scheme):
                return manager.find(each.kind, each.name, StreamDescriptor)  # raises
    return found


def find_join_store(name: str, manager: PluginManager | None = None) -> JoinStoreDescriptor:
    """Returns a kind of store of open impressions.

    Args:
        name: name of the kind.
        manager: the plugin manager; None: only built-in kinds.

    Raises:
        PluginError: no plugin registers it, or its plugin was rejected.
    """
    if manager is not None and name != "memory":
        return _extended(manager).find("join_stores", name, JoinStoreDescriptor)
    return next(each for each in built_in_kinds.join_stores() if each.name == name)


def find_tracker(name: str, manager: PluginManager) -> TrackerDescriptor:
    """Returns a kind of tracker.

    Args:
        name: name of the kind.
        manager: the plugin manager.

    Raises:
        PluginError: no plugin registers it, or its plugin was rejected.
    """
    return _extended(manager).find("trackers", name, TrackerDescriptor)


def _found(manager: PluginManager | None, kind: str) -> Sequence[object]:
    every = () if manager is None else _extended(manager).descriptors()
    return [each.descriptor for each in every if each.kind == kind]


def _extended(manager: PluginManager) -> PluginManager:
    """Adds the hooks of this package to the manager."""
    kinds = {
        "data": DataDescriptor,
        "join_stores": JoinStoreDescriptor,
        "models": ModelDescriptor,
        "streams": StreamDescriptor,
        "trackers": TrackerDescriptor,
        "trainers": TrainerDescriptor,
    }
    manager.extend(hookspecs, kinds)
    return manager
