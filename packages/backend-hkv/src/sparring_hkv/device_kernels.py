"""Implements the kernel contract of core on a GPU or on the emulator."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.contracts import (
    NUM_PARTITIONS,
    ArraySource,
    Dedup,
    DeviceArray,
    EvictedRows,
    EvictionResult,
    Initializer,
    KernelSet,
    Pooling,
    Rounding,
    Route,
    StorageChange,
    StorageLookup,
    StorageUpdate,
    Streams,
    TableBags,
    TableSums,
    get_capsule,
    initializer_spec,
    rounding_seed,
)
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring_hkv.devices import ModuleInContext, open_device

if TYPE_CHECKING:
    from sparring.contracts import MethodChoice, Storage, TableConfig

__all__ = ["DedupResult", "DeviceKernels"]


class DeviceKernels(KernelSet):
    """The kernels of one device.

    Args:
        kind: ``cuda``, or ``emulated`` if that module was built.
        arrays: see `ArraySource`.

    Raises:
        DeviceError: the device cannot be used; the message contains the reason.
    """

    def __init__(self, kind: str, arrays: ArraySource) -> None:
        opened = open_device(kind, arrays.index)
        self._native: Any = ModuleInContext(opened.native, arrays.here)
        self._handle: Any = opened.handle
        if arrays.release_unused is not None:
            # Registered with the device, so that tables on the device can release unused arrays,
            # too.
            self._handle.add_reclaimer(arrays.release_unused)
        self.arrays = arrays
        self.device = opened.name

    def streams(self) -> Streams:
        return Streams(self._native.streams(self._handle))

    def _find_into_impl(
        self, storage: Storage, keys: DeviceArray, rows: DeviceArray, found: DeviceArray
    ) -> None:
        self._native.table_find(
            self._capsule(storage), self._handle, self._stream(), keys, rows, found
        )

    def dedup(self, ids: DeviceArray) -> Dedup:
        count = _length(ids, "ids")
        keys = self.arrays.empty((count,), "int64")
        inverse = self.arrays.empty((count,), "int64")
        num_keys = self._native.dedup(self._handle, self._stream(), ids, keys, inverse)
        return Dedup(keys[:num_keys], inverse)

    def dedup_tables(self, ids: Sequence[DeviceArray]) -> DedupResult:
        """Deduplicates the ids of several tables together and waits for the device only once.

        Args:
            ids: ``(n,)`` int64 of each table.
        """
        offsets = [0, *itertools.accumulate(_length(each, "ids") for each in ids)]
        joined = self._concatenate(ids)
        keys = self.arrays.empty((offsets[-1],), "int64")
        inverse = self.arrays.empty((offsets[-1],), "int64")
        key_offsets = self._native.dedup_tables(
            self._handle, self._stream(), joined, offsets, keys, inverse
        )
        return DedupResult(keys[: key_offsets[-1]], inverse, offsets, key_offsets)

    def partition(self, keys: DeviceArray) -> DeviceArray:
        partitions = self.arrays.empty((_length(keys, "keys"),), "uint16")
        self._native.partition(self._handle, self._stream(), keys, partitions)
        return partitions

    def route(self, keys: DeviceArray, owners: DeviceArray, world_size: int) -> Route:
        if not 1 <= world_size <= NUM_PARTITIONS:
            raise InvalidArgumentError(
                f"route: world_size must be from 1 to {NUM_PARTITIONS}, found {world_size}; pass the "
                "world size of the job"
            )
        order = self.arrays.empty((_length(keys, "keys"),), "int64")
        offsets = self.arrays.empty((world_size + 1,), "int64")
        self._native.route(self._handle, self._stream(), keys, owners, order, offsets)
        return Route(order, offsets)

    def gather(
        self, rows: DeviceArray, inverse: DeviceArray, out: DeviceArray | None = None
    ) -> DeviceArray:
        if out is None:
            shape = (_length(inverse, "inverse"), _width(rows, "rows"))
            out = self.arrays.empty(shape, _dtype(rows))
        self._native.gather(self._handle, self._stream(), rows, inverse, out)
        return out

    def pool(
        self,
        rows: DeviceArray,
        inverse: DeviceArray,
        offsets: DeviceArray,
        *,
        mode: Pooling = "sum",
        weights: DeviceArray | None = None,
    ) -> DeviceArray:
        shape = (_length(offsets, "offsets") - 1, _width(rows, "rows"))
        out = self.arrays.empty(shape, _dtype(rows))
        self._native.pool(
            self._handle, self._stream(), rows, inverse, offsets, weights, out, _is_mean(mode)
        )
        return out

    def pool_backward(
        self,
        gradient: DeviceArray,
        inverse: DeviceArray,
        offsets: DeviceArray,
        num_rows: int,
        *,
        mode: Pooling = "sum",
        weights: DeviceArray | None = None,
        num_bad: DeviceArray | None = None,
    ) -> DeviceArray:
        """See the contract.

        Args:
            num_bad: ``(1,)`` int64, incremented for each sum that is not finite; None to skip the check.
        """
        out = self.arrays.empty((num_rows, _width(gradient, "gradient")), _dtype(gradient))
        self._native.scatter(
            self._handle,
            self._stream(),
            gradient,
            inverse,
            offsets,
            weights,
            out,
            _is_mean(mode),
            num_bad,
        )
        return out

    def pool_weight_gradient(
        self,
        gradient: DeviceArray,
        rows: DeviceArray,
        inverse: DeviceArray,
        offsets: DeviceArray,
        *,
        mode: Pooling = "sum",
    ) -> DeviceArray:
        out = self.arrays.empty((_length(inverse, "inverse"),), _dtype(rows))
        self._native.pool_weight_gradient(
            self._handle, self._stream(), gradient, rows, inverse, offsets, out, _is_mean(mode)
        )
        return out

    def segment_sum(
        self, values: DeviceArray, segments: DeviceArray, num_segments: int
    ) -> DeviceArray:
        out = self.arrays.empty((num_segments, _width(values, "values")), _dtype(values))
        self._native.scatter(self._handle, self._stream(), values, segments, None, None, out, False)
        return out

    def initialize(
        self,
        rows: DeviceArray,
        keys: DeviceArray,
        found: DeviceArray,
        table: TableConfig,
        state: DeviceArray | None = None,
    ) -> None:
        native = self._initializer(table)
        self._native.initialize(
            self._handle, self._stream(), native, table.dim, rows, keys, found, state
        )

    def decode(self, rows: DeviceArray) -> DeviceArray:
        out = self.arrays.empty((_length(rows, "rows"), _width(rows, "rows")), "float32")
        self._native.decode(self._handle, self._stream(), rows, out)
        return out

    def encode(
        self, values: DeviceArray, out: DeviceArray, rounding: Rounding | None = None
    ) -> None:
        keys, seed, step = (
            (None, 0, 0) if rounding is None else (rounding.keys, rounding.seed, rounding.step)
        )
        self._native.encode(self._handle, self._stream(), values, out, keys, seed, step)

    def is_finite(self, values: DeviceArray) -> bool:
        return bool(self._native.is_finite(self._handle, self._stream(), values))

    def finite_rows(self, values: DeviceArray) -> DeviceArray:
        finite = self.arrays.empty((_length(values, "values"),), "bool")
        self._native.finite_rows(self._handle, self._stream(), values, finite)
        return finite

    def update(
        self,
        table: TableConfig,
        choice: MethodChoice,
        keys: DeviceArray,
        rows: DeviceArray,
        gradients: DeviceArray,
    ) -> None:
        step = self._update_step(table, choice)
        self._native.update(self._handle, self._stream(), step, keys, rows, gradients)

    def sum_tables(self, bags: Sequence[TableBags]) -> TableSums:
        # Sorted, so that tables with the same dim, dtype and pooling are summed together.
        bags, places = list(bags), sorted(range(len(bags)), key=lambda place: _shape(bags[place]))
        found = self.dedup_tables([bags[place].ids for place in places])
        num_bad = self.arrays.empty((1,), "int64")
        num_bad[:] = 0
        keys, gradients = [None] * len(bags), [None] * len(bags)
        first = 0
        for _, run in itertools.groupby([bags[place] for place in places], key=_shape):
            alike = list(run)
            end = first + len(alike)
            first_key = found.key_offsets[first]
            inverse = found.inverse[found.offsets[first] : found.offsets[end]]
            sums = self.pool_backward(
                self._concatenate([each.gradient for each in alike]),
                inverse - first_key if first_key else inverse,
                self._concatenate_offsets(
                    [each.offsets for each in alike], found.offsets[first:end]
                ),
                found.key_offsets[end] - first_key,
                mode=alike[0].mode,
                weights=None
                if alike[0].weights is None
                else self._concatenate([each.weights for each in alike]),
                num_bad=num_bad,
            )
            for number in range(first, end):
                own = found.of(number)
                keys[places[number]] = found.keys[own]
                gradients[places[number]] = sums[own.start - first_key : own.stop - first_key]
            first = end
        return TableSums(keys, gradients, num_bad)

    def _concatenate(self, arrays: Sequence[DeviceArray]) -> DeviceArray:
        return arrays[0] if len(arrays) == 1 else self.arrays.concatenate(arrays)

    def _concatenate_offsets(
        self, offsets: Sequence[DeviceArray], begins: Sequence[int]
    ) -> DeviceArray:
        """Returns the offsets of the concatenated ids of several bags, starting at 0."""
        if len(offsets) == 1:
            return offsets[0]
        joined = self.arrays.concatenate([offsets[0], *(each[1:] for each in offsets[1:])])
        lengths = [len(offsets[0]), *(len(each) - 1 for each in offsets[1:])]
        shifts = np.repeat(np.array(begins, np.int64) - begins[0], lengths)
        return joined + self.arrays.from_host(shifts)

    def _pool_tables_impl(self, lookups: Sequence[StorageLookup]) -> list[DeviceArray]:
        # One set of kernel launches, without waiting.
        if not all(each.storage is None or _is_own(each.storage) for each in lookups):
            return super()._pool_tables_impl(lookups)
        given, results = [], []
        for each in lookups:
            shape = (_length(each.offsets, "offsets") - 1, each.table.dim)
            results.append(self.arrays.empty(shape, each.table.computing_dtype.name))
            capsule = None if each.storage is None else self._capsule(each.storage)
            initializer = self._initializer(each.table)
            arrays = each.ids, each.offsets, each.weights, results[-1]
            given.append((capsule, initializer, each.table.dtype, *arrays, _is_mean(each.mode)))
        self._native.pool_storages(self._handle, self._stream(), given)
        return results

    def _update_tables_impl(
        self,
        updates: Sequence[StorageUpdate],
        num_bad: DeviceArray | None,
        changes: list[StorageChange],
    ) -> bool:
        # One set of kernel launches, with one wait.
        if not all(_is_own(each.storage) for each in updates):
            return super()._update_tables_impl(updates, num_bad, changes)
        given = list(map(self._native_update, updates))
        results: list[Any] = []
        try:
            is_done = self._native.update_storages(
                self._handle, self._stream(), given, num_bad, results
            )
        finally:
            for each, (num_new, num_evicted, evicted) in zip(updates, results, strict=False):
                left = _evicted(each.storage.table, num_evicted, evicted)
                changes.append(StorageChange(int(num_new), left))
        return bool(is_done)

    def _pool_storage_impl(self, lookup: StorageLookup) -> DeviceArray:
        table = lookup.table
        shape = (_length(lookup.offsets, "offsets") - 1, table.dim)
        out = self.arrays.empty(shape, table.computing_dtype.name)
        self._native.pool_storage(
            self._handle,
            self._stream(),
            None if lookup.storage is None else self._capsule(lookup.storage),
            self._initializer(table),
            table.dtype,
            lookup.ids,
            lookup.offsets,
            lookup.weights,
            out,
            _is_mean(lookup.mode),
        )
        return out

    def _update_storage_impl(self, update: StorageUpdate) -> StorageChange:
        num_new, num_evicted, evicted = self._native.update_storage(
            self._handle, self._stream(), *self._native_update(update)
        )
        return StorageChange(int(num_new), _evicted(update.storage.table, num_evicted, evicted))

    def _native_update(self, update: StorageUpdate) -> tuple[Any, ...]:
        table = update.storage.table
        return (
            self._capsule(update.storage),
            self._update_step(table, update.choice),
            self._initializer(table),
            table.dtype,
            update.keys,
            update.gradients,
            update.initial_state,
            update.admit,
            update.keeps_evicted,
        )

    def _upsert_storage_impl(
        self, storage: Storage, keys: DeviceArray, rows: DeviceArray, *, keeps_evicted: bool
    ) -> EvictionResult:
        num_evicted, evicted = self._native.table_upsert(
            self._capsule(storage),
            self._handle,
            self._stream(),
            keys,
            rows,
            storage.table.row_bytes,
            counts_departed=storage.capabilities.evicts,
            keeps_departed=keeps_evicted and storage.capabilities.evicts,
        )
        return _evicted(storage.table, max(0, num_evicted), evicted)

    def _capsule(self, storage: Storage) -> object:
        devices = storage.capabilities.devices
        if self.device not in devices and self.device.removesuffix(":0") not in devices:
            raise UnsupportedError(
                f"table {storage.table.name!r} is on {', '.join(devices)}, but these kernels run on "
                f"{self.device}; open its storage there"
            )
        return get_capsule(storage)

    def _update_step(self, table: TableConfig, choice: MethodChoice) -> Any:
        from sparring.contracts import NativeMethod

        if not isinstance(choice.method, NativeMethod):
            raise UnsupportedError(
                f"update method {choice.method.name!r} is not supported on devices; use a method of "
                "sparring.updates, or keep the table on the CPU"
            )
        return self._native.UpdateStep(
            choice.method.name,
            choice.method.numbers(choice.hyper),
            choice.step,
            rounding_seed(table),
        )

    def _initializer(self, table: TableConfig) -> Any:
        initializer = table.initializer
        assert isinstance(initializer, Initializer)  # TableConfig guarantees it
        return self._native.Initializer(
            initializer.kind,
            initializer.parameters(table.dim),
            initializer_spec(table).philox_key,
        )

    def _stream(self) -> int:
        return self.arrays.stream()


@dataclass(frozen=True, slots=True)
class DedupResult:
    """Distinct keys of several tables, concatenated by table."""

    keys: DeviceArray
    """``(u,)``"""
    inverse: DeviceArray
    """``(n,)`` position in `keys` of each id."""
    offsets: Sequence[int]
    """Start of the ids of each table, and the end of the last."""
    key_offsets: Sequence[int]
    """Start of the keys of each table, and the end of the last."""

    def of(self, table: int) -> slice:
        """Returns the slice with the keys of a table."""
        return slice(self.key_offsets[table], self.key_offsets[table + 1])


def _evicted(table: TableConfig, count: int, arrays: Any) -> EvictionResult:
    if arrays is None:
        return EvictionResult(int(count), None)
    keys, rows, scores = arrays
    return EvictionResult(int(count), EvictedRows(keys, rows.view(table.numpy_dtype), scores))


def _is_own(storage: Storage) -> bool:
    from sparring_hkv.backend import HkvStorage

    return isinstance(storage, HkvStorage)


def _shape(bags: TableBags) -> tuple[str, int, str, bool]:
    """Returns the properties that bags must share to be summed together."""
    gradient = bags.gradient
    return _dtype(gradient), _width(gradient, "gradient"), bags.mode, bags.weights is not None


def _length(array: DeviceArray, name: str) -> int:
    shape = getattr(array, "shape", ())
    if not shape:
        raise InvalidArgumentError(
            f"{name} must be an array with a shape, found {type(array).__name__}; pass an array on "
            "the device"
        )
    return int(shape[0])


def _width(array: DeviceArray, name: str) -> int:
    if len(getattr(array, "shape", ())) != 2:
        raise InvalidArgumentError(
            f"{name} must have two dimensions, found shape {getattr(array, 'shape', None)}; "
            "reshape them first"
        )
    return int(array.shape[1])


def _dtype(array: DeviceArray) -> str:
    """Returns the name of the dtype of a NumPy or PyTorch array, for example ``float32``."""
    return str(array.dtype).rsplit(".", 1)[-1]


def _is_mean(mode: Pooling) -> bool:
    if mode not in ("sum", "mean"):
        raise InvalidArgumentError(f"pool: mode must be 'sum' or 'mean', found {mode!r}")
    return mode == "mean"
