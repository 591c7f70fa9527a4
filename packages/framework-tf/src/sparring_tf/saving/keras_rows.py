"""Rows of what Keras saves, ``.keras`` and ``.weights.h5``.

Among a layer's weights, table number i of the layer has arrays: ``table_i`` (bytes) uint8, JSON that
says what a row is; ``keys_i`` (n) int64; ``rows_i`` (n, row bytes) uint8; ``scores_i`` (n) uint64;
``state_i``, the state of a new row. Where rows are too many, or lie on several ranks, the JSON names a
snapshot next to the file, and there are no keys here: see `sidecar`.
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
    """Writes the rows of a table, their state and scores, or where they lie.

    Args:
        container: where the table lives.
        table: its name.
        store: Keras's, of the layer.
        i: the table's number in the layer.

    Raises:
        UnsupportedError: rows lie on other ranks too, and `sparring_tf.save_model` was not asked; or
            they are more than `saved_rows.MAX_BYTES`, and Keras writes to no file on this machine.
        SnapshotError: the file system failed.
    """
    save = get_prepared_save()
    if save is None:
        remedy = "call sparring_tf.save_model(model, path) on all of them"
        check_ranks(container, table, "file of Keras", remedy)
        if saved_rows.num_row_bytes(container, table) > saved_rows.MAX_BYTES:
            # Old releases make an entry for each layer, of one file of HDF5.
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
        DataError: they are missing, or damaged.
        InvalidArgumentError, SnapshotError, CapacityError, UnsupportedError: as
            `saved_rows.restore_rows`.
    """
    try:
        text = _plain(store[f"table_{i}"]).tobytes()
        arrays = {name: _plain(store[f"{name}_{i}"]) for name in ARRAYS}
    except (KeyError, OSError, ValueError) as error:
        raise DataError(
            f"the saved model lacks the rows of table {table!r} ({error}); save it again, whole",
            table=table,
        ) from error
    rows = TableRows(parse_description(text, table), **arrays)
    saved_rows.restore_rows(container, table, rows, find_keras_file)


def _plain(stored: Any) -> npt.NDArray[Any]:
    """An array of HDF5, whose dtype says more than NumPy's own."""
    array = np.asarray(stored)
    return array.view(np.dtype(array.dtype.str))
