"""Contract of a complete kernel set: operations on arrays and on storages, and streams.

Stacks of storages whose first tier is on the device are accessed with `DeviceFirstTierAccess`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from sparring.contracts.device.kernels import (
    ArrayKernels,
    DeviceArray,
    Pooling,
    SupportsStreams,
)

if TYPE_CHECKING:
    from sparring.contracts.storage.results import EvictedRows
    from sparring.contracts.storage.storage import Storage
    from sparring.contracts.storage.updates import MethodChoice
    from sparring.contracts.tables.table import TableConfig

__all__ = [
    "DeviceFirstTierAccess",
    "KernelSet",
    "EvictionResult",
    "StorageChange",
    "StorageKernels",
    "StorageLookup",
    "StorageUpdate",
    "StoredRows",
    "TableBags",
    "TableSums",
]


Admit = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]]
"""Function that returns, for each key, whether it may get a row."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of a storage, or their first columns, on the device."""

    rows: DeviceArray
    """``(u, num_columns)`` of the table's dtype; zeros if `found` is 0."""
    found: DeviceArray
    """``(u,)`` bool"""


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """Rows that a storage evicted."""

    count: int
    rows: EvictedRows | None
    """The rows in host memory; None if they were not requested."""


@dataclass(frozen=True, slots=True)
class StorageChange:
    """Result of an update of a storage."""

    num_new: int
    """Number of rows that were created, including rows that were evicted immediately."""
    evicted: EvictionResult


@dataclass(frozen=True, slots=True)
class StorageLookup:
    """Arguments of `pool_storage`."""

    storage: Storage | None
    """A storage that supports this device (`Capabilities.devices`); None if no id has a row."""
    table: TableConfig
    """Declaration of the table."""
    ids: DeviceArray
    """``(n,)``, with repeats."""
    offsets: DeviceArray
    """``(b + 1,)``, from 0 to n."""
    mode: Pooling = "sum"
    """Pooling; see `pool`."""
    weights: DeviceArray | None = None
    """``(n,)`` of the table's computing dtype."""


@dataclass(frozen=True, slots=True)
class TableBags:
    """Bags of ids of one table, and the gradient of each bag."""

    ids: DeviceArray
    """``(n,)``"""
    offsets: DeviceArray
    """``(b + 1,)``, from 0 to n."""
    gradient: DeviceArray
    """``(b, dim)`` of the computing dtype"""
    mode: Pooling = "sum"
    weights: DeviceArray | None = None
    """``(n,)``"""


@dataclass(frozen=True, slots=True)
class TableSums:
    """Gradients per key, for several tables."""

    keys: Sequence[DeviceArray]
    """``(u,)`` per table, in the order in which they first occur."""
    gradients: Sequence[DeviceArray]
    """``(u, dim)`` per table."""
    num_bad: DeviceArray | None
    """``(1,)`` int64: 0 if all gradients are finite; None if unknown."""


@dataclass(frozen=True, slots=True)
class StorageUpdate:
    """Arguments of `update_storage`."""

    storage: Storage
    """A storage that supports this device; its rows have the state width of the method."""
    choice: MethodChoice
    """Method, hyper-parameters and step; see `update`."""
    keys: DeviceArray
    """``(u,)``, unique."""
    gradients: DeviceArray
    """``(u, dim)`` of the computing dtype; may be overwritten."""
    initial_state: npt.NDArray[Any] | None = None
    """``(state_width,)`` of the computing dtype, in host memory; None for zeros. The set copies the
    array to the device once, and keeps the copy."""
    admit: Admit | None = None
    """Function that decides which keys without a row get one; None admits all. It is called with keys
    in host memory, so the host waits for the device."""
    keeps_evicted: bool = False
    """Whether evicted rows are copied to the host."""


