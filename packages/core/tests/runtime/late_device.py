"""A device in Python whose streams do their work late, each on a separate thread.

Submitted work has not happened when the call returns, and arrays contain garbage until then. A program
that does not order two streams reads the garbage. The streams use ``stream_abi.h``, like the streams of
any other device.
"""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import ArraySource, Dedup, Route
from sparring.kernels.cpu import CpuKernels
from sparring.runtime.streams import Streams

__all__ = ["LateArray", "LateDevice", "LateKernels"]

_LONGEST_SECONDS = 0.003

_DEVICE_LOST = 11
"""SPARRING_DEVICE_LOST of ``storage_abi.h``."""


class _Error(ctypes.Structure):
    _fields_ = (
        ("message", ctypes.c_char_p),
        ("release", ctypes.c_void_p),
        ("owner", ctypes.c_void_p),
    )


class _Call(ctypes.Structure):
    _fields_ = (
        ("struct_bytes", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("event", ctypes.c_uint64),
        ("function", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("argument", ctypes.c_void_p),
        ("is_done", ctypes.c_int32),
        ("to", ctypes.c_uint64),
        ("from_", ctypes.c_uint64),
        ("num_bytes", ctypes.c_uint64),
        ("error", _Error),
    )


_Function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.POINTER(_Call))
_FUNCTIONS = (
    "make_stream",
    "free_stream",
    "make_event",
    "free_event",
    "record_event",
    "order_after",
    "query_event",
    "call_on_host",
    "allocate_pinned",
    "free_pinned",
    "copy",
)


class _Table(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("struct_bytes", ctypes.c_uint64),
        ("device", ctypes.c_char_p),
        ("self", ctypes.c_void_p),
        *((name, _Function) for name in _FUNCTIONS),
    )


class _LateStream:
    """Its thread ends when it has no work, because the pool of calls is idle at a fork only if no thread
    that has submitted calls is alive."""

    def __init__(self, seed: int, longest_seconds: float = _LONGEST_SECONDS) -> None:
        self._random = random.Random(seed)
        self._longest_seconds = longest_seconds
        self._lock = threading.Lock()
        self._jobs: deque[Callable[[], None]] = deque()
        self._is_working = False

    def put(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.append(job)
            if not self._is_working:
                self._is_working = True
                threading.Thread(target=self._work, daemon=True).start()

    def drain(self) -> None:
        reached = threading.Event()
        self.put(reached.set)
        assert reached.wait(60.0)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._is_working = False
                    return
                job = self._jobs.popleft()
            time.sleep(self._random.random() * self._longest_seconds)
            job()


class LateDevice:
    """The device of one rank. It lives as long as the process."""

    def __init__(self, seed: int = 0) -> None:
        self._numbers = itertools.count(1)
        self._seed = seed
        # The stream of the caller is fast, so it is the first to read data that is not written yet.
        self._streams: dict[int, _LateStream] = {0: _LateStream(seed, 0.0)}
        self._events: dict[int, threading.Event] = {}
        self._pinned: dict[int, Any] = {}
        self._local = threading.local()
        self.lost: bytes | None = None
        """The status of every function after the device was lost."""
        self.calls_back = True
        """Whether host functions are called."""
        self._table = _Table(1, 0, ctypes.sizeof(_Table), b"late:0", None)
        for name in _FUNCTIONS:
            setattr(self._table, name, _Function(self._checked(getattr(self, f"_{name}"))))
        _devices.append(self)

    def streams(self) -> Streams:
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return Streams(make(ctypes.addressof(self._table), b"sparring.streams", None))

    @property
    def current(self) -> int:
        return getattr(self._local, "stream", 0)

    @contextmanager
    def using(self, stream: int) -> Iterator[None]:
        before, self._local.stream = self.current, stream
        try:
            yield
        finally:
            self._local.stream = before

    def put(self, job: Callable[[], None]) -> None:
        """Runs a function late, on the current stream."""
        self._streams[self.current].put(job)

    def drain(self) -> None:
        self._streams[self.current].drain()

    def empty(self, shape: tuple[int, ...], dtype: str) -> LateArray:
        array = np.empty(shape, dtype).view(LateArray)
        array.view(np.ndarray).view(np.uint8)[...] = 0xD7
        array.late_device = self
        array.known_on = {self.current}
        return array

    def given(self, array: Any) -> LateArray:
        """A host array, which is complete immediately."""
        made = np.array(array).view(LateArray)
        made.late_device = self
        made.known_on = {self.current}
        return made

    def follow(self, arrays: Any) -> Callable[[], None]:
        """`ArraySource.follow`: the allocator learns of another stream that uses the arrays."""
        reached = threading.Event()
        self.put(reached.set)

        def take() -> None:
            self.put(lambda: _wait(reached))
            for array in arrays:
                array.known_on.add(self.current)

        return take

    def _checked(self, function: Callable[[_Call], None]) -> Callable[[Any, Any], int]:
        def call(_self: Any, arguments: Any) -> int:
            if self.lost is not None:
                arguments.contents.error.message = self.lost
                return _DEVICE_LOST
            function(arguments.contents)
            return 0

        return call

    def _make_stream(self, call: _Call) -> None:
        call.stream = next(self._numbers)
        self._streams[call.stream] = _LateStream(self._seed + call.stream)

    def _free_stream(self, call: _Call) -> None:
        return  # its present work still completes

    def _make_event(self, call: _Call) -> None:
        call.event = next(self._numbers)
        self._events[call.event] = threading.Event()

    def _free_event(self, call: _Call) -> None:
        self._events.pop(call.event)

    def _record_event(self, call: _Call) -> None:
        self._streams[call.stream].put(self._events[call.event].set)

    def _order_after(self, call: _Call) -> None:
        event = self._events[call.event]
        self._streams[call.stream].put(lambda: _wait(event))

    def _query_event(self, call: _Call) -> None:
        call.is_done = int(self._events[call.event].is_set())

    def _call_on_host(self, call: _Call) -> None:
        address = ctypes.cast(call.function, ctypes.c_void_p).value
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address or 0)
        argument = call.argument
        if self.calls_back:
            self._streams[call.stream].put(lambda: function(argument))

    def _allocate_pinned(self, call: _Call) -> None:
        memory = np.full(max(1, call.num_bytes), 0xD7, np.uint8)
        call.to = memory.ctypes.data
        self._pinned[call.to] = memory

    def _free_pinned(self, call: _Call) -> None:
        memory = self._pinned.pop(call.to)
        # Like CUDA, it waits until the device no longer uses the memory: copies only have the address.
        for stream in list(self._streams.values()):
            stream.put(partial(len, memory))

    def _copy(self, call: _Call) -> None:
        to, from_, num_bytes = call.to, call.from_, call.num_bytes
        self._streams[call.stream].put(lambda: ctypes.memmove(to, from_, num_bytes) and None)


_devices: list[LateDevice] = []


def _wait(event: threading.Event) -> None:
    assert event.wait(60.0)


class LateArray(np.ndarray[Any, Any]):
    """An array of a `LateDevice`: reads and writes of elements happen on the current stream."""

    late_device: LateDevice
    known_on: set[int]
    """Streams that must complete before the allocator reuses the memory, like torch's allocator: the
    stream of the allocation, and those that `follow` recorded."""

    def __array_finalize__(self, other: Any) -> None:
        if other is not None and hasattr(other, "late_device"):
            self.late_device, self.known_on = other.late_device, other.known_on

    def __getitem__(self, places: Any) -> Any:
        if not isinstance(places, np.ndarray):
            return super().__getitem__(places)
        out = self.late_device.empty((len(places), *self.shape[1:]), self.dtype.name)
        plain, source, at = _plain(out), _plain(self), _plain(places)
        self.late_device.put(lambda: plain.__setitem__(..., source[at]))
        return out

    def __setitem__(self, places: Any, values: Any) -> None:
        at = _plain(places) if isinstance(places, np.ndarray) else places
        given = _plain(values) if isinstance(values, np.ndarray) else values
        self.late_device.put(lambda: _plain(self).__setitem__(at, given))


def _plain(array: Any) -> Any:
    return array.view(np.ndarray)


class LateKernels(KernelSet):
    """The kernels of the CPU, run late. Only the methods that the exchange calls."""

    device = "late"

    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._cpu = CpuKernels()
        self.arrays = ArraySource(
            empty=device.empty,
            stream=lambda: device.current,
            using=device.using,
            follow=device.follow,
            to_host=self._to_host,
            from_host=device.given,
            concatenate=self._concatenate,
            take=lambda array, positions: array[positions],
        )

    def streams(self) -> Streams:
        return self._device.streams()

    def _to_host(self, array: Any) -> Any:
        self._device.drain()
        return np.array(_plain(array))

    def _concatenate(self, parts: Any) -> Any:
        plain = [_plain(part) for part in parts]
        shape = (sum(map(len, plain)), *plain[0].shape[1:])
        out = self._device.empty(shape, plain[0].dtype.name)
        self._device.put(lambda: _plain(out).__setitem__(..., np.concatenate(plain)))
        return out

    def dedup(self, ids: Any) -> Dedup:
        self._device.drain()
        found = self._cpu.dedup(_plain(ids))
        return Dedup(self._late(found.keys), self._late(found.inverse))

    def route(self, keys: Any, owners: Any, world_size: int) -> Route:
        order = self._device.empty((len(keys),), "int64")
        offsets = self._device.empty((world_size + 1,), "int64")

        def fill() -> None:
            found = self._cpu.route(_plain(keys), _plain(owners), world_size)
            _plain(order)[...] = found.order
            _plain(offsets)[...] = found.offsets

        self._device.put(fill)
        return Route(order, offsets)

    def gather(self, rows: Any, inverse: Any, out: Any = None) -> Any:
        assert out is None
        made = self._device.empty((len(inverse), rows.shape[1]), rows.dtype.name)
        self._device.put(
            lambda: _plain(made).__setitem__(..., self._cpu.gather(_plain(rows), _plain(inverse)))
        )
        return made

    def segment_sum(self, values: Any, segments: Any, num_segments: int) -> Any:
        out = self._device.empty((num_segments, values.shape[1]), values.dtype.name)
        self._device.put(
            lambda: _plain(out).__setitem__(
                ..., self._cpu.segment_sum(_plain(values), _plain(segments), num_segments)
            )
        )
        return out

    def _find_into_impl(self, storage: Any, keys: Any, rows: Any, found: Any) -> None:
        self._device.put(
            lambda: self._cpu.find_into(storage, _plain(keys), _plain(rows), _plain(found))
        )

    def _late(self, array: Any) -> Any:
        """A result that is complete only when the stream has reached it."""
        out = self._device.empty(array.shape, array.dtype.name)
        self._device.put(lambda: _plain(out).__setitem__(..., array))
        return out

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the exchange calls no such operation")

    partition = pool = pool_backward = pool_weight_gradient = initialize = decode = encode = _refuse
    is_finite = finite_rows = update = pool_storage = update_storage = _refuse
    _pool_storage_impl = _update_storage_impl = _upsert_storage_impl = _refuse
