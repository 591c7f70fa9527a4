"""The key operations of one device type, behind one contract.

`sparring.kernels.functions` is the set for NumPy arrays on the CPU, and says what each operation
computes; every other set gives the same results. They have the same bits, but for the order in which more
than 1,024 rows of one segment are added.

Arrays are whatever the caller's framework has, as long as they speak DLPack and lie on the set's
device, C-contiguous: the set makes results by the caller's own `ArraySource`, and works on its
stream. An operation returns when its work is on the stream. It waits for the device only where its
description says so. Contents are taken for granted: an index out of range reads or writes foreign
memory.

Shapes as in `sparring.kernels.functions`: ``n`` ids, ``u`` keys, ``b`` bags; ids, keys, inverse,
segments and offsets are int64, rows and weights float32 or float64.

The file is long because the set is one class: an author of another one reads it from top to bottom.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from sparring.errors import UnsupportedError

if TYPE_CHECKING:
    from sparring.contracts.results import Evicted
    from sparring.contracts.storage import Storage
    from sparring.contracts.table import TableConfig
    from sparring.contracts.updates import MethodChoice
    from sparring.runtime.streams import Streams

__all__ = [
    "ArraySource",
    "Dedup",
    "DeviceArray",
    "DeviceFirstTierAccess",
    "Indices",
    "KernelSet",
    "NumEvicted",
    "Pooling",
    "Rounding",
    "Route",
    "StorageChange",
    "StoredRows",
    "SupportsDeviceFirstTier",
]

Indices = npt.NDArray[np.int64]
Pooling = Literal["sum", "mean"]

DeviceArray = Any
"""An array of the caller's framework; it has ``__dlpack__`` and ``__dlpack_device__``."""


@dataclass(frozen=True, slots=True)
class Dedup:
    """The distinct ids of a batch.

    Args:
        keys: ``(u,)`` int64, in the order in which they first occur.
        inverse: ``(n,)`` int64: ``ids[i] == keys[inverse[i]]``.
    """

    keys: Indices
    inverse: Indices


@dataclass(frozen=True, slots=True)
class Route:
    """Keys grouped by the rank that owns them.

    Args:
        order: ``(u,)`` int64: the keys of rank r are ``keys[order[offsets[r]:offsets[r + 1]]]``,
            in the order in which they came.
        offsets: ``(world_size + 1,)`` int64, from 0 to u.
    """

    order: Indices
    offsets: Indices


@dataclass(frozen=True, slots=True)
class Rounding:
    """Source of the bits for stochastic rounding to 16 bits: see ``native/kernels/halves.h``.

    Args:
        keys: ``(n,)`` int64, the key of each row.
        seed: of the table, from `rounding_seed`.
        step: the number of the step, so that each step draws others.
    """

    keys: Indices
    seed: int
    step: int


def _taken(array: DeviceArray, positions: DeviceArray) -> DeviceArray:
    return np.take(array, positions, axis=0)


def _followed(_arrays: Sequence[DeviceArray]) -> Callable[[], None]:
    return lambda: None


def _viewed(array: DeviceArray, dtype: str) -> DeviceArray:
    return array.view(dtype)


def _put(array: DeviceArray, positions: DeviceArray, values: DeviceArray) -> None:
    array[positions] = values


@dataclass(frozen=True, slots=True)
class ArraySource:
    """Array functions of the caller's framework that a set needs.

    Args:
        empty: ``empty(shape, dtype)`` makes an uninitialised C-contiguous array on the device;
            dtype is a name as ``int64``, ``float32``, ``bool``. Its memory is the framework's, so
            it counts in the framework's limits and may be used on `stream` at once.
        stream: the stream that work goes to now, as an address (``cudaStream_t``); 0 is the
            default stream, and all there is on a CPU.
        index: the number of the device among those of its type.
        using: ``using(stream)``: a context manager that makes this the calling thread's stream, the
            one that `stream` gives and that memory of `empty` is first used on.
        open_stream: ``open_stream()``: a stream of the framework, which never ends it: memory that
            `empty` takes on a stream is kept by the framework for that stream. None: the set's own.
        here: ``here()``: a context manager that makes the device the framework's current one; some
            frameworks share arrays of no other.
        to_host: the array as NumPy's, in host memory; it may wait for the stream.
        from_host: an array of NumPy as one on the device.
        concatenate: arrays one behind the other, along the first dimension.
        take: ``take(array, positions)``: the rows of an array at positions ``(m,)`` int64, which
            lie on the device.
        put: ``put(array, positions, values)``: replaces the rows of an array at different positions
            ``(m,)`` int64, which lie on the device.
        follow: ``follow(arrays)`` remembers that the stream of now makes these arrays; what it
            returns is called before they are used, and makes the stream of then wait for that.
        view: ``view(array, dtype)``: the same memory as elements of another dtype, the last
            dimension longer or shorter for it.
        release_unused: ``release_unused()`` gives back to the device what memory of it the framework
            keeps without using it, and returns whether there was any; None where it keeps none. A
            set calls it once where the device has no memory left, and then asks the device again;
            from any thread.

    What makes an array raises `DeviceMemoryError` where the framework has no memory for it, with the
    bytes that were asked for and those that are free.
    """

    empty: Callable[[tuple[int, ...], str], DeviceArray]
    stream: Callable[[], int]
    index: int = 0
    using: Callable[[int], AbstractContextManager[Any]] = nullcontext
    open_stream: Callable[[], int] | None = None
    here: Callable[[], AbstractContextManager[Any]] = nullcontext
    to_host: Callable[[DeviceArray], npt.NDArray[Any]] = np.asarray
    from_host: Callable[[npt.NDArray[Any]], DeviceArray] = np.asarray
    concatenate: Callable[[Sequence[DeviceArray]], DeviceArray] = np.concatenate
    take: Callable[[DeviceArray, DeviceArray], DeviceArray] = _taken
    put: Callable[[DeviceArray, DeviceArray, DeviceArray], None] = _put
    follow: Callable[[Sequence[DeviceArray]], Callable[[], None]] = _followed
    view: Callable[[DeviceArray, str], DeviceArray] = _viewed
    release_unused: Callable[[], bool] | None = None


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


