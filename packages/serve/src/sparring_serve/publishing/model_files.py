"""Finds the program that can read the model in a training snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sparring import Snapshot
from sparring_packed import WriteOptions
from sparring_serve import hookspecs
from sparring_serve.hookspecs import EvaluatorDescriptor

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["ReadModel", "find_model_reader"]

ReadModel = Callable[[Snapshot], WriteOptions]
"""Returns options with the files of the model in a snapshot, and with its computed tables."""


def find_model_reader(plugin_manager: PluginManager, *, item_vectors: bool = True) -> ReadModel:
    """Returns a function that asks each registered program for the parts of a model. If no program has
    saved the snapshot, it returns options without a model.

    Args:
        plugin_manager: Finds the programs.
        item_vectors: Whether the vectors of items are computed, for models that have them.
    """
    plugin_manager.extend(hookspecs, {"evaluators": EvaluatorDescriptor})
    programs = [
        each.descriptor
        for each in plugin_manager.descriptors()
        if isinstance(each.descriptor, EvaluatorDescriptor)
    ]

    def read(snapshot: Snapshot) -> WriteOptions:
        for each in programs:
            if each.model_files is not None and (
                files := each.model_files(snapshot, plugin_manager)
            ):
                compute = each.computed_tables if item_vectors else None
                computed = {} if compute is None else compute(snapshot, plugin_manager)
                return WriteOptions(model=files, computed=computed)
        return WriteOptions()

    return read
