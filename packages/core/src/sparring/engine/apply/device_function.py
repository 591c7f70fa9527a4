"""A step over tables on a device by a function over rows, as the own optimizers of frameworks want it.

keys ──► find ──► new rows made ──► rows (u, width) and gradients (u, dim), on the device
                                        │  the framework's optimizer changes the rows there
                                        ▼
                                     upsert, from device memory
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparring.contracts.kernels import DeviceArray, KernelSet, Rounding
from sparring.contracts.table import TableConfig
from sparring.engine.apply.commit import check_room, may_refuse
from sparring.engine.apply.device_owned_gradients import OwnedOnDevice
from sparring.engine.apply.device_step import writing_on_device
from sparring.engine.apply.gather import TableUpdate
from sparring.engine.apply.write import count_refused, raise_interrupted
from sparring.engine.state import EngineState
from sparring.kernels import functions as host_kernels
from sparring.kernels.admission_filters import Decision, decide_unseen

__all__ = ["GatheredOnDevice", "gather_on_device", "no_update", "write_on_device"]


@dataclass(frozen=True, slots=True)
class GatheredOnDevice:
    """The rows that a step will change of one table, and what will be counted when it has."""

    kernels: KernelSet
    update: TableUpdate | None
    """Its arrays are on the device; None where no key was admitted."""
    decision: Decision | None


def gather_on_device(
    state: EngineState, owned: Mapping[str, OwnedOnDevice]
) -> dict[str, GatheredOnDevice]:
    """The rows that gradients will change, found or made, and admitted.

    Raises:
        CapacityError: there is no room for new ones.
        DeviceMemoryError, DeviceError: the device has no memory for a copy of them, or failed.
    """
    return {name: _gathered(state, name, each) for name, each in owned.items()}


def no_update(state: EngineState, name: str, kernels: KernelSet) -> TableUpdate:
    """Of a table of which other ranks alone change rows."""
    table, empty = state.tables.entries[name].config, kernels.arrays.empty
    dtype = table.computing_dtype.name
    return TableUpdate(
        table,
        empty((0,), "int64"),
        empty((0, table.dim + table.state_width), dtype),
        empty((0, table.dim), dtype),
        state.counters.steps + 1,
    )


def write_on_device(
    state: EngineState, gathered: Mapping[str, GatheredOnDevice], after: Sequence[str] = ()
) -> None:
    """Upserts rows that were computed on devices, a table at a time.

    Args:
        gathered: rows by table.
        after: the tables that the step changes after these.

    Raises:
        DeviceMemoryError, DeviceError: the device failed or was full; no row has changed.
        PartialStepError: it did when other tables had changed already.
    """
    names = list(gathered)
    for place, (name, each) in enumerate(gathered.items()):
        try:
            _write(state, name, each)
        except Exception as error:
            raise_interrupted(
                state,
                error,
                [each for each in names[:place] if gathered[each].update is not None],
                names[place : place + 1],
                [*names[place + 1 :], *after],
            )


def _gathered(state: EngineState, name: str, owned: OwnedOnDevice) -> GatheredOnDevice:
    entry, storage = state.tables.entries[name], state.tables.storage(name)
    kernels, keys, gradients = owned.kernels, owned.keys, owned.gradients
    arrays = kernels.arrays
    stored = kernels.find_storage(storage, keys)
    rows, found = stored.rows, stored.found
    decision = None
    if entry.admission_filter is not None or may_refuse(storage):
        # Which keys are new must be known here, which waits for the device.
        is_found = np.asarray(arrays.to_host(found)).astype(np.bool_)
        if entry.admission_filter is not None and not is_found.all():
            decision = decide_unseen(
                entry.admission_filter,
                np.ascontiguousarray(arrays.to_host(keys)),
                is_found,
                state.counters.steps + 1,
            )
            kept = arrays.from_host(np.flatnonzero(decision.is_kept))
            keys, gradients, rows, found = (
                arrays.take(each, kept) for each in (keys, gradients, rows, found)
            )
            is_found = is_found[decision.is_kept]
        check_room(storage, int(np.count_nonzero(~is_found)))
    if not len(keys):
        return GatheredOnDevice(kernels, None, decision)
    initial = entry.initial_state
    kernels.initialize(
        rows,
        keys,
        found,
        entry.config,
        None if initial is None or not len(initial) else arrays.from_host(initial),
    )
    computing = _computing_rows(kernels, entry.config, rows)
    step = state.counters.steps + 1
    update = TableUpdate(entry.config, keys, computing, gradients, step)
    return GatheredOnDevice(kernels, update, decision)


def _write(state: EngineState, name: str, gathered: GatheredOnDevice) -> None:
    kernels, update = gathered.kernels, gathered.update
    if update is not None:
        rows = _stored_rows(kernels, update)
        with writing_on_device(state, name, kernels, update.keys) as write:
            write.note_evicted(
                kernels.upsert_storage(
                    state.tables.storage(name), update.keys, rows, keeps_evicted=write.keeps_evicted
                )
            )
        state.counters.rows_updated += len(update.keys)
    if gathered.decision is not None:
        gathered.decision.record()
        count_refused(state, name, gathered.decision.num_refused)


def _computing_rows(kernels: KernelSet, table: TableConfig, rows: DeviceArray) -> DeviceArray:
    """As `sparring.kernels.mixed_precision.computing_rows`, on the device."""
    if not table.is_16_bit:
        return rows
    arrays, dtype = kernels.arrays, table.computing_dtype.name
    computing = arrays.empty((len(rows), table.dim + table.state_width), dtype)
    computing[:, : table.dim] = kernels.decode(rows[:, : table.dim])
    if table.state_width:
        computing[:, table.dim :] = _state_of(kernels, table, rows)
    return computing


def _stored_rows(kernels: KernelSet, update: TableUpdate) -> DeviceArray:
    """As `sparring.kernels.mixed_precision.stored_rows`, on the device."""
    table, rows = update.table, update.rows
    if not table.is_16_bit:
        return rows
    arrays = kernels.arrays
    # Zeros, so that the gap of equal rows is equal.
    stored: Any = arrays.empty((len(rows), table.width), table.dtype)
    stored[:] = 0
    embeddings: Any = arrays.empty((len(rows), table.dim), table.computing_dtype.name)
    embeddings[:] = rows[:, : table.dim]
    rounding = Rounding(update.keys, host_kernels.rounding_seed(table), update.step)
    kernels.encode(embeddings, stored[:, : table.dim], rounding)
    if table.state_width:
        _state_of(kernels, table, stored)[:] = rows[:, table.dim :]
    return stored


def _state_of(kernels: KernelSet, table: TableConfig, rows: DeviceArray) -> DeviceArray:
    # Elements of a 16-bit table have two bytes.
    return kernels.arrays.view(rows[:, table.state_begin // 2 :], table.computing_dtype.name)
