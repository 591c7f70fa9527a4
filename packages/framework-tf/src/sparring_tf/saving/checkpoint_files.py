"""Finds the checkpoint that TensorFlow is currently writing or restoring.

TensorFlow requests the tensors of a variable without the path of the checkpoint. While it restores a
variable, it requests them again for their names and dtypes. The path is found in local variables of the
stack frames: those of `tf.train.Checkpoint.write` and `save` contain the prefix. Those of the restoring
function contain the checkpoint and the names of its tensors for the variable.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from sparring.errors import UnsupportedError

__all__ = [
    "ENDING",
    "TABLE_TENSOR",
    "RestoredCheckpoint",
    "find_restored_checkpoint",
    "find_written_checkpoint",
    "is_saved_model_being_written",
    "rows_path",
]

ENDING = ".checkpoint"
"""Suffix that is added to the prefix of a checkpoint. `sidecar` adds ``.rows`` after it."""

TABLE_TENSOR = "SPARRING_TABLE"
"""Name of a tensor in a checkpoint, which contains JSON: the description of a row, or the location of
rows."""


@dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """A checkpoint from which one variable is restored."""

    prefix: str
    keys: Mapping[str, str]
    """Name of a tensor → its key in the checkpoint."""


def find_restored_checkpoint() -> RestoredCheckpoint | None:
    """Returns the checkpoint from which TensorFlow restores a variable, or None if it writes one."""
    for frame in _frames("tensorflow.python.checkpoint.restore"):
        position: Any = frame.f_locals.get("self")
        attributes = getattr(getattr(position, "object_proto", None), "attributes", None)
        prefix = getattr(getattr(position, "checkpoint", None), "save_path_string", None)
        if attributes is not None and prefix is not None:
            keys = {
                each.checkpoint_key.rpartition("/")[2]: each.checkpoint_key for each in attributes
            }
            return RestoredCheckpoint(prefix, keys)
    return None


def is_saved_model_being_written() -> bool:
    """Whether TensorFlow is writing the variables of a SavedModel, which contains rows as assets."""
    return next(_frames("tensorflow.python.saved_model.save"), None) is not None


def find_written_checkpoint() -> tuple[Path, object]:
    """Returns the path to store rows next to, and an object that identifies the checkpoint.

    Raises:
        UnsupportedError: the checkpoint is not on a file system of this machine.
    """
    graph: object = None
    for frame in _frames("tensorflow.python.checkpoint."):
        graph = frame.f_locals.get("object_graph_proto") if graph is None else graph
        prefix = frame.f_locals.get("file_prefix")
        if isinstance(prefix, (str, os.PathLike)):
            return rows_path(os.fspath(prefix)), _writing_of(graph)
    raise UnsupportedError(
        "rows of tables are saved in a snapshot next to a checkpoint, but the path of this checkpoint is "
        "unknown; call write or save of tf.train.Checkpoint with a path"
    )


class _Writing:
    """Identifies one checkpoint that is being written."""


class _LastCheckpoint(threading.local):
    graph: object = None
    writing: _Writing | None = None


_last = _LastCheckpoint()
"""The last checkpoint of each thread, identified by TensorFlow's description of its objects. The
description is stored, because it does not support weak references and its `id` may be reused after it is
deleted. It does not keep tables alive; see `SidecarSave`."""


def _writing_of(graph: object) -> object:
    if graph is None:
        return None
    if _last.writing is None or _last.graph is not graph:
        _last.graph, _last.writing = graph, _Writing()
    return _last.writing


def rows_path(prefix: str) -> Path:
    """Returns the path to store rows next to. `sidecar` adds ``.rows`` to it.

    Raises:
        UnsupportedError: the checkpoint is not on a file system of this machine.
    """
    if "://" in prefix:
        raise UnsupportedError(
            f"rows of tables are saved in a snapshot next to a checkpoint, but {prefix!r} is not on a "
            "file system of this machine; write the checkpoint to a local path, and copy it with its rows"
        )
    return Path(f"{prefix}{ENDING}").absolute()


def _frames(module: str) -> Iterator[FrameType]:
    """Yields the stack frames of a module of TensorFlow, the innermost first."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(module):
            yield frame
        frame = frame.f_back
