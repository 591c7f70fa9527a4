"""Finds the program that can read the model in a training snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sparring import Snapshot
from sparring_serve import hookspecs
from sparring_serve.hookspecs import EvaluatorDescriptor

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["ReadModel", "find_model_reader"]

ReadModel = Callable[[Snapshot], Mapping[str, bytes]]
"""Returns the files of the model in a snapshot by kind; see `sparring_packed.WriteOptions`."""


def find_model_reader(plugin_manager: PluginManager) -> ReadModel:
    """Returns a function that asks each registered program for the files of a model. If no program has
    saved the snapshot, it returns nothing.

    Args:
        plugin_manager: Finds the programs.
    """
    plugin_manager.extend(hookspecs, {"evaluators": EvaluatorDescriptor})
    programs = [
        each.descriptor.model_files
        for each in plugin_manager.descriptors()
        if isinstance(each.descriptor, EvaluatorDescriptor)
    ]

    def read(snapshot: Snapshot) -> Mapping[str, bytes]:
        for files in programs:
            if files is not None and (found := files(snapshot, plugin_manager)):
                return found
        return {}

    return read
