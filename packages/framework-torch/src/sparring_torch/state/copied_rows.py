"""Reads and writes the embeddings of a table's rows on this rank, for copies of models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import Columns, StepContainer
from sparring.adapter import TableEntry, initial_rows
from sparring.contracts import read_embeddings, write_embeddings, write_state
from sparring.errors import CapacityError, UnsupportedError

__all__ = [
    "Keys",
    "Rows",
    "check_whole",
    "copy_rows",
    "find_rows",
    "list_keys",
    "read_rows",
    "split_keys",
    "write_rows",
]

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]

_CHUNK_ROWS = 65_536


def split_keys(keys: Keys) -> Iterator[Keys]:
    """Yields keys in chunks."""
    for begin in range(0, len(keys), _CHUNK_ROWS):
        yield keys[begin : begin + _CHUNK_ROWS]


def list_keys(container: StepContainer, table: str) -> Keys:
    """Returns the keys of all rows of a table, in any order."""
    keys = [np.empty(0, np.int64)]
    storage = container.entry(table).storage if container.num_rows(table) else None
    if storage is not None:
        keys += [chunk.keys.copy() for chunk in storage.scan(columns=Columns(0, 1))]
    return np.concatenate(keys)


def find_rows(
    container: StepContainer, table: str, keys: Keys
) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Returns embeddings ``(n, dim)`` of keys, initial ones for keys without a row, and which have a
    row."""
    entry = container.entry(table)
    config = entry.config
    if container.num_rows(table):
        assert entry.storage is not None
        found = entry.storage.find(keys, entry.embedding)
        rows, is_found = found.rows, found.found
    else:
        rows = np.zeros((len(keys), config.embedding_width), config.numpy_dtype)
        is_found = np.zeros(len(keys), np.bool_)
    if not is_found.all():
        rows[~is_found] = initial_rows(keys[~is_found], config)
    embeddings = read_embeddings(config, rows)
    return np.array(embeddings, config.computing_dtype), is_found


def write_rows(container: StepContainer, table: str, keys: Keys, embeddings: Rows) -> None:
    """Writes embeddings and keeps the optimizer state; new rows get the initial state.

    Raises:
        CapacityError: the storage evicted rows.
    """
    entry = container.entry(table)
    storage, config = container.state.tables.storage(table), entry.config
    found = storage.find(keys)
    rows = np.ascontiguousarray(found.rows)
    write_embeddings(config, rows, embeddings)
    if config.state_width and not found.found.all():
        assert entry.initial_state is not None
        new = np.ascontiguousarray(rows[~found.found])
        write_state(config, new, entry.initial_state)
        rows[~found.found] = new
    evicted = storage.upsert(keys, rows)
    if len(evicted):
        raise CapacityError(
            f"copy of rows of table {config.name!r}: found {len(evicted)} evicted rows, expected space "
            "for all rows of the other model; increase num_embeddings",
            table=config.name,
        )


def read_rows(container: StepContainer, table: str) -> Iterator[tuple[Keys, Rows]]:
    """Yields copies of keys ``(n,)`` and embeddings ``(n, dim)`` of all rows of a table."""
    if not container.num_rows(table):
        return
    entry = container.entry(table)
    for each in container.storage(table).scan(_CHUNK_ROWS, entry.embedding):
        yield each.keys.copy(), np.array(read_embeddings(entry.config, each.rows))


def copy_rows(container: StepContainer, table: str, chunks: Iterable[tuple[Keys, Rows]]) -> None:
    """Makes a table read like the given rows, and keeps the optimizer state of its rows.

    Args:
        container: container of the table.
        table: name of the table.
        chunks: result of `read_rows` for a table with the same configuration.
    """
    check_whole(container, table)
    container.quiesce()
    container.saves.join()
    container.saves.newest = None
    entry = container.entry(table)
    surplus = list_keys(container, table)
    for keys, embeddings in chunks:
        surplus = np.setdiff1d(surplus, keys, assume_unique=True)
        if len(keys):
            write_rows(container, table, keys, embeddings)
    for keys in split_keys(surplus):
        _reset(container, entry, keys)
    container.prefetches.note(table, None)


def _reset(container: StepContainer, entry: TableEntry, keys: Keys) -> None:
    """Removes rows that read as their initial values afterwards; rows with state keep it."""
    storage, config = container.state.tables.storage(entry.config.name), entry.config
    is_new = np.ones(len(keys), np.bool_)
    if config.state_width and entry.initial_state is not None:
        fresh = np.zeros((1, config.width), config.numpy_dtype)
        write_state(config, fresh, entry.initial_state)
        rows = storage.find(keys).rows
        is_new = (config.state(rows) == config.state(fresh)).all(axis=1)
    if is_new.any():
        storage.erase(keys[is_new])
    if not is_new.all():
        keys = keys[~is_new]
        rows = read_embeddings(config, initial_rows(keys, config))
        write_rows(container, config.name, keys, rows)


def check_whole(container: StepContainer, table: str) -> None:
    """Rejects tables whose rows cannot be copied one by one, or which others change, too.

    Raises:
        UnsupportedError: the table is one of them.
    """
    entry, reason = container.entry(table), None
    if entry.has_column_blocks:
        reason = "is sharded by columns"
    elif container.state.tables.open(entry).capabilities.shared or entry.pushed_to is not None:
        reason = "is in a storage that other processes change, too"
    if reason is not None:
        raise UnsupportedError(
            f"copy or average of rows: table {table!r} {reason}; no row was changed. Create the copy in "
            "`with sparring_torch.shared_rows():`, which reads the rows of the original",
            table=table,
        )
