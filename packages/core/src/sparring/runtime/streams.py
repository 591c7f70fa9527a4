"""Awaitable streams of a device, for coroutines and the execution pool.

Core does not depend on CUDA. A package that drives a device provides its streams as a capsule of
``sparring/stream_abi.h``, through `KernelSet.streams`:

    streams = kernels.streams()
    with streams.open() as stream:
        kernels_on(stream).find(…)          # submitted to the stream, without waiting
        await stream                        # or stream.reached().result(timeout)

A wait completes on a thread of the pool. It raises `DeviceLostError` if the device failed; the pool
polls the device, because a lost GPU never calls back. It raises `DeadlineError` if the stream does not
complete the work in time, even if the driver hangs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native, errors
from sparring.errors import InvalidArgumentError
from sparring.runtime.lifecycle import Closable
from sparring.runtime.pool import Task

__all__ = ["STREAM_DEADLINE_SECONDS", "Stream", "StreamTask", "Streams"]

STREAM_DEADLINE_SECONDS = 60.0
"""Default deadline of a wait for a stream."""


class StreamTask(Task[None]):
    """A wait for the work that was on a stream when the wait began."""

    __slots__ = ("begin_ns", "end_ns")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.begin_ns = time.perf_counter_ns()
        """Start of the wait, by ``time.perf_counter_ns``."""
        self.end_ns = 0
        """End of the wait; 0 if it has not ended."""

    def when_done(self, call: Callable[[StreamTask], None]) -> None:
        """Calls ``call(self)`` when the wait ends, on a pool thread; immediately if it has ended."""
        self._future.add_done_callback(lambda _: call(self))

    def end(self, kind: str | None, message: str | None) -> None:
        """Ends the wait. The pool calls it once."""
        self.end_ns = time.perf_counter_ns()
        if self.claim():  # False if the task was cancelled
            self.finish(None, None if kind is None else getattr(errors, kind)(message))


class Streams:
    """The streams of one device.

    Args:
        capsule: a capsule of ``sparring/stream_abi.h``.

    Raises:
        ValueError: the version of the capsule is not supported.
    """

    def __init__(self, capsule: object) -> None:
        self._native = _native.Streams(capsule)

    @property
    def device(self) -> str:
        """Name of the device, such as ``cuda:0``."""
        return self._native.device

    def open(self) -> Stream:
        """Creates a stream.

        Raises:
            DeviceError: the device reports an error.
        """
        return Stream(self._native, self._native.make_stream(), is_owned=True)

    def wrap(self, handle: int) -> Stream:
        """Returns an existing stream, such as the current stream of a framework, as a `Stream`.

        Args:
            handle: a ``cudaStream_t`` as a number; 0 is the default stream.
        """
        return Stream(self._native, handle, is_owned=False)

    def pinned(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """Allocates pinned host memory, ``(num_bytes,)`` uint8, which the device copies directly.

        Allocating and freeing may wait for the device, so reuse the array.

        Args:
            num_bytes: size of the array.

        Raises:
            DeviceError: no pinned memory is left, or the device reports an error.
        """
        return self._native.pinned(num_bytes)


class Stream(Closable):
    """A queue of work on a device, executed in order. Awaitable from asyncio."""

    def __init__(self, native: _native.Streams, handle: int, *, is_owned: bool) -> None:
        self._native = native
        self._is_owned = is_owned
        self.handle = handle
        """The ``cudaStream_t`` as a number."""

    def reached(self, deadline_seconds: float = STREAM_DEADLINE_SECONDS) -> StreamTask:
        """Returns a task that ends when the present work of the stream is complete.

        The task raises `DeviceError` or `DeadlineError`.

        Raises:
            InvalidArgumentError: the deadline is not positive.
        """
        if not deadline_seconds > 0:
            raise InvalidArgumentError(
                f"a stream's deadline_seconds must be positive, found {deadline_seconds}; pass seconds"
            )
        task = StreamTask(f"a stream of {self._native.device}")
        self._native.begin_wait(self.handle, deadline_seconds, task.end)
        return task

    def __await__(self) -> Generator[Any, None, None]:
        return self.reached().__await__()

    def follow(self, other: Stream | int) -> None:
        """Orders later work of this stream after the present work of `other`, without a host wait.

        Raises:
            DeviceError: the device reports an error.
        """
        handle = other.handle if isinstance(other, Stream) else other
        if handle != self.handle:
            self._native.order_after(self.handle, handle)

    def copy(self, to: int, from_: int, num_bytes: int) -> None:
        """Submits a copy between device memory and pinned host memory.

        Args:
            to: destination address.
            from_: source address.
            num_bytes: number of bytes.

        Raises:
            DeviceError: the device reports an error.
        """
        if num_bytes:
            self._native.copy(to, from_, num_bytes, self.handle)

    def close(self) -> None:
        """Destroys the stream after its present work. A wrapped stream is not destroyed."""
        if self._is_owned:
            self._is_owned = False
            self._native.free_stream(self.handle)
