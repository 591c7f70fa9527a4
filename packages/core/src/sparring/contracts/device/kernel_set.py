"""All operations of one device: on arrays, on the rows of storages, and its streams.

A stack of storages whose first tier is on the device is reached by `DeviceFirstTierAccess`.
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
"""Says which keys may have a row."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of a storage, or the first columns of them, on the device."""

    rows: DeviceArray
    """``(u, num_columns)`` of the table's dtype; zeros where `found` is 0."""
    found: DeviceArray
    """``(u,)`` bool"""


@dataclass(frozen=True, slots=True)
class EvictionResult:
    """Rows that left a storage."""

    count: int
    rows: EvictedRows | None
    """In host memory; None where they were not asked for."""


@dataclass(frozen=True, slots=True)
class StorageChange:
    """Result of an update of a storage."""

    num_new: int
    """Rows that were made, those that left at once included."""
    evicted: EvictionResult


@dataclass(frozen=True, slots=True)
class StorageLookup:
    """Arguments of `pool_storage`."""

    storage: Storage | None
    """Takes arrays of this device (`Capabilities.devices`); None: no id has a row."""
    table: TableConfig
    """Declaration of the rows."""
    ids: DeviceArray
    """``(n,)``, with repeats."""
    offsets: DeviceArray
    """``(b + 1,)``, from 0 to n."""
    mode: Pooling = "sum"
    """As in `pool`."""
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
    """The gradient of each key of several tables."""

    keys: Sequence[DeviceArray]
    """``(u,)`` of each table, in the order in which they first occur."""
    gradients: Sequence[DeviceArray]
    """``(u, dim)`` of each table."""
    num_bad: DeviceArray | None
    """``(1,)`` int64: 0 if all of them are finite; None: not known."""


@dataclass(frozen=True, slots=True)
class StorageUpdate:
    """Arguments of `update_storage`."""

    storage: Storage
    """Takes arrays of this device; its rows are as wide as the method wants them."""
    choice: MethodChoice
    """As in `update`."""
    keys: DeviceArray
    """``(u,)``, unique."""
    gradients: DeviceArray
    """``(u, dim)`` of the computing dtype; may be overwritten."""
    initial_state: npt.NDArray[Any] | None = None
    """``(state_width,)`` of the computing dtype, in host memory: the set keeps a copy on its device,
    and moves it there once. None: zeros."""
    admit: Admit | None = None
    """Asked which keys without a row may have one, with these keys and its answer in host memory,
    which waits for the device; None: all may."""
    keeps_evicted: bool = False
    """Whether rows that leave are copied to the host."""


