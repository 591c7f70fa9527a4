"""Removes rows of deleted checkpoints, such as those that `tf.train.CheckpointManager` deletes."""

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
"""Minimum age of removed rows. Younger rows may belong to a checkpoint that is still being written."""

_ROWS, _INDEX = f"{ENDING}.rows", ".index"

_log = logging.getLogger(__name__)


def remove_orphans(path: Path) -> None:
    """Removes rows next to a checkpoint that no checkpoint refers to.

    A renamed or copied checkpoint refers to the rows of its original name. If a checkpoint cannot be
    read, no rows are removed. Errors of the file system are only logged, because the rows that were just
    written do not depend on the removal.

    Args:
        path: path of rows that are being written. Rows in the same folder are checked.
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
        _log.warning(
            "cannot remove rows of deleted checkpoints in %s: %s; remove them by hand",
            path.parent,
            error,
        )
        return
    for folder in orphans:
        if folder.name not in named:
            _remove(folder)


def _is_orphan(folder: Path) -> bool:
    """Whether the checkpoint of these rows no longer exists."""
    try:
        seconds = time.time() - folder.stat().st_mtime
    except FileNotFoundError:
        # Another process may remove the same rows.
        return False
    prefix = folder.name.removesuffix(_ROWS)
    return seconds >= _ORPHAN_SECONDS and not folder.with_name(f"{prefix}{_INDEX}").exists()


def _named_folders(parent: Path) -> Iterator[str]:
    """Yields the folders of rows that the checkpoints in a folder refer to."""
    for index in parent.glob(f"*{_INDEX}"):
        # Unlike `tf.train.load_checkpoint`, it does not confuse a folder of this name with a checkpoint.
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
        _log.warning(
            "cannot remove rows of a deleted checkpoint in %s: %s; remove them by hand",
            folder,
            error,
        )
