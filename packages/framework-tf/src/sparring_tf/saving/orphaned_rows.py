"""Rows of checkpoints that are gone, as `tf.train.CheckpointManager` removes old ones."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf

from sparring.errors import DataError
from sparring_tf.saving.checkpoint_files import ENDING, TABLE_TENSOR
from sparring_tf.saving.saved_rows import SIDECAR, parse_description
from sparring_tf.saving.sidecar import parse_sidecar_rows

__all__ = ["remove_orphans"]

_ORPHAN_SECONDS = 600.0
"""Rows are there before their checkpoint, which another process may just be writing."""

_ROWS, _INDEX = f"{ENDING}.rows", ".index"

_log = logging.getLogger(__name__)


def remove_orphans(path: Path) -> None:
    """Removes rows next to a checkpoint that no checkpoint names.

    One that was renamed or copied names the rows of its first name. Where one cannot be read, all rows
    stay. What the file system refuses is logged: rows that were just written are good without it.

    Args:
        path: of rows that are being written; those in the same folder are looked at.
    """
    try:
        orphans = [
            each
            for each in path.parent.glob(f"*{_ROWS}")
            if each.name != f"{path.name}.rows" and _is_orphan(each)
        ]
        if not orphans:
            return
        named = set(_named_folders(path.parent))
    except (OSError, ValueError, DataError, tf.errors.OpError) as error:
        _log.warning("rows of checkpoints that are gone stay in %s: %s", path.parent, error)
        return
    for folder in orphans:
        if folder.name not in named:
            _remove(folder)


def _is_orphan(folder: Path) -> bool:
    """Whether there is no checkpoint of its name any more."""
    try:
        seconds = time.time() - folder.stat().st_mtime
    except FileNotFoundError:
        # Another process tidies up here too.
        return False
    prefix = folder.name.removesuffix(_ROWS)
    return seconds >= _ORPHAN_SECONDS and not folder.with_name(f"{prefix}{_INDEX}").exists()


def _named_folders(parent: Path) -> Iterator[str]:
    """Where the checkpoints in a folder have rows."""
    for index in parent.glob(f"*{_INDEX}"):
        # Unlike `tf.train.load_checkpoint`, takes no folder of that name for a checkpoint's.
        reader = tf.compat.v1.train.NewCheckpointReader(str(index).removesuffix(_INDEX))
        for tensor in reader.get_variable_to_shape_map():
            if tensor.rpartition("/")[2] == TABLE_TENSOR:
                described = parse_description(reader.get_tensor(tensor), tensor)
                if SIDECAR in described:
                    yield parse_sidecar_rows(described[SIDECAR], tensor).folder


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except OSError as error:
        _log.warning("rows of a checkpoint that is gone stay in %s: %s", folder, error)
