"""A step over tables on a device by a function over rows, as the own optimizers of frameworks want it.

keys ──► find ──► new rows made ──► rows (u, width) and gradients (u, dim), on the device
                                        │  the framework's optimizer changes the rows there
                                        ▼
                                     upsert, from device memory
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring import kernels as host_kernels
from sparring.admission import Decision, decide_unseen
from sparring.applying.room import check_room, may_refuse
from sparring.applying.table_update import TableUpdate, Update
from sparring.applying.writing import count_refused, raise_interrupted
from sparring.device_gradients import DeviceGradients, SummedByKey
from sparring.device_steps import sums_on_device, writing_on_device
from sparring.kernel_set import DeviceArray, KernelSet
from sparring.kernels import Rounding
from sparring.memory_budget import check_memory
from sparring.storage.tiered.device_front import device_front
from sparring.table import TableConfig

if TYPE_CHECKING:
    from sparring.step import StepContainer

__all__ = ["apply_update_on_device"]


@dataclass(frozen=True, slots=True)
class _Gathered:
    kernels: KernelSet
    update: TableUpdate | None
    """None where no key was admitted."""
    decision: Decision | None
    num_new: int
    """Of a stack: keys that no tier has; else unknown, 0."""


def apply_update_on_device(
    container: StepContainer, waiting: Mapping[str, DeviceGradients], update: Update
) -> None:
    """As `apply_update`, for gradients and tables that lie on devices of this rank.

    The arrays of each `TableUpdate` lie on the device.

    Raises:
        NonFiniteGradientError, CapacityError, DeviceMemoryError: no row has changed.
        PartialStepError: the device failed or was full when other tables had changed already.
    """
    summed = sums_on_device(container, waiting)
    with container.span("find"):
        gathered = {
            name: _gathered(container, name, waiting[name].kernels, by_key)
            for name, by_key in summed.items()
        }
        check_memory(container)
    with container.span("update"):
        update([each.update for each in gathered.values() if each.update is not None])
    container.saves.wait_for_room()
    written: list[str] = []
    for name, each in gathered.items():
        try:
            _write(container, name, each)
        except Exception as error:
            names = list(gathered)
            place = len(written)
            raise_interrupted(
                container, error, written, names[place : place + 1], names[place + 1 :]
            )
        written.append(name)
    container.end_step()


def _gathered(
    container: StepContainer, name: str, kernels: KernelSet, summed: SummedByKey
) -> _Gathered:
    entry, storage = container.entry(name), container.storage(name)
    arrays = kernels.arrays
    keys, gradients = summed.keys, summed.gradients
    front = device_front(storage, kernels)
    stored = (
        kernels.find_storage(storage, keys)
        if front is None
        else front.find(keys, entry.config.width)
    )
    num_new = 0
    rows, found = stored.rows, stored.found
    decision = None
    if entry.admission_filter is not None or may_refuse(storage) or front is not None:
        # Which keys are new must be known here, which waits for the device.
        is_found = np.asarray(arrays.to_host(found)).astype(np.bool_)
        if entry.admission_filter is not None and not is_found.all():
            decision = decide_unseen(
                entry.admission_filter,
                np.ascontiguousarray(arrays.to_host(keys)),
                is_found,
                container.counters.steps + 1,
            )
            kept = arrays.from_host(np.flatnonzero(decision.is_kept))
            keys, gradients, rows, found = (
                arrays.take(each, kept) for each in (keys, gradients, rows, found)
            )
            is_found = is_found[decision.is_kept]
        num_new = int(np.count_nonzero(~is_found))
        check_room(storage, num_new)
    if not len(keys):
        return _Gathered(kernels, None, decision, num_new)
    state = entry.initial_state
    kernels.initialize(
        rows,
        keys,
        found,
        entry.config,
        None if state is None or not len(state) else arrays.from_host(state),
    )
    computing = _computing_rows(kernels, entry.config, rows)
    step = container.counters.steps + 1
    update = TableUpdate(entry.config, keys, computing, gradients, step)
    return _Gathered(kernels, update, decision, num_new)


def _write(container: StepContainer, name: str, gathered: _Gathered) -> None:
    kernels, update = gathered.kernels, gathered.update
    if update is not None:
        rows = _stored_rows(kernels, update)
        with writing_on_device(container, name, kernels, update.keys) as write:
            storage = container.storage(name)
            front = device_front(storage, kernels)
            if front is not None:
                write.note_evicted(front.upsert(update.keys, rows, gathered.num_new))
            else:
                keeps = write.keeps_evicted
                evicted = kernels.upsert_storage(storage, update.keys, rows, keeps_evicted=keeps)
                write.note_evicted(evicted)
        container.counters.rows_updated += len(update.keys)
    if gathered.decision is not None:
        gathered.decision.record()
        count_refused(container, name, gathered.decision.num_refused)


def _computing_rows(kernels: KernelSet, table: TableConfig, rows: DeviceArray) -> DeviceArray:
    """As `sparring.row_parts.computing_rows`, on the device."""
    if not table.is_half:
        return rows
    arrays, dtype = kernels.arrays, table.computing_dtype.name
    computing = arrays.empty((len(rows), table.dim + table.state_width), dtype)
    computing[:, : table.dim] = kernels.decode(rows[:, : table.dim])
    if table.state_width:
        computing[:, table.dim :] = _state_of(kernels, table, rows)
    return computing


def _stored_rows(kernels: KernelSet, update: TableUpdate) -> DeviceArray:
    """As `sparring.row_parts.stored_rows`, on the device."""
    table, rows = update.table, update.rows
    if not table.is_half:
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
