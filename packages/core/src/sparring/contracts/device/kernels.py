"""Contract of a kernel set: the key operations of one device on arrays.

`sparring.kernels.functions` implements the operations for NumPy arrays on the CPU, and defines their
results. Every other kernel set returns bit-identical results, except that more than 1,024 rows of one
segment may be added in another order.

Arrays are arrays of the caller's framework: C-contiguous, on the device of the set, with DLPack
support. A set creates its results with the caller's `ArraySource`, and runs on its stream. An operation
returns when its work has been submitted to the stream; it waits for the device only if its description
says so. Contents are not checked: an index out of range accesses invalid memory.

Shapes are those of `sparring.kernels.functions`: ``n`` ids, ``u`` keys, ``b`` bags; ids, keys, inverse,
segments and offsets are int64, rows and weights float32 or float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from sparring.errors import UnsupportedError

if TYPE_CHECKING:
    from sparring.contracts.storage.updates import MethodChoice
    from sparring.contracts.tables.table import TableConfig
    from sparring.runtime.streams import Streams

__all__ = [
    "ArrayKernels",
    "ArraySource",
    "Dedup",
    "DeviceArray",
    "Indices",
    "Pooling",
    "Rounding",
    "Route",
    "SupportsStreams",
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
            in their original order.
        offsets: ``(world_size + 1,)`` int64, from 0 to u.
    """

    order: Indices
    offsets: Indices


@dataclass(frozen=True, slots=True)
class Rounding:
    """Source of the bits for stochastic rounding to 16 bits: see ``native/kernels/halves.h``.

    Args:
        keys: ``(n,)`` int64, the key of each row.
        seed: seed of the table, from `rounding_seed`.
        step: step number, so that each step uses other bits.
    """

    keys: Indices
    seed: int
    step: int


def _take(array: DeviceArray, positions: DeviceArray) -> DeviceArray:
    return np.take(array, positions, axis=0)


def _follow(_arrays: Sequence[DeviceArray]) -> Callable[[], None]:
    return lambda: None


def _view(array: DeviceArray, dtype: str) -> DeviceArray:
    return array.view(dtype)


def _put(array: DeviceArray, positions: DeviceArray, values: DeviceArray) -> None:
    array[positions] = values


