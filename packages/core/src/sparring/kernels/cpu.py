"""The kernel set of the CPU, which implements the contract with `sparring.kernels.functions`.

Arrays of any framework are accepted through DLPack, which shares host memory. Results are always
NumPy arrays, for any `ArraySource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sparring import _native
from sparring.contracts.device.kernel_set import (
    EvictionResult,
    KernelSet,
    StorageChange,
    StorageLookup,
    StorageUpdate,
    StoredRows,
)
from sparring.contracts.device.kernels import (
    ArraySource,
    Dedup,
    DeviceArray,
    Pooling,
    Rounding,
    Route,
)
from sparring.contracts.storage.results import Columns
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.kernels import functions as kernels

if TYPE_CHECKING:
    import numpy.typing as npt

    from sparring._native import InitializerSpec
    from sparring.contracts.storage.storage import Storage
    from sparring.contracts.storage.updates import MethodChoice
    from sparring.contracts.tables.table import TableConfig

__all__ = ["HOST", "CpuKernels"]

_CPU = 1
"""DLPack's device type of host memory."""


class CpuKernels(KernelSet):
    """The key operations of core, in C++ with AVX-512, AVX2 or portable code."""

    device = "cpu"

    def __init__(self, arrays: ArraySource | None = None) -> None:
        self.arrays = ArraySource(empty=_empty, stream=lambda: 0) if arrays is None else arrays
        # For each name, the last table and its initializer spec.
        self._initializers: dict[str, tuple[TableConfig, InitializerSpec]] = {}

    def find_storage(
        self, storage: Storage, keys: DeviceArray, num_columns: int | None = None
    ) -> StoredRows:
        table, keys = storage.table, _shared(keys, "keys")
        count = table.width if num_columns is None else num_columns
        rows, found = np.empty((len(keys), count), table.numpy_dtype), np.empty(len(keys), np.bool_)
        if len(keys):
            storage.find_into(keys, Columns(0, count), rows, found)
        return StoredRows(rows, found)

    def find_into(
        self, storage: Storage, keys: DeviceArray, rows: DeviceArray, found: DeviceArray
    ) -> None:
        to, flags = _shared(rows, "rows"), _shared(found, "found").view(np.bool_)
        if len(to):
            storage.find_into(_shared(keys, "keys"), Columns(0, to.shape[1]), to, flags)

    def upsert_storage(
        self, storage: Storage, keys: DeviceArray, rows: DeviceArray, *, keeps_evicted: bool = False
    ) -> EvictionResult:
        evicted = storage.upsert_from(_shared(keys, "keys"), _shared(rows, "rows"))
        return EvictionResult(len(evicted.keys), evicted if keeps_evicted else None)

    _find_into_impl = find_into
    _upsert_storage_impl = upsert_storage

    def dedup(self, ids: DeviceArray) -> Dedup:
        return kernels.dedup(_shared(ids, "ids"))

    def partition(self, keys: DeviceArray) -> DeviceArray:
        return kernels.partition(_shared(keys, "keys"))

    def route(self, keys: DeviceArray, owners: DeviceArray, world_size: int) -> Route:
        return Route(*_native.route(_shared(keys, "keys"), _shared(owners, "owners"), world_size))

    def gather(
        self, rows: DeviceArray, inverse: DeviceArray, out: DeviceArray | None = None
    ) -> DeviceArray:
        places = _shared(inverse, "inverse")
        to = None if out is None else _shared(out, "out")
        return kernels.gather(_shared(rows, "rows"), places, to)

    def pool(
        self,
        rows: DeviceArray,
        inverse: DeviceArray,
        offsets: DeviceArray,
        *,
        mode: Pooling = "sum",
        weights: DeviceArray | None = None,
    ) -> DeviceArray:
        return kernels.pool(
            _shared(rows, "rows"),
            _shared(inverse, "inverse"),
            _shared(offsets, "offsets"),
            mode=mode,
            weights=None if weights is None else _shared(weights, "weights"),
        )

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
        return kernels.pool_backward(
            _shared(gradient, "gradient"),
            _shared(inverse, "inverse"),
            _shared(offsets, "offsets"),
            num_rows,
            mode=mode,
            weights=None if weights is None else _shared(weights, "weights"),
        )

    def pool_weight_gradient(
        self,
        gradient: DeviceArray,
        rows: DeviceArray,
        inverse: DeviceArray,
        offsets: DeviceArray,
        *,
        mode: Pooling = "sum",
    ) -> DeviceArray:
        return kernels.pool_weight_gradient(
            _shared(gradient, "gradient"),
            _shared(rows, "rows"),
            _shared(inverse, "inverse"),
            _shared(offsets, "offsets"),
            mode=mode,
        )

    def segment_sum(
        self, values: DeviceArray, segments: DeviceArray, num_segments: int
    ) -> DeviceArray:
        places = _shared(segments, "segments")
        return kernels.segment_sum(_shared(values, "values"), places, num_segments)

    def initialize(
        self,
        rows: DeviceArray,
        keys: DeviceArray,
        found: DeviceArray,
        table: TableConfig,
        state: DeviceArray | None = None,
    ) -> None:
        known = self._initializers.get(table.name)
        if known is None or known[0] is not table:
            known = self._initializers[table.name] = table, kernels.initializer_spec(table)
        _native.initialize(
            _shared(rows, "rows"),
            _shared(keys, "keys"),
            _shared(found, "found"),
            known[1],
            None if state is None else _shared(state, "state"),
        )

    def decode(self, rows: DeviceArray) -> DeviceArray:
        return kernels.decode(_shared(rows, "rows"))

    def encode(
        self, values: DeviceArray, out: DeviceArray, rounding: Rounding | None = None
    ) -> None:
        kernels.encode(_shared(values, "values"), _shared(out, "out"), rounding)

    def is_finite(self, values: DeviceArray) -> bool:
        return _native.is_finite(_shared(values, "values"))

    def finite_rows(self, values: DeviceArray) -> DeviceArray:
        return kernels.finite_rows(_shared(values, "values"))

    def update(
        self,
        table: TableConfig,
        choice: MethodChoice,
        keys: DeviceArray,
        rows: DeviceArray,
        gradients: DeviceArray,
    ) -> None:
        from sparring.updates.builtin import NativeMethod

        if not isinstance(choice.method, NativeMethod):
            raise _unsupported_method(choice)
        spec = choice.method.spec(
            table.dtype, table.dim, choice.hyper, choice.step, kernels.rounding_seed(table)
        )
        _native.update_rows(
            spec, _shared(keys, "keys"), _shared(rows, "rows"), _shared(gradients, "gradients")
        )

    def _pool_storage_impl(self, lookup: StorageLookup) -> DeviceArray:
        table, dedup = lookup.table, self.dedup(lookup.ids)
        if lookup.storage is None:
            rows = np.zeros((len(dedup.keys), table.embedding_width), table.numpy_dtype)
            found = np.zeros(len(dedup.keys), np.bool_)
        else:
            stored = self.find_storage(lookup.storage, dedup.keys, table.embedding_width)
            rows, found = stored.rows, stored.found
        self.initialize(rows, dedup.keys, found, table)
        if table.is_narrow:
            rows = self.decode(rows)
        return self.pool(
            rows, dedup.inverse, lookup.offsets, mode=lookup.mode, weights=lookup.weights
        )

    def _update_storage_impl(self, update: StorageUpdate) -> StorageChange:
        storage, table = update.storage, update.storage.table
        known, sums = _shared(update.keys, "keys"), _shared(update.gradients, "gradients")
        stored = self.find_storage(storage, known)
        rows, found = stored.rows, stored.found
        if update.admit is not None and not found.all():
            is_kept = found.copy()
            is_kept[~found] = update.admit(known[~found])
            known, sums, rows, found = (each[is_kept] for each in (known, sums, rows, found))
        self.initialize(rows, known, found, table, update.initial_state)
        self.update(table, update.choice, known, rows, sums)
        evicted = self.upsert_storage(storage, known, rows, keeps_evicted=update.keeps_evicted)
        return StorageChange(len(found) - int(np.count_nonzero(found)), evicted)


def _empty(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    if dtype == "bfloat16":
        import ml_dtypes

        return np.empty(shape, ml_dtypes.bfloat16)
    return np.empty(shape, dtype)


def _unsupported_method(choice: MethodChoice) -> UnsupportedError:
    return UnsupportedError(
        f"update: kernels only support the update methods of core, found {choice.method.name!r}; use "
        "a method of sparring.updates"
    )


def _shared(array: DeviceArray, name: str) -> npt.NDArray[Any]:
    """Returns a NumPy array that shares the memory of `array`."""
    if isinstance(array, np.ndarray):
        return array
    if not hasattr(array, "__dlpack_device__"):
        raise InvalidArgumentError(
            f"{name} must be an array with __dlpack__, found {type(array).__name__}; convert it to "
            "NumPy"
        )
    if int(array.__dlpack_device__()[0]) != _CPU:
        raise InvalidArgumentError(
            f"{name} must be in host memory, because these are the kernels of the CPU; copy it to the "
            "CPU, or use PluginManager.kernels for its device"
        )
    return np.from_dlpack(array)


HOST = CpuKernels()
"""Kernel set for NumPy arrays, which the engine uses for tables in host memory."""