class StorageKernels(ArrayKernels):
    """The operations of one device on storages.

    `pool_tables`, `sum_tables` and `update_tables` process one table after another, unless a set
    overrides `_pool_tables_impl`, `sum_tables` and `_update_tables_impl` to process them together.
    """

    def pool_storage(
        self,
        storage: Storage | None,
        table: TableConfig,
        ids: DeviceArray,
        offsets: DeviceArray,
        *,
        mode: Pooling = "sum",
        weights: DeviceArray | None = None,
    ) -> DeviceArray:
        """Pools bags of ids directly from the rows of a storage.

        Ids are not deduplicated, and rows are not copied. In a stack, however, rows of lower tiers are
        copied from the host, which waits for the device. An id without a row has its initial value.

        Args:
            storage: a storage that supports this device; None if no id has a row.
            table: declaration of the table.
            ids: ``(n,)``, with repeats.
            offsets: ``(b + 1,)``, from 0 to n.
            mode: pooling; see `pool`.
            weights: ``(n,)`` of the table's computing dtype.

        Returns:
            ``(b, dim)`` of the computing dtype.

        Raises:
            UnsupportedError: the storage does not support this device.
        """
        return self._pooled(StorageLookup(storage, table, ids, offsets, mode, weights))

    def _pooled(self, lookup: StorageLookup) -> DeviceArray:
        stack = None if lookup.storage is None else _stack_of(lookup.storage)
        return self._pool_storage_impl(lookup) if stack is None else stack.pool(self, lookup)

    @abstractmethod
    def _pool_storage_impl(self, lookup: StorageLookup) -> DeviceArray:
        """Implements `pool_storage` for a storage that is not a stack."""

    def pool_tables(self, lookups: Sequence[StorageLookup]) -> list[DeviceArray]:
        """Performs several lookups like `pool_storage`.

        Args:
            lookups: the lookups. A table may occur several times.

        Returns:
            ``(b, dim)`` of the computing dtype per lookup, in the order of `lookups`.
        """
        pooled: list[DeviceArray] = []
        for is_stack, run in groupby(lookups, key=_is_of_stack):
            if is_stack:
                pooled += map(self._pooled, run)
            else:
                pooled += self._pool_tables_impl(list(run))
        return pooled

    def _pool_tables_impl(self, lookups: Sequence[StorageLookup]) -> list[DeviceArray]:
        """Implements `pool_tables` for storages that are not stacks."""
        return list(map(self._pool_storage_impl, lookups))

    def sum_tables(self, bags: Sequence[TableBags]) -> TableSums:
        """Sums gradients per key with `dedup` and `pool_backward`, for several tables.

        Waits for the device to read the number of keys.

        Args:
            bags: bags and gradients, one entry per table.
        """
        keys, gradients = [], []
        for each in bags:
            found = self.dedup(each.ids)
            keys.append(found.keys)
            gradients.append(
                self.pool_backward(
                    each.gradient,
                    found.inverse,
                    each.offsets,
                    len(found.keys),
                    mode=each.mode,
                    weights=each.weights,
                )
            )
        return TableSums(keys, gradients, None)

    def update_tables(
        self,
        updates: Sequence[StorageUpdate],
        num_bad: DeviceArray | None = None,
        changes: list[StorageChange] | None = None,
    ) -> list[StorageChange] | None:
        """Updates several storages like `update_storage`, in this order.

        Args:
            updates: one update per storage.
            num_bad: ``(1,)`` int64; if it is not 0, no storage changes.
            changes: list to which the change of each updated storage is appended, even if the call
                raises. In that case, ``updates[len(changes)]`` failed, and it and all later storages
                are unchanged.

        Returns:
            `changes`, or a new list; None if `num_bad` is not 0.

        Raises:
            Exception: see `update_storage`.
        """
        changes = [] if changes is None else changes
        for is_stack, run in groupby(updates, key=_is_of_stack):
            if not is_stack:
                is_done = self._update_tables_impl(list(run), num_bad, changes)
            else:
                is_done = num_bad is None or not self.arrays.to_host(num_bad)[0]
                for each in run if is_done else ():
                    changes.append(self._updated(each))
            if not is_done:
                return None
            num_bad = None
        return changes

    def _update_tables_impl(
        self,
        updates: Sequence[StorageUpdate],
        num_bad: DeviceArray | None,
        changes: list[StorageChange],
    ) -> bool:
        """Implements `update_tables` for storages that are not stacks.

        Returns whether `num_bad` is 0.
        """
        if num_bad is not None and self.arrays.to_host(num_bad)[0]:
            return False
        for each in updates:
            changes.append(self._update_storage_impl(each))
        return True

    def update_storage(
        self,
        storage: Storage,
        choice: MethodChoice,
        keys: DeviceArray,
        gradients: DeviceArray,
        initial_state: npt.NDArray[Any] | None,
        *,
        admit: Admit | None = None,
        keeps_evicted: bool = False,
    ) -> StorageChange:
        """Updates rows of a storage with an update method of core.

        Missing rows are created first. If the call raises, no row has changed.

        Args:
            storage: a storage that supports this device; its rows have the state width of the method.
            choice: method, hyper-parameters and step; see `update`.
            keys: ``(u,)``, unique.
            gradients: ``(u, dim)`` of the computing dtype; may be overwritten.
            initial_state: ``(state_width,)`` of the computing dtype, in host memory; None for zeros.
            admit: decides which keys without a row get one; None admits all. The host waits for the
                device.
            keeps_evicted: whether evicted rows are copied to the host.

        Raises:
            UnsupportedError: the method is not part of core, or the storage does not support this
                device.
            CapacityError: the storage is full.
            DeviceMemoryError: the device has no memory left.
        """
        return self._updated(
            StorageUpdate(storage, choice, keys, gradients, initial_state, admit, keeps_evicted)
        )

    def _updated(self, update: StorageUpdate) -> StorageChange:
        stack = _stack_of(update.storage)
        return self._update_storage_impl(update) if stack is None else stack.update(self, update)

    @abstractmethod
    def _update_storage_impl(self, update: StorageUpdate) -> StorageChange:
        """Implements `update_storage` for a storage that is not a stack."""

    def find_storage(
        self, storage: Storage, keys: DeviceArray, num_columns: int | None = None
    ) -> StoredRows:
        """Reads rows of a storage.

        The host waits for the device only for stacks, whose lower tiers are in host memory.

        Args:
            storage: a storage that supports this device.
            keys: ``(u,)``, unique.
            num_columns: number of elements to read from the start of each row; None reads all.

        Raises:
            UnsupportedError: the storage does not support this device.
        """
        count = storage.table.width if num_columns is None else num_columns
        stack = _stack_of(storage)
        if stack is not None:
            return stack.find(self, keys, count)
        rows = self.arrays.empty((len(keys), count), storage.table.dtype)
        found = self.arrays.empty((len(keys),), "bool")
        self._find_into_impl(storage, keys, rows, found)
        return StoredRows(rows, found)

    def find_into(
        self, storage: Storage, keys: DeviceArray, rows: DeviceArray, found: DeviceArray
    ) -> None:
        """Reads rows like `find_storage`, into existing arrays.

        Args:
            storage: a storage that supports this device.
            keys: ``(u,)``, unique.
            rows: ``(u, num_columns)`` of the table's dtype; filled, with zeros for missing rows.
            found: ``(u,)`` bool or uint8; filled with 1 for keys that have a row, otherwise 0.

        Raises:
            UnsupportedError: the storage does not support this device.
        """
        stack = _stack_of(storage)
        if stack is None:
            self._find_into_impl(storage, keys, rows, found)
            return
        stored = stack.find(self, keys, rows.shape[1])
        rows[:] = stored.rows
        found[:] = stored.found

    @abstractmethod
    def _find_into_impl(
        self, storage: Storage, keys: DeviceArray, rows: DeviceArray, found: DeviceArray
    ) -> None:
        """Implements `find_into` for a storage that is not a stack."""

    def upsert_storage(
        self, storage: Storage, keys: DeviceArray, rows: DeviceArray, *, keeps_evicted: bool = False
    ) -> EvictionResult:
        """Replaces or inserts complete rows. If the call raises, no row has changed.

        Args:
            storage: a storage that supports this device.
            keys: ``(u,)``, unique.
            rows: ``(u, width)`` of the table's dtype.
            keeps_evicted: whether evicted rows are copied to the host.

        Raises:
            UnsupportedError: the storage does not support this device.
            CapacityError: the storage is full.
            DeviceMemoryError: the device has no memory left.
        """
        stack = _stack_of(storage)
        if stack is not None:
            return stack.upsert(self, keys, rows)
        return self._upsert_storage_impl(storage, keys, rows, keeps_evicted=keeps_evicted)

    @abstractmethod
    def _upsert_storage_impl(
        self, storage: Storage, keys: DeviceArray, rows: DeviceArray, *, keeps_evicted: bool
    ) -> EvictionResult:
        """Implements `upsert_storage` for a storage that is not a stack."""


