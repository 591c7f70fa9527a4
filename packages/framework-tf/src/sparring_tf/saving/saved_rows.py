"""Saves and loads all rows of a table in Keras files and checkpoints, or in a snapshot next to
them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import Snapshot, StepContainer, count_rows
from sparring.adapter import Coordinator, restore
from sparring.contracts import TableConfig
from sparring.errors import (
    CapacityError,
    DataError,
    InvalidArgumentError,
    UnsupportedError,
)
from sparring_tf.saving.sidecar import SidecarRows, open_sidecar, parse_sidecar_rows

__all__ = [
    "SIDECAR",
    "ARRAYS",
    "MAX_BYTES",
    "TableRows",
    "check_ranks",
    "check_rows",
    "parse_description",
    "gather_rows",
    "num_row_bytes",
    "replace_rows",
    "restore_rows",
]

MAX_BYTES = 1 << 30
"""Maximum size of one table's rows in a file of a model; they are in memory while it is saved."""

SIDECAR = "beside"  # a word of the file format
"""Key of the location of rows that are stored next to a file, in the description of a table."""

ARRAYS = ("keys", "rows", "scores", "state")
"""Names of the arrays in `TableRows`."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """All rows of a table."""

    described: Mapping[str, Any]
    """Description of a row; and, under `SIDECAR`, the location of rows that are stored elsewhere."""
    keys: npt.NDArray[np.int64]
    """``(n)``"""
    rows: npt.NDArray[np.uint8]
    """``(n, row bytes)``"""
    scores: npt.NDArray[np.uint64]
    """``(n)``"""
    state: npt.NDArray[Any]
    """State of a new row."""


def gather_rows(
    container: StepContainer, table: str, sidecar: SidecarRows | None = None
) -> TableRows:
    """Copies the rows of a table on this rank, with their state and scores.

    Args:
        container: container of the table.
        table: name of the table.
        sidecar: location of rows that were already saved. The rows are not copied then.
    """
    config, entry = container.tables[table], container.entry(table)
    described = _described(config)
    if sidecar is not None:
        described[SIDECAR] = sidecar.as_dict()
    are_here = sidecar is None and container.num_rows(table) > 0
    chunks = list(container.storage(table).scan()) if are_here else []
    rows = [np.ascontiguousarray(each.rows).view(np.uint8) for each in chunks]
    initial = entry.initial_state
    return TableRows(
        described,
        _concatenate([each.keys for each in chunks], np.empty(0, np.int64)),
        _concatenate(rows, np.empty((0, config.row_bytes), np.uint8)),
        _concatenate([each.scores for each in chunks], np.empty(0, np.uint64)),
        np.empty(0, config.computing_dtype) if initial is None else initial,
    )


def num_row_bytes(container: StepContainer, table: str) -> int:
    """Returns the size in bytes of all rows of a table on this rank."""
    return container.num_rows(table) * container.tables[table].row_bytes


def check_ranks(container: StepContainer, table: str, target: str, remedy: str) -> None:
    """Checks that one rank can save the rows of a table.

    Args:
        container: container of the table.
        table: name of the table.
        target: what would contain the rows, for error messages.
        remedy: the alternative, for error messages.

    Raises:
        UnsupportedError: rows are also on other ranks; or they are too large to be stored inside,
            so that all ranks would have to write a snapshot next to the file.
    """
    world_size = container.collective.world_size
    if world_size == 1:
        return
    if not container.tables[table].is_replicated:
        raise UnsupportedError(
            f"the rows of table {table!r} are on {world_size} ranks, but a {target} is written "
            f"and read by one rank; {remedy}",
            table=table,
        )
    if num_row_bytes(container, table) > MAX_BYTES:
        raise UnsupportedError(
            f"the rows of table {table!r} are too large for a {target}, and the snapshot next to it is "
            f"written by all {world_size} ranks; {remedy}",
            table=table,
        )


def parse_description(text: bytes | str, table: str) -> Mapping[str, Any]:
    """Parses the description of a row from JSON.

    Raises:
        DataError: the text is not a JSON object.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(
            f"the description of the saved rows of table {table!r} is damaged: {error}; load an older "
            "file",
            table=table,
        ) from error
    if not isinstance(found, Mapping):
        raise DataError(
            f"the description of the saved rows of table {table!r} is not a JSON object; the file is "
            "damaged, load an older file",
            table=table,
        )
    return found


