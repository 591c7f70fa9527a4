"""Assignment of embeddings to a table: each row is sent to the ranks that own it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sparring.collective.coordinator import Coordinator
from sparring.contracts.storage.results import Keys, Rows
from sparring.engine.state import EngineState, Purpose, try_quiesce
from sparring.engine.tables.entry import TableEntry
from sparring.errors import InvalidArgumentError
from sparring.kernels import functions as kernels
from sparring.kernels.mixed_precision import write_embeddings, write_state

__all__ = ["assign"]

_CHUNK_ROWS = 65_536


def assign(state: EngineState, table: str, keys: npt.ArrayLike, embeddings: npt.ArrayLike) -> None:
    """Implements `StepContainer.assign`."""
    state.check_open()
    coordinator = Coordinator(state.collective, f"assign to table {table!r}")
    error = try_quiesce(state, Purpose.WRITE)
    given: tuple[Keys, Rows] = (np.empty(0, np.int64), np.empty((0, 0)))
    if error is None:
        try:
            entry = state.tables.entry(table)
            given = _checked(entry, keys, embeddings)
            for part in entry.parts:
                state.tables.storage(part.config.name)
            if entry.initial_state is None and entry.config.state_width:
                raise InvalidArgumentError(
                    f"assign to table {table!r}: its rows have optimizer state, whose initial value is "
                    "not known yet; create the optimizer first",
                    table=table,
                )
            state.saves.join()  # its snapshot would be the newest one, without the assigned rows
        except Exception as failure:
            error = failure
    coordinator.agree(error)
    state.saves.newest = None
    for part in entry.parts:
        keys_given, rows_given = given
        if part.block is not None:
            columns = part.block.columns
            rows_given = np.ascontiguousarray(rows_given[:, columns.begin : columns.end])
        for own_keys, own in _routed(state, part, coordinator, keys_given, rows_given):
            if error is None and len(own_keys):
                try:
                    _write(state, part, own_keys, own)
                except Exception as failure:  # the rows of other ranks must still be exchanged
                    error = failure
    coordinator.agree(error)


def _checked(
    entry: TableEntry, keys: npt.ArrayLike, embeddings: npt.ArrayLike
) -> tuple[Keys, Rows]:
    name, dim = entry.config.name, entry.config.dim
    found, values = np.asarray(keys), np.asarray(embeddings)
    if found.ndim != 1 or (len(found) and found.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"assign: keys for table {name!r} must be a one-dimensional array of integers, found shape "
            f"{found.shape} of {found.dtype}; pass numpy.asarray(ids, numpy.int64)",
            table=name,
        )
    if values.shape != (len(found), dim) or values.dtype.kind not in "fiu":
        raise InvalidArgumentError(
            f"assign: embeddings for table {name!r} must be numbers of shape {(len(found), dim)}, one "
            f"row per key, found shape {values.shape} of {values.dtype}",
            table=name,
        )
    if len(found) and found.dtype.kind == "u" and int(found.max()) > np.iinfo(np.int64).max:
        raise InvalidArgumentError(
            f"assign: keys for table {name!r} must fit into int64, found {int(found.max())}; map them to "
            "int64 without collisions",
            table=name,
        )
    checked = np.ascontiguousarray(found, np.int64)
    different, counts = np.unique(checked, return_counts=True)
    if len(different) < len(checked):
        raise InvalidArgumentError(
            f"embeddings for table {name!r}: key {int(different[np.argmax(counts)])} occurs "
            f"{int(counts.max())} times; pass each key once",
            table=name,
        )
    return checked, np.ascontiguousarray(values, entry.config.computing_dtype)


def _routed(
    state: EngineState, entry: TableEntry, coordinator: Coordinator, keys: Keys, embeddings: Rows
) -> Iterator[tuple[Keys, Rows]]:
    """Yields chunks of the keys and embeddings that this rank owns, from all ranks. Keys are unique
    within a chunk."""
    collective = state.collective
    num_chunks = max(coordinator.gather(-(-len(keys) // _CHUNK_ROWS)))
    for number in range(num_chunks):
        part = slice(number * _CHUNK_ROWS, (number + 1) * _CHUNK_ROWS)
        own_keys, own = keys[part], embeddings[part]
        if collective.world_size > 1:
            if entry.config.is_replicated:
                places = [slice(None)] * collective.world_size
            else:
                owners = entry.layout.owners[kernels.partition(own_keys)]
                places = [owners == rank for rank in range(collective.world_size)]
            own_keys, own = (
                np.concatenate(collective.all_to_all([each[membership] for membership in places]))
                for each in (own_keys, own)
            )
            # Several ranks may have passed the same key; the last rank wins.
            _, last = np.unique(own_keys[::-1], return_index=True)
            last = len(own_keys) - 1 - last
            own_keys, own = own_keys[last], own[last]
        yield own_keys, own


def _write(state: EngineState, entry: TableEntry, keys: Keys, embeddings: Rows) -> None:
    config, storage = entry.config, state.tables.storage(entry.config.name)
    rows = np.zeros((len(keys), config.width), config.numpy_dtype)
    write_embeddings(config, rows, embeddings)
    if entry.initial_state is not None:
        write_state(config, rows, entry.initial_state)
    storage.upsert(keys, rows)
    state.prefetches.note(config.name, keys)
