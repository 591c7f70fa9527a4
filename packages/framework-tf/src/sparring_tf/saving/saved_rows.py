"""All rows of a table in files of Keras and checkpoints: inside, or in a snapshot next to them."""

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
"""Of the rows of one table that a model holds inside: they are in memory while it is saved."""

SIDECAR = "beside"  # a word of the file format
"""Key of the place of rows that are stored next to a file, in the description of a table."""

ARRAYS = ("keys", "rows", "scores", "state")
"""Of `TableRows`."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """All rows of a table."""

    described: Mapping[str, Any]
    """Description of a row; and, under `SIDECAR`, the place of rows that are stored elsewhere."""
    keys: npt.NDArray[np.int64]
    """``(n)``"""
    rows: npt.NDArray[np.uint8]
    """``(n, row bytes)``"""
    scores: npt.NDArray[np.uint64]
    """``(n)``"""
    state: npt.NDArray[Any]
    """Of a new row."""


def gather_rows(
    container: StepContainer, table: str, sidecar: SidecarRows | None = None
) -> TableRows:
    """Copies the rows of a table on this rank, their state and scores.

    Args:
        container: where the table lives.
        table: its name.
        sidecar: where they have been saved already, instead.
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
    """Of all rows of a table on this rank."""
    return container.num_rows(table) * container.tables[table].row_bytes


def check_ranks(container: StepContainer, table: str, target: str, remedy: str) -> None:
    """Refuses what one rank cannot save alone.

    Args:
        container: where the table lives.
        table: its name.
        target: what would hold the rows, for messages.
        remedy: what to do instead, for messages.

    Raises:
        UnsupportedError: rows are on other ranks too, or are too many to be stored inside, and the
            snapshot next to the file would be written by all ranks.
    """
    world_size = container.collective.world_size
    if world_size == 1:
        return
    if not container.tables[table].is_replicated:
        raise UnsupportedError(
            f"the rows of table {table!r} lie on {world_size} ranks, and a {target} is written "
            f"and read by one; {remedy}",
            table=table,
        )
    if num_row_bytes(container, table) > MAX_BYTES:
        raise UnsupportedError(
            f"the rows of table {table!r} are too many for a {target}, and the snapshot next to it is "
            f"written by all {world_size} ranks; {remedy}",
            table=table,
        )


def parse_description(text: bytes | str, table: str) -> Mapping[str, Any]:
    """Description of a row, from JSON.

    Raises:
        DataError: it is none.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        raise DataError(
            f"the saved rows of table {table!r} are damaged: {error}; load an older file",
            table=table,
        ) from error
    if not isinstance(found, Mapping):
        raise DataError(
            f"what a row of table {table!r} is was not saved; the file is damaged", table=table
        )
    return found


def check_rows(
    container: StepContainer, table: str, described: Mapping[str, Any], path: Callable[[], Path]
) -> Snapshot | None:
    """Refuses rows that do not go with a table, as far as that shows before they are read.

    Args:
        container: where the table lives.
        table: its name.
        described: what a row is.
        path: of the file, if rows are stored next to it.

    Returns:
        The snapshot that holds them, or None: they are inside.

    Raises:
        InvalidArgumentError: they are of another dim, dtype, initializer or seed, or have another
            optimizer's state; in a snapshot, are those of a table of another name.
        SnapshotError: it is missing, damaged or another one.
        DataError: the file is damaged.
    """
    config, wanted = container.tables[table], _described(container.tables[table])
    for name in ("dim", "dtype", "initializer", "seed"):
        if described.get(name) != wanted[name]:
            raise InvalidArgumentError(
                f"table {table!r}: the saved rows have {name} {described.get(name)!r}, the layer's "
                f"table {wanted[name]!r}; nothing was loaded",
                table=table,
            )
    method = str(described.get("state_method"))
    if config.state_method not in ("", method):
        raise InvalidArgumentError(
            f"table {table!r}: the saved rows have the state of {method!r}, and are updated by "
            f"{config.state_method!r}; compile the model with the optimizer that it was saved with, "
            "or load it with compile=False",
            table=table,
        )
    if SIDECAR not in described:
        return None
    rows = parse_sidecar_rows(described[SIDECAR], table)
    if rows.table != table:
        raise InvalidArgumentError(
            f"table {table!r}: these rows were saved as those of table {rows.table!r}; give the "
            f"layer the name that it had: name={rows.table!r}",
            table=table,
        )
    snapshot = open_sidecar(path(), rows, table)
    if table not in snapshot.tables or snapshot.tables[table].state_method != method:
        raise DataError(
            f"the snapshot {snapshot.url} has no rows of table {table!r} with the state of "
            f"{method!r}; the file is damaged",
            table=table,
        )
    return snapshot


def restore_rows(
    container: StepContainer, table: str, saved: TableRows, path: Callable[[], Path]
) -> None:
    """Replaces the rows of a table by those that `gather_rows` gave.

    If they are stored next to a file, all ranks call it.

    Args:
        container: where the table lives.
        table: its name.
        saved: the rows.
        path: of the file, if they are stored next to it.

    Raises:
        DataError: they are not of one length, or a key is there twice.
        InvalidArgumentError, SnapshotError: as `check_rows`.
        CapacityError: the storage has no room for them, and may not evict.
        UnsupportedError: they are inside a file, and rows lie on other ranks too.
    """
    method = str(saved.described.get("state_method"))
    snapshot: Snapshot | None = None
    error: Exception | None = None
    if SIDECAR not in saved.described:
        remedy = "save it with sparring_tf.save_model on several ranks, or load a snapshot"
        check_ranks(container, table, "file of Keras or checkpoint", remedy)
    try:
        # A concurrent load or lookup may be meeting the other ranks.
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
    """Replaces the rows of a table on this rank by those that `gather_rows` gave here.

    Raises:
        CapacityError: the storage has no room for them, and may not evict.
    """
    storage = container.storage(table)
    storage.clear()
    dtype = container.tables[table].numpy_dtype
    restore(storage, saved.keys, saved.rows.view(dtype), saved.scores)


def _check_capacity(container: StepContainer, table: str, num_rows: int) -> None:
    # Even if it holds but a part of a snapshot: a load is what mends that.
    storage = container.state.tables.open(container.entry(table))
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
