"""Rows inside what Keras saves, ``.keras`` and ``.weights.h5``, and inside checkpoints.

Among a layer's weights, table number i of the layer has arrays: ``table_i`` (bytes) uint8, JSON that
says what a row is; ``keys_i`` (n) int64; ``rows_i`` (n, row bytes) uint8; ``scores_i`` (n) uint64;
``state_i``, the state of a new row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import StepContainer
from sparring.errors import CapacityError, DataError, InvalidArgumentError, UnsupportedError
from sparring.table import TableConfig

__all__ = [
    "MOST_BYTES",
    "TableRows",
    "gather_rows",
    "load_rows",
    "restore_rows",
    "save_rows",
]

MOST_BYTES = 1 << 30
"""Of the rows of one table that a model holds inside: they are in memory while it is saved."""

_ARRAYS = ("keys", "rows", "scores", "state")


@dataclass(frozen=True, slots=True)
class TableRows:
    """All rows of a table."""

    described: Mapping[str, Any]
    """What a row is."""
    keys: npt.NDArray[np.int64]
    """``(n)``"""
    rows: npt.NDArray[np.uint8]
    """``(n, row bytes)``"""
    scores: npt.NDArray[np.uint64]
    """``(n)``"""
    state: npt.NDArray[Any]
    """Of a new row."""


def save_rows(
    container: StepContainer, table: str, store: MutableMapping[str, Any], i: int
) -> None:
    """Writes the rows of a table, their state and scores.

    Args:
        container: where the table lives.
        table: its name.
        store: Keras's, of the layer.
        i: the table's number in the layer.

    Raises:
        UnsupportedError: rows lie on other ranks too, or are more than `MOST_BYTES`.
    """
    rows = gather_rows(
        container,
        table,
        "file of Keras",
        "save a snapshot, container.save(url), with sparring_tf.gather_state(…) for what is dense",
    )
    store[f"table_{i}"] = np.frombuffer(json.dumps(rows.described).encode(), np.uint8)
    for name in _ARRAYS:
        store[f"{name}_{i}"] = getattr(rows, name)


def load_rows(container: StepContainer, table: str, store: Mapping[str, Any], i: int) -> None:
    """Replaces the rows of a table by those that `save_rows` wrote.

    Raises:
        DataError: they are missing, or damaged.
        InvalidArgumentError, CapacityError, UnsupportedError: as `restore_rows`.
    """
    try:
        described = json.loads(_plain(store[f"table_{i}"]).tobytes())
        arrays = {name: _plain(store[f"{name}_{i}"]) for name in _ARRAYS}
    except (KeyError, OSError, ValueError) as error:
        raise DataError(
            f"the saved model lacks the rows of table {table!r} ({error}); save it again, whole",
            table=table,
        ) from error
    restore_rows(container, table, TableRows(described, **arrays))


def _plain(stored: Any) -> npt.NDArray[Any]:
    """An array of HDF5, whose dtype says more than NumPy's own."""
    array = np.asarray(stored)
    return array.view(np.dtype(array.dtype.str))


def gather_rows(container: StepContainer, table: str, target: str, remedy: str) -> TableRows:
    """Copies the rows of a table, their state and scores.

    Args:
        container: where the table lives.
        table: its name.
        target: what will hold the rows, for messages.
        remedy: what to do where it cannot, for messages.

    Raises:
        UnsupportedError: rows lie on other ranks too, or are more than `MOST_BYTES`.
    """
    config = container.tables[table]
    _check_ranks(container, table, f"a {target}", remedy)
    num_bytes = container.num_rows(table) * config.row_bytes
    if num_bytes > MOST_BYTES:
        raise UnsupportedError(
            f"the rows of table {table!r} take {num_bytes:,} bytes, and a {target} holds up to "
            f"{MOST_BYTES:,}; {remedy}",
            table=table,
        )
    chunks = list(container.storage(table).scan()) if container.num_rows(table) else []
    rows = [np.ascontiguousarray(each.rows).view(np.uint8) for each in chunks]
    initial = container.entry(table).initial_state
    return TableRows(
        _described(config),
        _joined([each.keys for each in chunks], np.empty(0, np.int64)),
        _joined(rows, np.empty((0, config.row_bytes), np.uint8)),
        _joined([each.scores for each in chunks], np.empty(0, np.uint64)),
        np.empty(0, config.computing_dtype) if initial is None else initial,
    )


