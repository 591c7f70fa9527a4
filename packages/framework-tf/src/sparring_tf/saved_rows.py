"""Rows of what Keras saves, ``.keras`` and ``.weights.h5``, and inside checkpoints.

Among a layer's weights, table number i of the layer has arrays: ``table_i`` (bytes) uint8, JSON that
says what a row is; ``state_i``, the state of a new row; and ``keys_i`` (n) int64, ``rows_i`` (n, row
bytes) uint8, ``scores_i`` (n) uint64. Where rows are too many, or lie on several ranks, the JSON names a
snapshot beside the file instead, as ``beside``: see `rows_beside`.
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
from sparring.saving.agreeing import agree
from sparring.table import TableConfig
from sparring_tf.keras_files import file_at_hand
from sparring_tf.rows_beside import begun_save, named_in, open_beside, prepared

__all__ = [
    "MOST_BYTES",
    "TableRows",
    "check_inside",
    "gather_rows",
    "load_rows",
    "num_row_bytes",
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
    """Writes the rows of a table, their state and scores, or where they lie.

    Args:
        container: where the table lives.
        table: its name.
        store: Keras's, of the layer.
        i: the table's number in the layer.

    Raises:
        UnsupportedError: rows lie on other ranks too, and `sparring_tf.save_model` was not asked; or
            they are more than `MOST_BYTES`, and Keras writes to no file on this machine.
        SnapshotError: the file system failed.
    """
    save = prepared()
    if save is None:
        remedy = "call sparring_tf.save_model(model, path) on all of them"
        _check_ranks(container, table, "a file of Keras", remedy)
        if num_row_bytes(container, table) > MOST_BYTES:
            _check_alone(container, table, remedy)
            save = begun_save(store, MOST_BYTES)
            save.write(container)
            save.remove_older()
    described: dict[str, Any]
    if save is not None and container in save:
        beside = save.rows(container, table).as_dict()
        described = {**_described(container.tables[table]), "beside": beside}
        arrays = {"state": _initial_state(container, table)}
    else:
        rows = gather_rows(container, table)
        described = dict(rows.described)
        arrays = {name: getattr(rows, name) for name in _ARRAYS}
    store[f"table_{i}"] = np.frombuffer(json.dumps(described).encode(), np.uint8)
    for name, array in arrays.items():
        store[f"{name}_{i}"] = array


def load_rows(container: StepContainer, table: str, store: Mapping[str, Any], i: int) -> None:
    """Replaces the rows of a table by those that `save_rows` wrote.

    Where they lie beside the file, all ranks call it.

    Raises:
        DataError: they are missing, or damaged.
        SnapshotError: the snapshot beside the file is missing, damaged or another one.
        InvalidArgumentError, CapacityError, UnsupportedError: as `restore_rows`.
    """
    arrays = {}
    try:
        described = json.loads(_plain(store[f"table_{i}"]).tobytes())
        is_beside = isinstance(described, dict) and "beside" in described
        for name in ("state",) if is_beside else _ARRAYS:
            arrays[name] = _plain(store[f"{name}_{i}"])
    except (KeyError, OSError, ValueError) as error:
        raise DataError(
            f"the saved model lacks the rows of table {table!r} ({error}); save it again, whole",
            table=table,
        ) from error
    if is_beside:
        _load_beside(container, table, described, arrays["state"])
    else:
        restore_rows(container, table, TableRows(described, **arrays))


def _load_beside(
    container: StepContainer, table: str, described: Mapping[str, Any], state: npt.NDArray[Any]
) -> None:
    error: Exception | None = None
    method, url = str(described.get("state_method")), ""
    try:
        rows = named_in(described["beside"], table)
        _check_described(container.tables[table], described)
        if rows.table != table:
            raise InvalidArgumentError(
                f"table {table!r}: these rows were saved as those of table {rows.table!r}; give the "
                f"layer the name that it had: name={rows.table!r}",
                table=table,
            )
        snapshot = open_beside(file_at_hand(), rows, table)
        saved = snapshot.tables.get(table)
        if saved is None or (saved.state_width, saved.state_method) != (state.size, method):
            raise DataError(
                f"the snapshot {snapshot.url} has no rows of table {table!r} with the state that the "
                "file says; the file is damaged",
                table=table,
            )
        if container.collective.world_size == 1:
            _check_room(container, table, snapshot.num_rows(table))
        container.check_state(table, state.size, method)
        url = snapshot.url
    except Exception as failure:
        error = failure
    agree(container.collective, f"rows of table {table!r}, nothing was loaded", error)
    container.set_state(table, state, method)
    container.load(url, tables=[table])


def _plain(stored: Any) -> npt.NDArray[Any]:
    """An array of HDF5, whose dtype says more than NumPy's own."""
    array = np.asarray(stored)
    return array.view(np.dtype(array.dtype.str))


