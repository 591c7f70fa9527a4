"""All operations of one device: on arrays, on the rows of storages, and its streams.

A stack of storages whose first tier is on the device is reached by `DeviceFirstTierAccess`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from sparring.contracts.kernels import (
    ArrayKernels,
    DeviceArray,
    Pooling,
    SupportsStreams,
)

if TYPE_CHECKING:
    from sparring.contracts.results import Evicted
    from sparring.contracts.storage import Storage
    from sparring.contracts.table import TableConfig
    from sparring.contracts.updates import MethodChoice

__all__ = [
    "DeviceFirstTierAccess",
    "KernelSet",
    "NumEvicted",
    "StorageChange",
    "StorageKernels",
    "StoredRows",
    "SupportsDeviceFirstTier",
]


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of a storage, or the first columns of them, on the device."""

    rows: DeviceArray
    """``(u, num_columns)`` of the table's dtype; zeros where `found` is 0."""
    found: DeviceArray
    """``(u,)`` bool"""


@dataclass(frozen=True, slots=True)
class NumEvicted:
    """Rows that left a storage."""

    count: int
    rows: Evicted | None
    """In host memory; None where they were not asked for."""


@dataclass(frozen=True, slots=True)
class StorageChange:
    """Result of an update of a storage."""

    num_new: int
    """Rows that were made, those that left at once included."""
    evicted: NumEvicted


class StorageKernels(ArrayKernels):
    """The operations of one device on storages; a stack's need those on arrays too."""

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
        """One embedding for each bag, straight from the rows of a storage.

        Nothing is deduplicated, and no row is copied but into the sums; except for a stack, where
        rows of lower tiers come from the host, which waits for the device. An id without a row has
        its initial value.

        Args:
            storage: takes arrays of this device (`Capabilities.devices`); None: no id has a row.
            table: what the rows are.
            ids: ``(n,)``, with repeats.
            offsets: ``(b + 1,)``, from 0 to n.
            mode: as in `pool`.
            weights: ``(n,)`` of the table's computing dtype.

        Returns:
            ``(b, dim)`` of the computing dtype.

        Raises:
            UnsupportedError: the storage is elsewhere.
        """
        stack = None if storage is None else _stack_of(storage)
        if stack is not None:
            return stack.pool(self, ids, offsets, mode=mode, weights=weights)
        return self._pool_storage_impl(storage, table, ids, offsets, mode=mode, weights=weights)

    @abstractmethod
    def _pool_storage_impl(
        self,
        storage: Storage | None,
        table: TableConfig,
        ids: DeviceArray,
        offsets: DeviceArray,
        *,
        mode: Pooling,
        weights: DeviceArray | None,
    ) -> DeviceArray:
        """`pool_storage` of a storage that is no stack."""

    def update_storage(
        self,
        storage: Storage,
        choice: MethodChoice,
        keys: DeviceArray,
        gradients: DeviceArray,
        initial_state: npt.NDArray[Any] | None,
        *,
        admit: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]] | None = None,
        keeps_evicted: bool = False,
    ) -> StorageChange:
        """Changes rows of a storage by one of core's update methods, in one visit.

        Rows that are missing are made first. Nothing is changed where it raises.

        Args:
            storage: takes arrays of this device; its rows are as wide as the method wants them.
            choice: as in `update`.
            keys: ``(u,)``, unique.
            gradients: ``(u, dim)`` of the computing dtype; may be overwritten.
            initial_state: ``(state_width,)`` of the computing dtype, in host memory: the set keeps
                a copy on its device, and moves it there once. None: zeros.
            admit: asked which keys without a row may have one, with these keys and its answer in
                host memory, which waits for the device; None: all may.
            keeps_evicted: rows that leave are copied to the host.

        Raises:
            UnsupportedError: the method is not one of core's, or the storage is elsewhere.
            CapacityError, DeviceMemoryError: there is no room.
        """
        stack = _stack_of(storage)
        if stack is not None:
            return stack.update(self, choice, keys, gradients, initial_state, admit=admit)
        return self._update_storage_impl(
            storage,
            choice,
            keys,
            gradients,
            initial_state,
            admit=admit,
            keeps_evicted=keeps_evicted,
        )

    @abstractmethod
    def _update_storage_impl(
        self,
        storage: Storage,
        choice: MethodChoice,
        keys: DeviceArray,
        gradients: DeviceArray,
        initial_state: npt.NDArray[Any] | None,
        *,
        admit: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]] | None,
        keeps_evicted: bool,
    ) -> StorageChange:
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
    ) -> NumEvicted:
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
    ) -> NumEvicted:
        """`upsert_storage` of a storage that is no stack."""


class KernelSet(StorageKernels, SupportsStreams):
    """All that a plugin offers for a device: three contracts, of which a user names what it needs."""


class DeviceFirstTierAccess(Protocol):
    """The operations of `KernelSet` on a stack of storages whose first tier is on a device."""

    def find(self, kernels: StorageKernels, keys: DeviceArray, num_columns: int) -> StoredRows:
        """`KernelSet.find_storage`."""

    def pool(
        self,
        kernels: StorageKernels,
        ids: DeviceArray,
        offsets: DeviceArray,
        *,
        mode: Pooling,
        weights: DeviceArray | None,
    ) -> DeviceArray:
        """`KernelSet.pool_storage`."""

    def update(
        self,
        kernels: StorageKernels,
        choice: MethodChoice,
        keys: DeviceArray,
        gradients: DeviceArray,
        initial_state: npt.NDArray[Any] | None,
        *,
        admit: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]] | None,
    ) -> StorageChange:
        """`KernelSet.update_storage`."""

    def upsert(self, kernels: StorageKernels, keys: DeviceArray, rows: DeviceArray) -> NumEvicted:
        """`KernelSet.upsert_storage`."""


class SupportsDeviceFirstTier(Protocol):
    """A stack of storages; an optional part of the storage contract."""

    def device_first_tier_access(self) -> DeviceFirstTierAccess | None:
        """Returns the operations on it; None where its first tier is not on a device."""


def _stack_of(storage: Storage) -> DeviceFirstTierAccess | None:
    # Not by `isinstance`, which takes microseconds for a Protocol: every find asks.
    access = getattr(storage, "device_first_tier_access", None)
    found: DeviceFirstTierAccess | None = None if access is None else access()
    return found
