"""Rows in files of Keras, ``.keras`` and ``.weights.h5``.

The weights of a layer contain these arrays for its table number i: ``table_i`` (bytes) uint8, JSON that
describes a row; ``keys_i`` (n) int64; ``rows_i`` (n, row bytes) uint8; ``scores_i`` (n) uint64;
``state_i``, the state of a new row. If the rows are too large or are on several ranks, the JSON refers to
a snapshot next to the file, and there are no keys; see `sidecar`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import StepContainer
from sparring.errors import DataError
from sparring_tf.saving import saved_rows
from sparring_tf.saving.keras_files import find_keras_file
from sparring_tf.saving.saved_rows import (
    ARRAYS,
    TableRows,
    check_ranks,
    gather_rows,
    parse_description,
)
from sparring_tf.saving.sidecar import begin_save, get_prepared_save

__all__ = ["load_rows", "save_rows"]


def save_rows(
    container: StepContainer, table: str, store: MutableMapping[str, Any], i: int
) -> None:
    """Writes the rows of a table with their state and scores, or their location.

    Args:
        container: container of the table.
        table: name of the table.
        store: Keras's store of the layer.
        i: number of the table in the layer.

    Raises:
        UnsupportedError: rows are also on other ranks, and `sparring_tf.save_model` was not used; or
            they exceed `saved_rows.MAX_BYTES`, and Keras does not write to a file on this machine.
        SnapshotError: the file system failed.
    """
    save = get_prepared_save()
    if save is None:
        remedy = "call sparring_tf.save_model(model, path) on all of them"
        check_ranks(container, table, "file of Keras", remedy)
        if saved_rows.num_row_bytes(container, table) > saved_rows.MAX_BYTES:
            # Old releases create one entry per layer in a single HDF5 file.
            written = store if hasattr(store, "make") else getattr(store, "h5_file", store)
            save = begin_save(written, find_keras_file)
            save.write(container)
            save.remove_older()
    sidecar = None if save is None else save.rows(container, table)
    rows = gather_rows(container, table, sidecar)
    store[f"table_{i}"] = np.frombuffer(json.dumps(rows.described).encode(), np.uint8)
    for name in ARRAYS:
        store[f"{name}_{i}"] = getattr(rows, name)


def load_rows(container: StepContainer, table: str, store: Mapping[str, Any], i: int) -> None:
    """Replaces the rows of a table by those that `save_rows` wrote.

    Raises:
        DataError: the rows are missing or damaged.
        InvalidArgumentError, SnapshotError, CapacityError, UnsupportedError: see
            `saved_rows.restore_rows`.
    """
    try:
        text = _plain(store[f"table_{i}"]).tobytes()
        arrays = {name: _plain(store[f"{name}_{i}"]) for name in ARRAYS}
    except (KeyError, OSError, ValueError) as error:
        raise DataError(
            f"the saved model does not contain the rows of table {table!r} ({error}); save the whole "
            "model again",
            table=table,
        ) from error
    rows = TableRows(parse_description(text, table), **arrays)
    saved_rows.restore_rows(container, table, rows, find_keras_file)


def _plain(stored: Any) -> npt.NDArray[Any]:
    """Converts an HDF5 array, whose dtype has metadata, to an ordinary array."""
    array = np.asarray(stored)
    return array.view(np.dtype(array.dtype.str))
