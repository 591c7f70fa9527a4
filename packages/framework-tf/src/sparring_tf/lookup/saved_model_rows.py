"""Rows of tables as assets of a SavedModel.

TensorFlow copies assets by their base names into one folder, so ``assets`` contains one or more
snapshots of embeddings, one per layer::

    exported/
    ├── saved_model.pb
    ├── variables/
    └── assets/
        ├── manifest.json                             the tables of one layer
        ├── rows.users.0000-4096.00000.0.safetensors
        ├── manifest.1.json                           the tables of another layer
        └── rows.items.0000-4096.00000.0.safetensors
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from sparring import SnapshotWriter, StepContainer, TableDescription
from sparring.adapter import TableGroup
from sparring.contracts import ScanChunk
from sparring.errors import InvalidArgumentError, UnsupportedError

__all__ = ["RowAssets", "export_rows"]

_MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class RowAssets:
    """A snapshot as assets that TensorFlow copies into a SavedModel."""

    manifest: Any
    files: tuple[Any, ...]


class _Export:
    """State of one call of `tf.saved_model.save`. TensorFlow drops it when the call ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sparring-saved-model-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.done: dict[int, RowAssets] = {}
        self.containers: dict[str, StepContainer] = {}


class _Key:
    """Key of an `_Export` in TensorFlow's dictionary of a save, which compares keys by identity."""


_KEY = _Key()


def export_rows(agent: TableGroup, cache: dict[Any, Any]) -> RowAssets:
    """Writes the embeddings of all tables of a layer to temporary files, once per save.

    Args:
        agent: agent of the layer.
        cache: dictionary that TensorFlow passes to all objects of one save.

    Raises:
        UnsupportedError: rows are also on other ranks.
        InvalidArgumentError: two tables of the model have the same name.
        ClosedError: the container was closed.
    """
    export = cache[_KEY] if _KEY in cache else _Export()
    cache[_KEY] = export
    if id(agent) not in export.done:
        _check(agent, export)
        export.done[id(agent)] = _export_layer(agent, export)
    return export.done[id(agent)]


def _check(agent: TableGroup, export: _Export) -> None:
    container = agent.container
    for name in agent.table_names:
        world_size = container.collective.world_size
        if world_size > 1 and not container.tables[name].is_replicated:
            raise UnsupportedError(
                f"SavedModel: the rows of table {name!r} are on {world_size} ranks, but one rank writes "
                "the SavedModel; save a snapshot with container.save(url), load it into one process, and "
                "export the model there",
                table=name,
            )
        if export.containers.setdefault(name, container) is not container:
            raise InvalidArgumentError(
                f"SavedModel: the model has two tables with different rows and the same name {name!r}; "
                "give the layers different names",
                table=name,
            )


def _export_layer(agent: TableGroup, export: _Export) -> RowAssets:
    container = agent.container
    number = len(export.done)
    folder = export.folder / f"layer{number}"
    writer = SnapshotWriter(str(folder), step=container.counters.steps)
    try:
        for name in agent.table_names:
            embeddings = TableDescription.of(container.tables[name].with_state(0))
            writer.write_table(embeddings, _embeddings(container, name))
        writer.finish()
        writer.commit()
    except BaseException:
        writer.abandon()
        raise
    manifest = folder / _MANIFEST
    if number:
        manifest = manifest.rename(folder / f"manifest.{number}.json")
    files = sorted(each for each in folder.iterdir() if each != manifest)
    asset = tf.saved_model.Asset
    return RowAssets(asset(str(manifest)), tuple(asset(str(each)) for each in files))


def _embeddings(container: StepContainer, table: str) -> Iterator[ScanChunk]:
    """Yields the rows of a table without the optimizer state."""
    config = container.tables[table]
    if not container.num_rows(table):
        return
    for chunk in container.storage(table).scan():
        embeddings = np.ascontiguousarray(config.embeddings(chunk.rows))
        yield ScanChunk(chunk.keys, embeddings, chunk.scores)
