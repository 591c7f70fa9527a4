"""Which checkpoint TensorFlow writes or restores at the moment.

TensorFlow asks a variable for its tensors without a word of where they go, and, while it restores, asks
for them once more to learn their names and dtypes. What knows is further up among the calls:
`tf.train.Checkpoint.write` and `save` have the prefix, and what restores has the checkpoint with what it
holds of the variable.
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
"""Suffix of a prefix, to which `sidecar` adds its own."""

TABLE_TENSOR = "SPARRING_TABLE"
"""In a checkpoint: what a row is, or where rows lie, as JSON."""


@dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """A checkpoint, as far as one variable is concerned."""

    prefix: str
    keys: Mapping[str, str]
    """Name of a tensor → what it is called in the checkpoint."""


def find_restored_checkpoint() -> RestoredCheckpoint | None:
    """Checkpoint that TensorFlow restores a variable from; None: it writes one."""
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
    """Whether what TensorFlow writes are the variables of a SavedModel, which has rows as assets."""
    return next(_frames("tensorflow.python.saved_model.save"), None) is not None


def find_written_checkpoint() -> tuple[Path, object]:
    """The path to store rows next to, and one object for all that TensorFlow writes there.

    Raises:
        UnsupportedError: the checkpoint is written to another machine.
    """
    graph: object = None
    for frame in _frames("tensorflow.python.checkpoint."):
        graph = frame.f_locals.get("object_graph_proto") if graph is None else graph
        prefix = frame.f_locals.get("file_prefix")
        if isinstance(prefix, (str, os.PathLike)):
            return rows_path(os.fspath(prefix)), _writing_of(graph)
    raise UnsupportedError(
        "rows of tables are in a snapshot next to a checkpoint, and nothing says where TensorFlow "
        "writes this one; call write or save of tf.train.Checkpoint with a path"
    )


class _Writing:
    """One checkpoint under way."""


class _LastCheckpoint(threading.local):
    graph: object = None
    writing: _Writing | None = None


_last = _LastCheckpoint()
"""On each thread, what TensorFlow wrote last: the description of the objects, which it makes again for
each checkpoint, cannot be referred to weakly, and its number may be that of the next one once it is gone.
No table is kept alive by that: see `SidecarSave`."""


def _writing_of(graph: object) -> object:
    if graph is None:
        return None
    if _last.writing is None or _last.graph is not graph:
        _last.graph, _last.writing = graph, _Writing()
    return _last.writing


def rows_path(prefix: str) -> Path:
    """Path to store rows next to: `sidecar` adds ``.rows`` to it.

    Raises:
        UnsupportedError: the checkpoint is on another machine.
    """
    if "://" in prefix:
        raise UnsupportedError(
            f"rows of tables are in a snapshot next to a checkpoint, and {prefix!r} is on no file "
            "system of this machine; write the checkpoint to one, and copy it with its rows"
        )
    return Path(f"{prefix}{ENDING}").absolute()


def _frames(module: str) -> Iterator[FrameType]:
    """The calls of a module of TensorFlow that are under way, the innermost first."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(module):
            yield frame
        frame = frame.f_back
