"""Operations for arrays of a device on a stack whose first tier is on that device.

    find    keys ──► first tier ──► rows (u, width), found
                        │ missing keys, to the host
                        ▼
                     write buffers and tiers below ──► their rows, to the device

    update  keys, to the host: dirty ──► rows of lower tiers into the first tier ──► update of the first
            tier, in place ──► evicted rows, to the host: into the write buffer
    upsert  keys, to the host ──► upsert of the first tier ──► evicted rows: into the write buffer

Found rows of the first tier stay on the device. Each call waits for the device, because the host has to
know which rows to read from lower tiers. `sparring.contracts.device.kernel_set.KernelSet` calls these
methods.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.contracts import (
    Columns,
    DeviceArray,
    EvictedRows,
    EvictionResult,
    Keys,
    Storage,
    StorageChange,
    StorageKernels,
    StorageLookup,
    StorageUpdate,
    StoredRows,
)
from sparring_tiered.stack.demotion import Demotion
from sparring_tiered.stack.first_tier import NativeFirstTier
from sparring_tiered.stack.stack import Stack

__all__ = ["DeviceFirstTier"]


@dataclass(frozen=True, slots=True)
class _FindResult:
    stored: StoredRows
    is_found: npt.NDArray[np.bool_]
    """Copy of `stored.found` in host memory."""


class DeviceFirstTier:
    """The operations of `KernelSet` on a stack; see `DeviceFirstTierAccess`."""

    def __init__(self, stack: Stack, demotion: Demotion) -> None:
        self._stack = stack
        self._demotion = demotion

    def find(self, kernels: StorageKernels, keys: DeviceArray, num_columns: int) -> StoredRows:
        """Implements `KernelSet.find_storage`."""
        self._stack.check_open()
        with self._stack.lock.reading():
            return self._find_rows(kernels, keys, num_columns, promotes=True).stored

    def pool(self, kernels: StorageKernels, lookup: StorageLookup) -> DeviceArray:
        """Implements `KernelSet.pool_storage`. Deduplicates ids, so that no row is read twice from
        lower tiers."""
        table = self._stack.table
        dedup = kernels.dedup(lookup.ids)
        stored = self.find(kernels, dedup.keys, table.dim)
        rows = stored.rows
        kernels.initialize(rows, dedup.keys, stored.found, table)
        if table.is_narrow:
            rows = kernels.decode(rows)
        return kernels.pool(
            rows, dedup.inverse, lookup.offsets, mode=lookup.mode, weights=lookup.weights
        )

    def update(self, kernels: StorageKernels, update: StorageUpdate) -> StorageChange:
        """Implements `KernelSet.update_storage`. Updates rows in place in the first tier. If the
        rows of the batch do not all fit into it, updates copies and upserts them."""
        access = NativeFirstTier(self._stack, self._demotion)
        on_host = _to_host(kernels, update.keys)
        access.begin_update(on_host)
        try:
            is_brought_up = self._bring_up(kernels, access, update.keys, on_host)
            start = time.perf_counter()
            if is_brought_up:
                change = kernels.update_storage(
                    self._first,
                    update.choice,
                    update.keys,
                    update.gradients,
                    update.initial_state,
                    admit=update.admit,
                    keeps_evicted=True,
                )
            else:
                change = self._update_copies(kernels, update)
        except BaseException:
            access.abort_update()
            raise
        seconds = time.perf_counter() - start
        left = self._finish_update(access, on_host, change.num_new, change.evicted, seconds)
        return StorageChange(change.num_new, left)

    def upsert(
        self, kernels: StorageKernels, keys: DeviceArray, rows: DeviceArray
    ) -> EvictionResult:
        """Implements `KernelSet.upsert_storage`."""
        stack = self._stack
        access = NativeFirstTier(stack, self._demotion)
        on_host = _to_host(kernels, keys)
        access.begin_update(on_host)
        try:
            num_new = stack.count_new(on_host, stack.promotion.take().known)
            start = time.perf_counter()
            evicted = kernels.upsert_storage(self._first, keys, rows, keeps_evicted=True)
        except BaseException:
            access.abort_update()
            raise
        return self._finish_update(access, on_host, num_new, evicted, time.perf_counter() - start)

    @property
    def _first(self) -> Storage:
        return self._stack.first.storage

    def _bring_up(
        self, kernels: StorageKernels, access: NativeFirstTier, keys: DeviceArray, on_host: Keys
    ) -> bool:
        """Copies rows of lower tiers into the first tier; returns whether all existing rows are there
        now."""
        probed = kernels.find_storage(self._first, keys, 1)
        is_found = _flags_to_host(kernels, probed.found)
        return bool(is_found.all()) or access.bring_up(on_host, on_host[~is_found])

    def _update_copies(self, kernels: StorageKernels, update: StorageUpdate) -> StorageChange:
        table, arrays = self._stack.table, kernels.arrays
        keys, gradients, initial_state = update.keys, update.gradients, update.initial_state
        found = self._find_rows(kernels, keys, table.width, promotes=False)
        rows, is_known, is_found = found.stored.rows, found.stored.found, found.is_found
        if update.admit is not None and not is_found.all():
            is_kept = is_found.copy()
            is_kept[~is_found] = update.admit(_to_host(kernels, keys)[~is_found])
            kept = arrays.from_host(np.flatnonzero(is_kept))
            keys, gradients, rows, is_known = (
                arrays.take(each, kept) for each in (keys, gradients, rows, is_known)
            )
            is_found = is_found[is_kept]
        state = None
        if initial_state is not None and len(initial_state):
            state = arrays.from_host(initial_state)
        kernels.initialize(rows, keys, is_known, table, state)
        kernels.update(table, update.choice, keys, rows, gradients)
        evicted = kernels.upsert_storage(self._first, keys, rows, keeps_evicted=True)
        return StorageChange(int(np.count_nonzero(~is_found)), evicted)

    def _find_rows(
        self, kernels: StorageKernels, keys: DeviceArray, num_columns: int, *, promotes: bool
    ) -> _FindResult:
        """Finds the first columns of rows in all tiers. The caller must have the lock."""
        stack, arrays = self._stack, kernels.arrays
        table = stack.table
        start = time.perf_counter()
        stored = kernels.find_storage(stack.first.storage, keys, num_columns)
        is_found = _flags_to_host(kernels, stored.found)
        seconds = time.perf_counter() - start
        missing = np.flatnonzero(~is_found)
        stack.first.meter.found(
            len(keys) - len(missing),
            len(missing),
            read_bytes=(len(keys) - len(missing)) * num_columns * table.numpy_dtype.itemsize,
            seconds=seconds,
        )
        if not len(missing):
            return _FindResult(stored, is_found)
        missing_keys = _to_host(kernels, arrays.take(keys, arrays.from_host(missing)))
        rows = np.empty((len(missing), num_columns), table.numpy_dtype)
        is_below = np.zeros(len(missing), np.bool_)
        stack.find_below(missing_keys, Columns(0, num_columns), rows, is_below, promotes=promotes)
        if not is_below.any():
            return _FindResult(stored, is_found)
        places = missing[is_below]
        is_found[places] = True
        # As bytes, because frameworks and NumPy do not share all 16-bit dtypes.
        brought = arrays.view(arrays.from_host(rows[is_below].view(np.uint8)), table.dtype)
        arrays.put(stored.rows, arrays.from_host(places), brought)
        return _FindResult(StoredRows(stored.rows, arrays.from_host(is_found)), is_found)

    def _finish_update(
        self,
        access: NativeFirstTier,
        keys: Keys,
        num_new: int,
        evicted: EvictionResult,
        seconds: float,
    ) -> EvictionResult:
        left = evicted.rows
        gone = access.end_update(
            keys,
            num_new,
            None if left is None else (left.keys, left.rows.view(np.uint8), left.scores),
            seconds,
        )
        if gone is None:
            return EvictionResult(0, None)
        rows = gone[1].view(self._stack.table.numpy_dtype)
        return EvictionResult(len(gone[0]), EvictedRows(gone[0], rows, gone[2]))


def _flags_to_host(kernels: StorageKernels, found: DeviceArray) -> npt.NDArray[np.bool_]:
    return np.asarray(kernels.arrays.to_host(found)).astype(np.bool_)


def _to_host(kernels: StorageKernels, keys: DeviceArray) -> Keys:
    return np.ascontiguousarray(kernels.arrays.to_host(keys))
