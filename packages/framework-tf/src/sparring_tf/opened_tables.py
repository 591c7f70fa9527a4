"""Tables of SavedModels that this process has loaded.

The op SparringOpen calls `OPEN_TABLES` when a SavedModel is loaded, and SparringClose calls
`CLOSE_TABLES` when it is deleted. Models with the same rows share them.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from sparring import Snapshot, StepContainer, StorageChoice, open_snapshot
from sparring.adapter import Publication
from sparring.contracts import TableConfig
from sparring.errors import (
    CapacityError,
    CorruptDataError,
    InvalidArgumentError,
    PluginError,
    SnapshotError,
    StorageIOError,
)

__all__ = ["CLOSE_TABLES", "OPEN_TABLES", "count_open_snapshots"]

_lock = threading.Lock()
_held: dict[int, tuple[Any, str]] = {}
"""Number → the publication with this number, and the manifest hash of its snapshot."""
_containers: dict[str, StepContainer] = {}
"""Manifest hash of a snapshot → container of its rows."""

# The first matching class determines the code.
_CODES = (
    (CorruptDataError, tf.errors.DATA_LOSS),
    (StorageIOError, tf.errors.UNAVAILABLE),
    # Not NOT_FOUND, because TensorFlow would append misleading advice about devices.
    (SnapshotError, tf.errors.FAILED_PRECONDITION),
    (InvalidArgumentError, tf.errors.INVALID_ARGUMENT),
    (CapacityError, tf.errors.RESOURCE_EXHAUSTED),
    (MemoryError, tf.errors.RESOURCE_EXHAUSTED),
    (PluginError, tf.errors.FAILED_PRECONDITION),
)


def count_open_snapshots() -> int:
    """Returns the number of snapshots whose rows are in memory."""
    return len(_containers)


class _Opening(ctypes.Structure):
    """The struct ``Opening`` of ``native/opening_ops.cc``."""

    _fields_ = (
        ("manifest", ctypes.c_void_p),
        ("manifest_bytes", ctypes.c_int64),
        ("features", ctypes.c_void_p),
        ("features_bytes", ctypes.c_int64),
        ("number", ctypes.c_int64),
        ("message", ctypes.c_void_p),
        ("message_bytes", ctypes.c_int64),
    )


def _open(manifest: str, features: Sequence[tuple[str, str]]) -> int:
    """Opens tables of a snapshot and returns the number by which lookup ops identify `features`."""
    snapshot = open_snapshot(manifest)
    identity = snapshot.manifest_hash
    publication = Publication()
    with _lock:
        container = _containers.get(identity)
        if container is None:
            container = _load(snapshot, manifest)
        try:
            publication.show(container.collection(features))
        except BaseException:
            if identity not in _containers:
                container.close()
            raise
        _containers[identity] = container
        _held[publication.number] = publication, identity
    return int(publication.number)


def _load(snapshot: Snapshot, manifest: str) -> StepContainer:
    """Loads all tables of a snapshot into memory."""
    try:
        return _load_into("hkv", snapshot, manifest)
    except PluginError:
        return _load_into("memory", snapshot, manifest)


def _load_into(backend: str, snapshot: Snapshot, manifest: str) -> StepContainer:
    container = StepContainer()
    try:
        for name, table in snapshot.tables.items():
            initializer, seed = table.extra["initializer"], table.extra["seed"]
            config = TableConfig(name, table.dim, table.dtype, initializer, seed=seed)
            container.declare(config, StorageChoice(backend))
            container.storage(name)
        container.load(manifest, tables=snapshot.tables)
    except BaseException:
        container.close()
        raise
    return container


def _close(number: int) -> None:
    with _lock:
        _, identity = _held.pop(number, (None, None))
        if identity is None or any(identity == other for _, other in _held.values()):
            return
        container = _containers.pop(identity)
    container.close()


@ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(_Opening))
def OPEN_TABLES(request: Any) -> int:  # noqa: N802 - a constant, created by a decorator
    opening = request.contents
    manifest = ctypes.string_at(opening.manifest, opening.manifest_bytes).decode()
    try:
        features = json.loads(ctypes.string_at(opening.features, opening.features_bytes))
        opening.number = _open(manifest, [tuple(each) for each in features])
    except BaseException as error:  # exceptions must not propagate into C
        text = (
            f"{type(error).__name__}: the tables of this SavedModel cannot be opened from "
            f"{manifest}: {error}. Copy the whole SavedModel, including its folder assets, or "
            "export the model again"
        )
        message = text.encode()[: opening.message_bytes - 1]
        ctypes.memmove(opening.message, message + b"\0", len(message) + 1)
        kinds = (code for kind, code in _CODES if isinstance(error, kind))
        return int(next(kinds, tf.errors.INTERNAL))
    return 0


@ctypes.CFUNCTYPE(None, ctypes.c_int64)
def CLOSE_TABLES(number: int) -> None:  # noqa: N802 - see OPEN_TABLES
    _close(number)