@dataclass(frozen=True, slots=True)
class ArraySource:
    """Array functions of the caller's framework, for a kernel set.

    Functions that create an array raise `DeviceMemoryError`, with the requested and the free bytes, if
    the framework cannot allocate it.

    Args:
        empty: ``empty(shape, dtype)`` returns an uninitialized C-contiguous array on the device; dtype
            is a name such as ``int64``, ``float32`` or ``bool``. The framework allocates the memory,
            so it counts toward the framework's limits. It may be used on `stream` immediately.
        stream: returns the current stream as an address (``cudaStream_t``); 0 is the default stream,
            and the only value on a CPU.
        index: index of the device among the devices of its type.
        using: ``using(stream)`` returns a context manager that makes this the current stream of the
            calling thread. `stream` then returns it, and memory of `empty` is first used on it.
        open_stream: ``open_stream()`` returns a stream that the framework never destroys, because the
            framework reuses memory per stream. With None, the set creates its streams itself.
        here: ``here()`` returns a context manager that makes this the framework's current device; some
            frameworks only export arrays of the current device.
        to_host: converts an array to a NumPy array in host memory; may wait for the stream.
        from_host: copies a NumPy array to the device.
        concatenate: concatenates arrays along the first dimension.
        take: ``take(array, positions)`` returns the rows of an array at the positions, ``(m,)`` int64
            on the device.
        put: ``put(array, positions, values)`` replaces the rows of an array at distinct positions,
            ``(m,)`` int64 on the device.
        follow: ``follow(arrays)`` records that the current stream produces these arrays, and returns a
            function. The function must be called before the arrays are used; it makes the stream that
            is current then wait for them.
        view: ``view(array, dtype)`` returns the same memory as elements of another dtype; the size of
            the last dimension changes accordingly.
        release_unused: ``release_unused()`` returns memory that the framework caches to the device, and
            returns whether there was any. A set calls it, from any thread, when the device has no
            memory left, and then retries once. None if the framework does not cache memory.
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
    take: Callable[[DeviceArray, DeviceArray], DeviceArray] = _take
    put: Callable[[DeviceArray, DeviceArray, DeviceArray], None] = _put
    follow: Callable[[Sequence[DeviceArray]], Callable[[], None]] = _follow
    view: Callable[[DeviceArray, str], DeviceArray] = _view
    release_unused: Callable[[], bool] | None = None


class ArrayKernels(ABC):
    """The key operations of one device on arrays.

    All methods raise `InvalidArgumentError` for wrong shapes, dtypes or devices, `DeviceMemoryError` if
    the device has no memory left, and `DeviceError` after the device has failed.
    """

    device: str
    """Device of the arrays, such as ``cpu`` or ``cuda:0``."""
    arrays: ArraySource
    """Array functions of the caller's framework."""

    @abstractmethod
    def dedup(self, ids: DeviceArray) -> Dedup:
        """Implements `sparring.kernels.functions.dedup`.

        Waits for the device to read the number of keys.
        """

    @abstractmethod
    def partition(self, keys: DeviceArray) -> DeviceArray:
        """Implements `sparring.kernels.functions.partition`."""

    @abstractmethod
    def route(self, keys: DeviceArray, owners: DeviceArray, world_size: int) -> Route:
        """Implements `sparring.kernels.functions.route`; `owners` is ``(4096,)`` int32 on the device."""

    @abstractmethod
    def gather(
        self, rows: DeviceArray, inverse: DeviceArray, out: DeviceArray | None = None
    ) -> DeviceArray:
        """Implements `sparring.kernels.functions.gather`, for rows of any table dtype."""

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
        """Implements `sparring.kernels.functions.pool`."""

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
        """Implements `sparring.kernels.functions.pool_backward`."""

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
        """Implements `sparring.kernels.functions.pool_weight_gradient`."""

    @abstractmethod
    def segment_sum(
        self, values: DeviceArray, segments: DeviceArray, num_segments: int
    ) -> DeviceArray:
        """Implements `sparring.kernels.functions.segment_sum`."""

    @abstractmethod
    def initialize(
        self,
        rows: DeviceArray,
        keys: DeviceArray,
        found: DeviceArray,
        table: TableConfig,
        state: DeviceArray | None = None,
    ) -> None:
        """Implements `sparring.kernels.functions.initialize`, for the table's initializer."""

    @abstractmethod
    def decode(self, rows: DeviceArray) -> DeviceArray:
        """Implements `sparring.kernels.functions.decode`."""

    @abstractmethod
    def encode(
        self, values: DeviceArray, out: DeviceArray, rounding: Rounding | None = None
    ) -> None:
        """Implements `sparring.kernels.functions.encode`."""

    @abstractmethod
    def is_finite(self, values: DeviceArray) -> bool:
        """Implements `sparring.kernels.functions.is_finite`. Waits for the device."""

    @abstractmethod
    def finite_rows(self, values: DeviceArray) -> DeviceArray:
        """Implements `sparring.kernels.functions.finite_rows`."""

    @abstractmethod
    def update(
        self,
        table: TableConfig,
        choice: MethodChoice,
        keys: DeviceArray,
        rows: DeviceArray,
        gradients: DeviceArray,
    ) -> None:
        """Updates rows with one of the update methods of core (`sparring.updates`).

        Args:
            table: the table, of which dim, dtype, seed and name are used; its rows must have the state
                width of the method.
            choice: the method, its hyper-parameters and the step number.
            keys: ``(u,)``, unique; they determine the rounding of 16-bit rows.
            rows: ``(u, row_bytes / itemsize)`` of the table's dtype; changed in place.
            gradients: ``(u, dim)`` of the computing dtype; may be overwritten.

        Raises:
            UnsupportedError: the method is not part of core.
        """


class SupportsStreams(ABC):
    """A device with streams."""

    device: str

    def streams(self) -> Streams:
        """Returns the streams of the device.

        Raises:
            UnsupportedError: the device has no streams, for example a CPU.
        """
        raise UnsupportedError(
            f"streams: the kernels of device {self.device} have no streams; open the kernels of a GPU"
        )
