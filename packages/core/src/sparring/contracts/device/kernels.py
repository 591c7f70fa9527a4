"""The key operations of one device on arrays.

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
    take: Callable[[DeviceArray, DeviceArray], DeviceArray] = _take
    put: Callable[[DeviceArray, DeviceArray, DeviceArray], None] = _put
    follow: Callable[[Sequence[DeviceArray]], Callable[[], None]] = _follow
    view: Callable[[DeviceArray, str], DeviceArray] = _view
    release_unused: Callable[[], bool] | None = None


class ArrayKernels(ABC):
    """The key operations of one device on arrays.

    All raise `InvalidArgumentError` for wrong shapes, dtypes or devices, `DeviceMemoryError` where
    the device has no memory, and `DeviceError` once the device has failed.
    """

    device: str
    """Where arrays are: ``cpu``, ``cuda:0``."""
    arrays: ArraySource
    """How arrays of the framework are made."""

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


class SupportsStreams(ABC):
    """A device that has streams."""

    device: str

    def streams(self) -> Streams:
        """The streams of the device.

        Raises:
            UnsupportedError: it has none, as a CPU.
        """
        raise UnsupportedError(
            f"the kernels of device {self.device} have no streams; ask a set for a GPU"
        )
