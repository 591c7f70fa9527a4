"""The kernel set of the CPU: `sparring.kernels` behind the contract of `sparring.kernel_set`.

Arrays of any framework come in by DLPack, which shares host memory; results are NumPy arrays,
whatever the `ArraySource` is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring import kernels
from sparring.errors import InvalidArgumentError, UnsupportedError
from sparring.kernel_set import (
    ArraySource,
    DeviceArray,
    KernelSet,
    NumEvicted,
    StorageChange,
    StoredRows,
)
from sparring.kernels import Dedup, Pooling, Rounding, Route
from sparring.storage.results import Columns

if TYPE_CHECKING:
    import numpy.typing as npt

    from sparring.storage import Storage
    from sparring.table import TableConfig
    from sparring.updates import MethodChoice

__all__ = ["CpuKernels"]

_CPU = 1
"""DLPack's code."""


class CpuKernels(KernelSet):
    """Core's own key operations: C++ with AVX-512, AVX2 or portable code."""

    device = "cpu"

    def __init__(self, arrays: ArraySource | None = None) -> None:
        self.arrays = ArraySource(empty=np.empty, stream=lambda: 0) if arrays is None else arrays

    def dedup(self, ids: DeviceArray) -> Dedup:
        return kernels.dedup(_shared(ids, "ids"))

    def partition(self, keys: DeviceArray) -> DeviceArray:
        return kernels.partition(_shared(keys, "keys"))

    def route(self, keys: DeviceArray, owners: DeviceArray, world_size: int) -> Route:
        return kernels.route(_shared(keys, "keys"), _shared(owners, "owners"), world_size)

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
        kernels.initialize(
            _shared(rows, "rows"),
            _shared(keys, "keys"),
            _shared(found, "found"),
            kernels.initializer_spec(table),
            None if state is None else _shared(state, "state"),
        )

    def decode(self, rows: DeviceArray) -> DeviceArray:
        return kernels.decode(_shared(rows, "rows"))

    def encode(
        self, values: DeviceArray, out: DeviceArray, rounding: Rounding | None = None
    ) -> None:
        kernels.encode(_shared(values, "values"), _shared(out, "out"), rounding)

    def is_finite(self, values: DeviceArray) -> bool:
        return kernels.is_finite(_shared(values, "values"))

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
        from sparring import _native
        from sparring.updates.builtin import NativeMethod

        if not isinstance(choice.method, NativeMethod):
            raise _not_of_core(choice)
        spec = choice.method.spec(
            table.dtype, table.dim, choice.hyper, choice.step, kernels.rounding_seed(table)
        )
        _native.update_rows(
            spec, _shared(keys, "keys"), _shared(rows, "rows"), _shared(gradients, "gradients")
        )

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
        from sparring import _native

        view = _native.TableView(table.dtype, kernels.initializer_spec(table))
        if storage is not None:
            view.attach(storage.__sparring_storage__(), storage.table.state_width)
        bags = _shared(offsets, "offsets")
        scales = None if weights is None else _shared(weights, "weights")
        collection = _native.Collection([(view, mode)])
        return collection.pool(_shared(ids, "ids"), bags, (0,), len(bags) - 1, scales)

    def update_storage(
        self,
        storage: Storage,
        choice: MethodChoice,
        keys: DeviceArray,
        gradients: DeviceArray,
        initial_state: DeviceArray | None,
        *,
        admit: Callable[[npt.NDArray[np.int64]], npt.NDArray[np.bool_]] | None = None,
        keeps_evicted: bool = False,
    ) -> StorageChange:
        from sparring.updates.builtin import NativeMethod

        if not isinstance(choice.method, NativeMethod):
            raise _not_of_core(choice)
        known, sums = _shared(keys, "keys"), _shared(gradients, "gradients")
        found = storage.find(known).found
        if admit is not None and not found.all():
            is_kept = found.copy()
            is_kept[~found] = admit(known[~found])
            known, sums, found = known[is_kept], sums[is_kept], found[is_kept]
        if keeps_evicted and storage.capabilities.evicts:
            raise UnsupportedError(
                f"table {storage.table.name!r}: Storage.update of the CPU does not hand over what "
                "leaves; watch the storage, or ask for keeps_evicted=False"
            )
        before = storage.size
        storage.update(known, sums, choice)
        num_new = len(found) - int(np.count_nonzero(found))
        return StorageChange(num_new, NumEvicted(before + num_new - storage.size, None))

    def find_storage(
        self, storage: Storage, keys: DeviceArray, width: int | None = None
    ) -> StoredRows:
        columns = Columns(0, storage.table.width if width is None else width)
        found = storage.find(_shared(keys, "keys"), columns)
        return StoredRows(found.rows, found.found)

    def upsert_storage(
        self, storage: Storage, keys: DeviceArray, rows: DeviceArray, *, keeps_evicted: bool = False
    ) -> NumEvicted:
        evicted = storage.upsert(_shared(keys, "keys"), _shared(rows, "rows"))
        return NumEvicted(len(evicted), evicted if keeps_evicted else None)


def _not_of_core(choice: MethodChoice) -> UnsupportedError:
    return UnsupportedError(
        f"update method {choice.method.name!r} is not one of core's; kernels run those only"
    )


def _shared(array: DeviceArray, name: str) -> npt.NDArray[Any]:
    """The same memory as a NumPy array."""
    if isinstance(array, np.ndarray):
        return array
    if not hasattr(array, "__dlpack_device__"):
        raise InvalidArgumentError(
            f"{name} must be an array with __dlpack__, found {type(array).__name__}"
        )
    if int(array.__dlpack_device__()[0]) != _CPU:
        raise InvalidArgumentError(
            f"{name} is not in host memory, and these kernels work on the CPU; ask the plugin "
            "manager for the kernels of its device"
        )
    return np.from_dlpack(array)