class KernelSet(ABC):
    """The key operations of one device.

    All raise `InvalidArgumentError` for wrong shapes, dtypes or devices, `DeviceMemoryError` where
    the device has no memory, and `DeviceError` once the device has failed.
    """

    device: str
    """Where arrays lie: ``cpu``, ``cuda:0``."""
    arrays: ArraySource
    """How arrays of the framework are made."""

    def streams(self) -> Streams:
        """The streams of the device.

        Raises:
            UnsupportedError: it has none, as a CPU.
        """
        raise UnsupportedError(
            f"the kernels of device {self.device} have no streams; ask a set for a GPU"
        )

    @abstractmethod
    def dedup(self, ids: DeviceArray) -> Dedup:
        """`sparring.kernels.functions.dedup`. Waits for the device once, to learn the number of keys."""

    @abstractmethod
    def partition(self, keys: DeviceArray) -> DeviceArray:
        """`sparring.kernels.functions.partition`."""

    @abstractmethod
    def route(self, keys: DeviceArray, owners: DeviceArray, world_size: int) -> Route:
        """`sparring.kernels.functions.route`; `owners` is ``(4096,)`` int32 on the device."""

    @abstractmethod
    def gather(
        self, rows: DeviceArray, inverse: DeviceArray, out: DeviceArray | None = None
    ) -> DeviceArray:
        """`sparring.kernels.functions.gather`, of rows of any dtype of a table."""

    @abstractmethod
    def pool(
        self,
        rows: DeviceArray,
        inverse: DeviceArray,
        offsets: DeviceArray,
        *,
        mode: Pooling = "sum",
        weights: DeviceArray | None = None,
    ) -> DeviceArray:
        """`sparring.kernels.functions.pool`."""

    @abstractmethod
    def pool_backward(
        self,
        gradient: DeviceArray,
        inverse: DeviceArray,
        offsets: DeviceArray,
        num_rows: int,
        *,
        mode: Pooling = "sum",
        weights: DeviceArray | None = None,
    ) -> DeviceArray:
        """`sparring.kernels.functions.pool_backward`."""

    @abstractmethod
    def pool_weight_gradient(
        self,
        gradient: DeviceArray,
        rows: DeviceArray,
        inverse: DeviceArray,
        offsets: DeviceArray,
        *,
        mode: Pooling = "sum",
    ) -> DeviceArray:
        """`sparring.kernels.functions.pool_weight_gradient`."""

    @abstractmethod
    def segment_sum(
        self, values: DeviceArray, segments: DeviceArray, num_segments: int
    ) -> DeviceArray:
        """`sparring.kernels.functions.segment_sum`."""

    @abstractmethod
    def initialize(
        self,
        rows: DeviceArray,
        keys: DeviceArray,
        found: DeviceArray,
        table: TableConfig,
        state: DeviceArray | None = None,
    ) -> None:
        """`sparring.kernels.functions.initialize`, for the table's initializer."""

    @abstractmethod
    def decode(self, rows: DeviceArray) -> DeviceArray:
        """`sparring.kernels.functions.decode`."""

    @abstractmethod
    def encode(
        self, values: DeviceArray, out: DeviceArray, rounding: Rounding | None = None
    ) -> None:
        """`sparring.kernels.functions.encode`."""

    @abstractmethod
    def is_finite(self, values: DeviceArray) -> bool:
        """`sparring.kernels.functions.is_finite`. Waits for the device."""

    @abstractmethod
    def finite_rows(self, values: DeviceArray) -> DeviceArray:
        """`sparring.kernels.functions.finite_rows`."""

    @abstractmethod
    def update(
        self,
        table: TableConfig,
        choice: MethodChoice,
        keys: DeviceArray,
        rows: DeviceArray,
        gradients: DeviceArray,
    ) -> None:
        """Changes rows by one of core's update methods (`sparring.updates`).

        Args:
            table: its dim, dtype, seed and name count; its rows must be as wide as the method
                wants them.
            choice: the method, its hyper-parameters and the number of the step.
            keys: ``(u,)``, unique: what the rounding of 16-bit rows is drawn by.
            rows: ``(u, row_bytes / itemsize)`` of the table's dtype; changed in place.
            gradients: ``(u, dim)`` of the computing dtype; may be overwritten.

        Raises:
            UnsupportedError: the method is not one of core's.
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


class DeviceFirstTierAccess(Protocol):
    """The operations of `KernelSet` on a stack of storages whose first tier is on a device."""

    def find(self, kernels: KernelSet, keys: DeviceArray, num_columns: int) -> StoredRows:
        """`KernelSet.find_storage`."""

    def pool(
        self,
        kernels: KernelSet,
        ids: DeviceArray,
        offsets: DeviceArray,
        *,
        mode: Pooling,
        weights: DeviceArray | None,
    ) -> DeviceArray:
        """`KernelSet.pool_storage`."""

    def update(
        self,
        kernels: KernelSet,
        choice: MethodChoice,
        keys: DeviceArray,
        gradients: DeviceArray,
        initial_state: npt.NDArray[Any] | None,
        *,
        admit: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]] | None,
    ) -> StorageChange:
        """`KernelSet.update_storage`."""

    def upsert(self, kernels: KernelSet, keys: DeviceArray, rows: DeviceArray) -> NumEvicted:
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
