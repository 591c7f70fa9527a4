"""Streams of a device, awaited: where its work meets coroutines and the execution pool.

Core knows no CUDA. A package that drives a device hands over its streams as a capsule of
``sparring/stream_abi.h``, and offers them by `KernelSet.streams`:

    streams = kernels.streams()
    with streams.open() as stream:
        kernels_on(stream).find(…)          # put on the stream, not waited for
        await stream                        # or stream.reached().result(timeout)

A wait ends on a thread of the pool. It fails with `DeviceLostError` where the device has failed, though
a lost GPU never calls back: the pool asks it now and then. And it fails with `DeadlineError` where
the stream does not come there in time, even if the driver hangs.
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
"""How long a stream may take to come where it is awaited, unless the call says otherwise."""


class StreamTask(Task[None]):
    """A wait for the point where a stream was when the wait began."""

    __slots__ = ("begin_ns", "end_ns")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.begin_ns = time.perf_counter_ns()
        """When the wait began, on the clock of ``time.perf_counter_ns``."""
        self.end_ns = 0
        """When it ended; 0 while it has not."""

    def when_done(self, call: Callable[[StreamTask], None]) -> None:
        """Calls ``call(self)`` once it has ended, on a thread of the pool, or here if it has."""
        self._future.add_done_callback(lambda _: call(self))

    def end(self, kind: str | None, message: str | None) -> None:
        """Callback of the pool, called once."""
        self.end_ns = time.perf_counter_ns()
        if self.claim():  # a cancelled task wants no answer
            self.finish(None, None if kind is None else getattr(errors, kind)(message))


class Streams:
    """The streams of one device.

    Args:
        capsule: of ``sparring/stream_abi.h``.

    Raises:
        ValueError: it is of another version.
    """

    def __init__(self, capsule: object) -> None:
        self._native = _native.Streams(capsule)

    @property
    def device(self) -> str:
        """As ``cuda:0``."""
        return self._native.device

    def open(self) -> Stream:
        """A new stream.

        Raises:
            DeviceError: the device refuses.
        """
        return Stream(self._native, self._native.make_stream(), is_owned=True)

    def wrap(self, handle: int) -> Stream:
        """A stream that somebody else made, as the framework's current one.

        Args:
            handle: a ``cudaStream_t`` as a number; 0 is the default stream.
        """
        return Stream(self._native, handle, is_owned=False)

    def pinned(self, num_bytes: int) -> npt.NDArray[np.uint8]:
        """``(num_bytes,)`` of host memory that the device copies without a detour.

        Making and freeing it may wait for the device: keep it.

        Raises:
            DeviceError: there is none left, or the device refuses.
        """
        return self._native.pinned(num_bytes)


class Stream(Closable):
    """Work of a device, one piece after another. Awaitable from asyncio."""

    def __init__(self, native: _native.Streams, handle: int, *, is_owned: bool) -> None:
        self._native = native
        self._is_owned = is_owned
        self.handle = handle
        """The ``cudaStream_t`` as a number."""

    def reached(self, deadline_seconds: float = STREAM_DEADLINE_SECONDS) -> StreamTask:
        """A task that is done when all is done that is on the stream now.

        It fails with `DeviceError` or `DeadlineError`.

        Raises:
            InvalidArgumentError: the deadline is not positive.
        """
        if not deadline_seconds > 0:
            raise InvalidArgumentError(
                f"a stream's deadline_seconds must be positive, found {deadline_seconds}"
            )
        task = StreamTask(f"a stream of {self._native.device}")
        self._native.begin_wait(self.handle, deadline_seconds, task.end)
        return task

    def __await__(self) -> Generator[Any, None, None]:
        return self.reached().__await__()

    def follow(self, other: Stream | int) -> None:
        """Orders later work of this stream after the present work of `other`. The host does not wait.

        Raises:
            DeviceError: the device refuses.
        """
        handle = other.handle if isinstance(other, Stream) else other
        if handle != self.handle:
            self._native.order_after(self.handle, handle)

    def copy(self, to: int, from_: int, num_bytes: int) -> None:
        """Puts a copy between device memory and pinned host memory, addresses, on the stream.

        Raises:
            DeviceError: the device refuses.
        """
        if num_bytes:
            self._native.copy(to, from_, num_bytes, self.handle)

    def close(self) -> None:
        """Frees the stream; what is on it still ends. One that was wrapped stays."""
        if self._is_owned:
            self._is_owned = False
            self._native.free_stream(self.handle)