def restore_rows(container: StepContainer, table: str, saved: TableRows) -> None:
    """Replaces the rows of a table by those that `gather_rows` copied.

    Raises:
        DataError: they are not of one length, or a key is there twice.
        InvalidArgumentError: they are of another dim or dtype, or have another optimizer's state.
        CapacityError: the storage has no room for them, and may not evict.
        UnsupportedError: rows lie on other ranks too.
    """
    _check_ranks(
        container, table, "a file of Keras or checkpoint", "load a snapshot: container.load(url)"
    )
    config = container.tables[table]
    wanted = _described(config)
    found, keys, rows = saved.described, saved.keys, saved.rows
    if not isinstance(found, Mapping):
        raise DataError(f"what a row of table {table!r} is was not saved; the file is damaged")
    for name in ("dim", "dtype", "initializer", "seed"):
        if found.get(name) != wanted[name]:
            raise InvalidArgumentError(
                f"table {table!r}: the saved rows have {name} {found.get(name)!r}, the layer's table "
                f"{wanted[name]!r}; nothing was loaded",
                table=table,
            )
    method = str(found.get("state_method"))
    if config.state_method not in ("", method):
        raise InvalidArgumentError(
            f"table {table!r}: the saved rows have the state of {method!r}, and are updated by "
            f"{config.state_method!r}; compile the model with the optimizer that it was saved with, "
            "or load it with compile=False",
            table=table,
        )
    _check_whole(saved, config.with_state(saved.state.size, method).row_bytes, table)
    storage = container.storage(table)
    if not storage.capabilities.evicts and len(keys) > (storage.capacity or len(keys)):
        raise CapacityError(
            f"table {table!r}: {len(keys):,} rows were saved, and its storage holds up to "
            f"{storage.capacity:,}; give it a larger vocabulary_size",
            table=table,
        )
    container.set_state(table, saved.state, method)
    storage = container.storage(table)
    storage.clear()
    storage.restore(keys, rows.view(container.tables[table].numpy_dtype), saved.scores)


def _check_whole(saved: TableRows, row_bytes: int, table: str) -> None:
    """Refuses what `gather_rows` cannot have given, before rows that are there make room for it."""
    num_rows = saved.keys.size
    arrays: dict[str, tuple[npt.NDArray[Any], tuple[int, ...], Any]] = {
        "keys": (saved.keys, (num_rows,), np.int64),
        "rows": (saved.rows, (num_rows, row_bytes), np.uint8),
        "scores": (saved.scores, (num_rows,), np.uint64),
        "state": (saved.state, (saved.state.size,), saved.state.dtype),
    }
    for name, (array, shape, dtype) in arrays.items():
        if array.shape != shape or array.dtype != dtype:
            raise DataError(
                f"the saved {name} of table {table!r} are {array.dtype.name} {array.shape}, expected "
                f"{np.dtype(dtype).name} {shape}; the file is damaged",
                table=table,
            )
    if len(np.unique(saved.keys)) != num_rows:
        raise DataError(
            f"the saved keys of table {table!r} are not distinct; the file is damaged", table=table
        )


def _check_ranks(container: StepContainer, table: str, target: str, remedy: str) -> None:
    world_size = container.collective.world_size
    if world_size > 1 and not container.tables[table].is_replicated:
        raise UnsupportedError(
            f"the rows of table {table!r} lie on {world_size} ranks, and {target} is written "
            f"and read by one; {remedy}",
            table=table,
        )


def _described(config: TableConfig) -> dict[str, Any]:
    initializer: Any = config.initializer
    return {
        "dim": config.dim,
        "dtype": config.dtype,
        "state_method": config.state_method,
        "initializer": initializer.as_dict(),
        "seed": config.seed,
    }


def _joined(parts: list[Any], none: Any) -> Any:
    return np.concatenate(parts) if parts else none
