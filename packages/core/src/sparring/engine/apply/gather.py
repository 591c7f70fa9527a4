"""The rows that a step will change, in arrays: found or made, and admitted.

keys ──► find ──► admit ──► new rows made ──► rows (u, width) and gradients (u, dim)
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

    Arrays are NumPy's; or, where a framework handed in its own on a device, those of the framework
    there, as `sparring.contracts.device.kernels.DeviceArray`.
    """

    table: TableConfig
    keys: Keys
    """``(u,)``"""
    rows: Rows
    """``(u, dim + state_width)`` of the computing dtype: embedding, then state."""
    gradients: Rows
    """``(u, dim)`` of the computing dtype."""
    step: int
    """The number of this step, from 1: rounding to 16 bits is seeded by it."""


class Update(Protocol):
    """Changes the rows of all updates in place, in one call for a step."""

    def __call__(self, updates: Sequence[TableUpdate], /) -> None: ...


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """The rows that a step will change of one table, and what is counted once it has."""

    kernels: KernelSet
    update: TableUpdate | None
    """None where no key was admitted."""
    decision: Decision | None
    row_handles: Any = None
    """Native `RowHandles` of the keys of `update`, if they are known."""


def gather_rows(
    state: EngineState, owned: Mapping[str, OwnedGradients], steps: Mapping[str, int]
) -> dict[str, GatheredRows]:
    """The rows that gradients will change, by table.

    Args:
        owned: table → its gradients, some in each.
        steps: table → the step that is given to its `TableUpdate`.

    Raises:
        CapacityError: there is no room for new ones.
        DeviceMemoryError, DeviceError: the device has no memory for a copy of them, or failed.
    """
    gathered = {}
    for name, each in owned.items():
        gathered[name] = _gather(state, name, each, steps[name])
    return gathered


def num_kept(gathered: Mapping[str, GatheredRows]) -> dict[str, int]:
    """Rows that will change, by table."""
    return {
        name: 0 if each.update is None else len(each.update.keys) for name, each in gathered.items()
    }


def empty_update(kernels: KernelSet, table: TableConfig, step: int) -> TableUpdate:
    """Of a table of which other ranks alone change rows."""
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
        # Which keys are new must be known here, which waits for a device.
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
    if entry.config.is_16_bit:
        rows = to_computing_rows(kernels, entry.config, rows)
    update = TableUpdate(entry.config, keys, rows, gradients, step)
    return GatheredRows(kernels, update, decision, row_handles)