def gather_rows(container: StepContainer, table: str) -> TableRows:
    """Copies the rows of a table on this rank, their state and scores."""
    config = container.tables[table]
    chunks = list(container.storage(table).scan()) if container.num_rows(table) else []
    rows = [np.ascontiguousarray(each.rows).view(np.uint8) for each in chunks]
    return TableRows(
        _described(config),
        _joined([each.keys for each in chunks], np.empty(0, np.int64)),
        _joined(rows, np.empty((0, config.row_bytes), np.uint8)),
        _joined([each.scores for each in chunks], np.empty(0, np.uint64)),
        _initial_state(container, table),
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
    found, keys, rows = saved.described, saved.keys, saved.rows
    if not isinstance(found, Mapping):
        raise DataError(f"what a row of table {table!r} is was not saved; the file is damaged")
    _check_described(config, found)
    method = str(found.get("state_method"))
    _check_whole(saved, config.with_state(saved.state.size, method).row_bytes, table)
    _check_room(container, table, len(keys))
    container.set_state(table, saved.state, method)
    storage = container.storage(table)
    storage.clear()
    storage.restore(keys, rows.view(container.tables[table].numpy_dtype), saved.scores)


def check_inside(container: StepContainer, table: str, target: str, remedy: str) -> None:
    """Refuses rows that what is saved cannot hold.

    Args:
        container: where the table lives.
        table: its name.
        target: what would hold them, for messages.
        remedy: what to do instead, for messages.

    Raises:
        UnsupportedError: rows lie on other ranks too, or are more than `MOST_BYTES`.
    """
    _check_ranks(container, table, f"a {target}", remedy)
    num_bytes = num_row_bytes(container, table)
    if num_bytes > MOST_BYTES:
        raise UnsupportedError(
            f"the rows of table {table!r} take {num_bytes:,} bytes, and a {target} holds up to "
            f"{MOST_BYTES:,}; {remedy}",
            table=table,
        )


def num_row_bytes(container: StepContainer, table: str) -> int:
    """Of all rows of a table on this rank."""
    return container.num_rows(table) * container.tables[table].row_bytes


def _check_described(config: TableConfig, found: Mapping[str, Any]) -> None:
    table, wanted = config.name, _described(config)
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


def _check_room(container: StepContainer, table: str, num_rows: int) -> None:
    # Even if it holds but a part of a snapshot: a load is what mends that.
    storage = container.opened(container.entry(table))
    if not storage.capabilities.evicts and num_rows > (storage.capacity or num_rows):
        raise CapacityError(
            f"table {table!r}: {num_rows:,} rows were saved, and its storage holds up to "
            f"{storage.capacity:,}; give it a larger vocabulary_size",
            table=table,
        )


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


def _check_alone(container: StepContainer, table: str, remedy: str) -> None:
    world_size = container.collective.world_size
    if world_size > 1:
        raise UnsupportedError(
            f"the rows of table {table!r} are too many for a file of Keras, and the snapshot beside "
            f"it is written by all {world_size} ranks; {remedy}",
            table=table,
        )


def _initial_state(container: StepContainer, table: str) -> npt.NDArray[Any]:
    initial = container.entry(table).initial_state
    dtype = container.tables[table].computing_dtype
    return np.empty(0, dtype) if initial is None else initial


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