class StorageKernels(ArrayKernels):
    """The operations of one device on storages; a stack's need those on arrays too.

    `pool_tables`, `sum_tables` and `update_tables` go table by table, unless a set overrides
    `_pool_tables_impl`, `sum_tables` and `_update_tables_impl` to take all tables together.
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
        """One embedding for each bag, straight from the rows of a storage; see `StorageLookup`.

        Nothing is deduplicated, and no row is copied but into the sums; except for a stack, where
        rows of lower tiers come from the host, which waits for the device. An id without a row has
        its initial value.

        Returns:
            ``(b, dim)`` of the computing dtype.

        Raises:
            UnsupportedError: the storage is elsewhere.
        """
        return self._pooled(StorageLookup(storage, table, ids, offsets, mode, weights))

    def _pooled(self, lookup: StorageLookup) -> DeviceArray:
        stack = None if lookup.storage is None else _stack_of(lookup.storage)
        return self._pool_storage_impl(lookup) if stack is None else stack.pool(self, lookup)

    @abstractmethod
    def _pool_storage_impl(self, lookup: StorageLookup) -> DeviceArray:
        """`pool_storage` of a storage that is no stack."""

    def pool_tables(self, lookups: Sequence[StorageLookup]) -> list[DeviceArray]:
        """`pool_storage` of several lookups; a table may occur several times."""
        pooled: list[DeviceArray] = []
        for is_stack, run in groupby(lookups, key=_is_of_stack):
            if is_stack:
                pooled += map(self._pooled, run)
            else:
                pooled += self._pool_tables_impl(list(run))
        return pooled

    def _pool_tables_impl(self, lookups: Sequence[StorageLookup]) -> list[DeviceArray]:
        """`pool_tables` of storages that are no stacks."""
        return list(map(self._pool_storage_impl, lookups))

    def sum_tables(self, bags: Sequence[TableBags]) -> TableSums:
        """Adds up gradients by key: `dedup` and `pool_backward` of several tables.

        Waits for the device, which has to say how many keys there are.
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
        """`update_storage` of several storages, in this order.

        Args:
            updates: one for each storage.
            num_bad: ``(1,)`` int64; where it is not 0, nothing changes.
            changes: gets the change of each storage that has changed, also where it raises: that of
                ``updates[len(changes)]`` then has not, nor have those behind it.

        Returns:
            `changes`, or a new list; None where `num_bad` is not 0.

        Raises:
            Exception: as `update_storage`.
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
        """`update_tables` of storages that are no stacks; returns whether `num_bad` is 0."""
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
        """Changes rows of a storage by one of core's update methods, in one visit; see `StorageUpdate`.

        Rows that are missing are made first. Nothing is changed where it raises.

        Raises:
            UnsupportedError: the method is not one of core's, or the storage is elsewhere.
            CapacityError, DeviceMemoryError: there is no room.
        """
        return self._updated(
            StorageUpdate(storage, choice, keys, gradients, initial_state, admit, keeps_evicted)
        )

    def _updated(self, update: StorageUpdate) -> StorageChange:
        stack = _stack_of(update.storage)
        return self._update_storage_impl(update) if stack is None else stack.update(self, update)

    @abstractmethod
    def _update_storage_impl(self, update: StorageUpdate) -> StorageChange:
        """`update_storage` of a storage that is no stack."""

    def find_storage(
        self, storage: Storage, keys: DeviceArray, num_columns: int | None = None
    ) -> StoredRows:
        """Rows of a storage. Waits for nothing, except in a stack: rows in lower tiers come from
        the host.

        Args:
            storage: takes arrays of this device.
            keys: ``(u,)``, unique.
            num_columns: how many of the first elements of each row; None: all.

        Raises:
            UnsupportedError: the storage is elsewhere.
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
        """As `find_storage`, into arrays that are there.

        Args:
            storage: takes arrays of this device.
            keys: ``(u,)``, unique.
            rows: ``(u, num_columns)`` of the table's dtype, filled; zeros where there is none.
            found: ``(u,)`` bool or uint8, filled: 1 where a key has a row, else 0.

        Raises:
            UnsupportedError: the storage is elsewhere.
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
        """`find_into` for a storage that is no stack."""

    def upsert_storage(
        self, storage: Storage, keys: DeviceArray, rows: DeviceArray, *, keeps_evicted: bool = False
    ) -> EvictionResult:
        """Replaces or inserts whole rows. Nothing is changed where it raises.

        Args:
            storage: takes arrays of this device.
            keys: ``(u,)``, unique.
            rows: ``(u, width)`` of the table's dtype.
            keeps_evicted: rows that leave are copied to the host.

        Raises:
            UnsupportedError: the storage is elsewhere.
            CapacityError, DeviceMemoryError: there is no room.
        """
        stack = _stack_of(storage)
        if stack is not None:
            return stack.upsert(self, keys, rows)
        return self._upsert_storage_impl(storage, keys, rows, keeps_evicted=keeps_evicted)

    @abstractmethod
    def _upsert_storage_impl(
        self, storage: Storage, keys: DeviceArray, rows: DeviceArray, *, keeps_evicted: bool
    ) -> EvictionResult:
        """`upsert_storage` of a storage that is no stack."""


class KernelSet(StorageKernels, SupportsStreams):
    """All that a plugin offers for a device: three contracts, of which a user names what it needs."""


class DeviceFirstTierAccess(Protocol):
    """The operations of `KernelSet` on a stack of storages whose first tier is on a device."""

    def find(self, kernels: StorageKernels, keys: DeviceArray, num_columns: int) -> StoredRows:
        """`KernelSet.find_storage`."""

    def pool(self, kernels: StorageKernels, lookup: StorageLookup) -> DeviceArray:
        """`KernelSet.pool_storage`."""

    def update(self, kernels: StorageKernels, update: StorageUpdate) -> StorageChange:
        """`KernelSet.update_storage`."""

    def upsert(
        self, kernels: StorageKernels, keys: DeviceArray, rows: DeviceArray
    ) -> EvictionResult:
        """`KernelSet.upsert_storage`."""


def _is_of_stack(each: StorageLookup | StorageUpdate) -> bool:
    return each.storage is not None and _stack_of(each.storage) is not None


def _stack_of(storage: Storage) -> DeviceFirstTierAccess | None:
    # Not by `isinstance`, which takes microseconds for a Protocol: every find asks.
    access = getattr(storage, "device_first_tier_access", None)
    found: DeviceFirstTierAccess | None = None if access is None else access()
    return found
