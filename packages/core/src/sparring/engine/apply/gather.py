"""Gathers the rows that a step will change into arrays: finds or creates them, and applies admission.

keys ──► find ──► admit ──► create new rows ──► rows (u, width) and gradients (u, dim)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.storage.results import Keys, Rows
from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply.commit import check_capacity
from sparring.engine.state import EngineState
from sparring.engine.tables.column_blocks import fill_new_rows
from sparring.exchange.messages import OwnedGradients
from sparring.kernels.admission_filters import Decision, decide_unseen
from sparring.kernels.mixed_precision import to_computing_rows

__all__ = ["GatheredRows", "TableUpdate", "Update", "gather_rows", "empty_update", "num_kept"]


@dataclass(slots=True)
class TableUpdate:
    """Rows and gradients of one table for an update, which changes `rows` in place.

    Arrays are NumPy arrays, or, if a framework passed gradients on a device, arrays of the framework on
    that device (`sparring.contracts.device.kernels.DeviceArray`).
    """

    table: TableConfig
    keys: Keys
    """``(u,)``"""
    rows: Rows
    """``(u, dim + state_width)`` of the computing dtype: embedding, then state."""
    gradients: Rows
    """``(u, dim)`` of the computing dtype."""
    step: int
    """Number of this step, from 1. It seeds the rounding to 16 bits."""


class Update(Protocol):
    """Function that changes the rows of all tables in place. It is called once per step."""

    def __call__(self, updates: Sequence[TableUpdate], /) -> None: ...


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """Rows of one table that a step will change, and data for the counters."""

    kernels: KernelSet
    update: TableUpdate | None
    """None if no key was admitted."""
    decision: Decision | None
    row_handles: Any = None
    """Native `RowHandles` of the keys of `update`, if they are known."""


def gather_rows(
    state: EngineState, owned: Mapping[str, OwnedGradients], steps: Mapping[str, int]
) -> dict[str, GatheredRows]:
    """Returns the rows that gradients will change, by table.

    Args:
        state: state of the engine.
        owned: gradients by table; at least one per table.
        steps: `TableUpdate.step` by table.

    Raises:
        CapacityError: there is no capacity for new rows.
        DeviceMemoryError, DeviceError: the device has no memory for a copy of the rows, or failed.
    """
    gathered = {}
    for name, each in owned.items():
        gathered[name] = _gather(state, name, each, steps[name])
    return gathered


def num_kept(gathered: Mapping[str, GatheredRows]) -> dict[str, int]:
    """Returns the number of rows that will change, by table."""
    return {
        name: 0 if each.update is None else len(each.update.keys) for name, each in gathered.items()
    }


def empty_update(kernels: KernelSet, table: TableConfig, step: int) -> TableUpdate:
    """Returns an update without rows, of a table whose rows only other ranks change."""
    empty, dtype = kernels.arrays.empty, table.computing_dtype.name
    keys, rows = empty((0,), "int64"), empty((0, table.dim + table.state_width), dtype)
    return TableUpdate(table, keys, rows, empty((0, table.dim), dtype), step)


def _gather(state: EngineState, name: str, owned: OwnedGradients, step: int) -> GatheredRows:
    entry, storage = state.tables.entries[name], state.tables.storage(name)
    kernels, keys, gradients = owned.kernels, owned.keys, owned.gradients
    arrays = kernels.arrays
    row_handles = owned.row_handles
    if row_handles is None:
        stored = owned.found or kernels.find_storage(storage, keys)
        rows, found = stored.rows, stored.found
    else:
        rows = np.empty((len(keys), entry.config.width), entry.config.numpy_dtype)
        found = np.empty(len(keys), np.bool_)
        row_handles.find(rows, found)
    decision = None
    if entry.admission_filter is not None or entry.may_refuse:
        # New keys must be known here; this waits for the device.
        is_found = np.asarray(arrays.to_host(found)).astype(np.bool_, copy=False)
        if entry.admission_filter is not None and not is_found.all():
            decision = decide_unseen(
                entry.admission_filter,
                np.ascontiguousarray(arrays.to_host(keys)),
                is_found,
                state.counters.steps + 1,
            )
            kept, row_handles = arrays.from_host(np.flatnonzero(decision.is_kept)), None
            keys, gradients, rows, found = (
                arrays.take(each, kept) for each in (keys, gradients, rows, found)
            )
            is_found = is_found[decision.is_kept]
        if entry.may_refuse:
            check_capacity(storage, len(is_found) - int(np.count_nonzero(is_found)))
    if not len(keys):
        return GatheredRows(kernels, None, decision)
    fill_new_rows(entry, rows, keys, found, kernels)
    if entry.config.is_narrow:
        rows = to_computing_rows(kernels, entry.config, rows)
    update = TableUpdate(entry.config, keys, rows, gradients, step)
    return GatheredRows(kernels, update, decision, row_handles)