class KernelSet(StorageKernels, SupportsStreams):
    """The complete kernel set of a device: operations on arrays and storages, and streams."""


class DeviceFirstTierAccess(Protocol):
    """Operations of `KernelSet` on a stack of storages whose first tier is on a device."""

    def find(self, kernels: StorageKernels, keys: DeviceArray, num_columns: int) -> StoredRows:
        """Implements `KernelSet.find_storage`."""

    def pool(self, kernels: StorageKernels, lookup: StorageLookup) -> DeviceArray:
        """Implements `KernelSet.pool_storage`."""

    def update(self, kernels: StorageKernels, update: StorageUpdate) -> StorageChange:
        """Implements `KernelSet.update_storage`."""

    def upsert(
        self, kernels: StorageKernels, keys: DeviceArray, rows: DeviceArray
    ) -> EvictionResult:
        """Implements `KernelSet.upsert_storage`."""


def _is_of_stack(each: StorageLookup | StorageUpdate) -> bool:
    return each.storage is not None and _stack_of(each.storage) is not None


def _stack_of(storage: Storage) -> DeviceFirstTierAccess | None:
    # `isinstance` takes microseconds for a Protocol, and every find calls this function.
    access = getattr(storage, "device_first_tier_access", None)
    found: DeviceFirstTierAccess | None = None if access is None else access()
    return found