def check_rows(
    container: StepContainer, table: str, described: Mapping[str, Any], path: Callable[[], Path]
) -> Snapshot | None:
    """Checks, before rows are read, that they match a table.

    Args:
        container: container of the table.
        table: name of the table.
        described: description of a row.
        path: returns the path of the file, if rows are stored next to it.

    Returns:
        The snapshot that contains the rows, or None if they are inside the file.

    Raises:
        InvalidArgumentError: the rows have another dim, dtype, initializer, seed or optimizer state; or
            the rows in the snapshot belong to a table of another name.
        SnapshotError: the snapshot is missing, damaged or belongs to another save.
        DataError: the file is damaged.
    """
    config, wanted = container.tables[table], _described(container.tables[table])
    for name in ("dim", "dtype", "initializer", "seed"):
        if described.get(name) != wanted[name]:
            raise InvalidArgumentError(
                f"load of table {table!r}: the saved rows have {name} {described.get(name)!r}, but the "
                f"layer's table has {wanted[name]!r}; nothing was loaded. Create the layer with the "
                "saved settings",
                table=table,
            )
    method = str(described.get("state_method"))
    if config.state_method not in ("", method):
        raise InvalidArgumentError(
            f"load of table {table!r}: the saved rows have the state of {method!r}, but are updated by "
            f"{config.state_method!r}; compile the model with the optimizer that it was saved with, "
            "or load it with compile=False",
            table=table,
        )
    if SIDECAR not in described:
        return None
    rows = parse_sidecar_rows(described[SIDECAR], table)
    if rows.table != table:
        raise InvalidArgumentError(
            f"load of table {table!r}: the saved rows belong to table {rows.table!r}; give the "
            f"layer this name: name={rows.table!r}",
            table=table,
        )
    snapshot = open_sidecar(path(), rows, table)
    if table not in snapshot.tables or snapshot.tables[table].state_method != method:
        raise DataError(
            f"the snapshot {snapshot.url} has no rows of table {table!r} with the state of "
            f"{method!r}; the file is damaged, load an older file",
            table=table,
        )
    return snapshot


def restore_rows(
    container: StepContainer, table: str, saved: TableRows, path: Callable[[], Path]
) -> None:
    """Replaces the rows of a table by those that `gather_rows` returned.

    If they are stored next to a file, all ranks call it.

    Args:
        container: container of the table.
        table: name of the table.
        saved: the rows.
        path: returns the path of the file, if the rows are stored next to it.

    Raises:
        DataError: the lengths of the arrays differ, or a key occurs twice.
        InvalidArgumentError, SnapshotError: see `check_rows`.
        CapacityError: the storage has no capacity for the rows, and must not evict.
        UnsupportedError: the rows are inside a file, and the table's rows are also on other ranks.
    """
    method = str(saved.described.get("state_method"))
    snapshot: Snapshot | None = None
    error: Exception | None = None
    if SIDECAR not in saved.described:
        remedy = "save it with sparring_tf.save_model on several ranks, or load a snapshot"
        check_ranks(container, table, "file of Keras or checkpoint", remedy)
    try:
        # A concurrent load or lookup may be communicating with the other ranks.
        container.quiesce()
        snapshot = check_rows(container, table, saved.described, path)
        config = container.tables[table].with_state(saved.state.size, method)
        _check_whole(saved, config.row_bytes, table)
        if snapshot is None:
            _check_capacity(container, table, len(saved.keys))
        else:
            snapshot.tables[table].check(config)
            if container.collective.world_size == 1:
                _check_capacity(container, table, count_rows(snapshot, table))
    except Exception as failure:
        error = failure
    if SIDECAR in saved.described:
        Coordinator(container.collective, f"rows of table {table!r}, nothing was loaded").agree(
            error
        )
    elif error is not None:
        raise error
    container.set_state(table, saved.state, method)
    if snapshot is not None:
        container.load(snapshot.url, tables=[table])
        return
    replace_rows(container, table, saved)


def replace_rows(container: StepContainer, table: str, saved: TableRows) -> None:
    """Replaces the rows of a table on this rank by those that `gather_rows` returned on this rank.

    Raises:
        CapacityError: the storage has no capacity for the rows, and must not evict.
    """
    storage = container.storage(table)
    storage.clear()
    dtype = container.tables[table].numpy_dtype
    restore(storage, saved.keys, saved.rows.view(dtype), saved.scores)


def _check_capacity(container: StepContainer, table: str, num_rows: int) -> None:
    # Opened even if it contains only a part of a snapshot, because a load repairs that.
    storage = container.state.tables.open(container.entry(table))
    if not storage.capabilities.evicts and num_rows > (storage.capacity or num_rows):
        raise CapacityError(
            f"load of table {table!r}: {num_rows:,} rows were saved, but the capacity of its storage is "
            f"{storage.capacity:,}; create it with a larger vocabulary_size",
            table=table,
        )


def _check_whole(saved: TableRows, row_bytes: int, table: str) -> None:
    """Checks the shapes, dtypes and keys of saved rows before the existing rows are removed."""
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
                f"{np.dtype(dtype).name} {shape}; the file is damaged, load an older file",
                table=table,
            )
    if len(np.unique(saved.keys)) != num_rows:
        raise DataError(
            f"the saved keys of table {table!r} are not distinct; the file is damaged, load an older "
            "file",
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


def _concatenate(parts: list[Any], none: Any) -> Any:
    return np.concatenate(parts) if parts else none
