"""Streams of a device and the execution pool: on the emulator, and on the GPU that is named."""

from __future__ import annotations

import asyncio
import ctypes
from typing import Any

import numpy as np
import pytest

from sparring import _native, make_plugin_manager
from sparring.contracts import ArraySource, Streams
from sparring.errors import DeviceLostError, InvalidArgumentError, UnsupportedError
from sparring_testing.devices import get_test_device, why_unavailable

ARRAYS = ArraySource(empty=np.empty, stream=lambda: 0)


PLACES = list(dict.fromkeys(["emulated", get_test_device()]))


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    reason = why_unavailable(name)
    if reason is not None:
        pytest.skip(reason)
    return name


@pytest.fixture
def streams(place: str) -> Streams:
    kind, _, index = place.partition(":")
    arrays = ArraySource(empty=np.empty, stream=lambda: 0, index=int(index or 0))
    return make_plugin_manager().kernels(kind).factory(arrays).streams()


def test_a_stream_is_awaited_from_asyncio_and_from_threads(streams: Streams, place: str) -> None:
    assert streams.device.partition(":")[0] == place.partition(":")[0]

    async def wait(stream: Any) -> str:
        await stream
        await asyncio.gather(stream.reached(), stream.reached(5.0))
        return "reached"

    with streams.open() as stream, streams.open() as other:
        assert stream.handle not in (0, other.handle)
        assert asyncio.run(wait(stream)) == "reached"
        stream.follow(other)
        stream.reached().result(5.0)
    streams.wrap(0).reached().result(5.0)
    assert _native.num_stream_waits() == 0


def test_waits_end_on_the_pool(streams: Streams) -> None:
    with streams.open() as stream:
        task = stream.reached()
        found = []
        # Runs on the pool or, if the wait has ended by now, immediately on this thread.
        task._future.add_done_callback(lambda _: found.append(_native.is_pool_thread()))
        task.result(5.0)
        assert task.done()
        assert found


def test_a_failed_device_is_an_error_of_the_wait(emulated: Any) -> None:
    handle = emulated.Device()
    streams = Streams(emulated.streams(handle))
    with streams.open() as stream:
        handle.break_down("fell off the bus")
        with pytest.raises(
            DeviceLostError, match=r"emulated: .* failed: fell off the bus; .* process"
        ):
            stream.reached().result(5.0)
        with pytest.raises(DeviceLostError, match="pinned memory failed: fell off the bus"):
            streams.pinned(8)
        with pytest.raises(DeviceLostError, match="fell off the bus"):
            streams.wrap(0).follow(stream)
    assert _native.num_stream_waits() == 0


def test_a_deadline_must_be_positive(streams: Streams) -> None:
    with pytest.raises(InvalidArgumentError, match="must be positive, found 0"):
        streams.wrap(0).reached(0)


def test_copies_go_through_pinned_memory(streams: Streams) -> None:
    pinned = streams.pinned(64)
    assert pinned.shape == (64,)
    assert pinned.flags.writeable
    pinned[:] = np.arange(64)
    target = streams.pinned(64)
    target[:] = 0
    with streams.open() as stream:
        stream.copy(target.ctypes.data, pinned.ctypes.data, 64)
        stream.copy(target.ctypes.data, pinned.ctypes.data, 0)
        stream.reached().result(5.0)
    np.testing.assert_array_equal(target, np.arange(64))


def test_a_cpu_has_no_streams() -> None:
    kernels = make_plugin_manager().kernels("cpu").factory(ARRAYS)
    with pytest.raises(UnsupportedError, match="device cpu have no streams"):
        kernels.streams()


def test_streams_of_another_version_are_rejected(streams: Streams) -> None:
    size = 256
    memory = (ctypes.c_byte * size)()
    ctypes.c_uint32.from_buffer(memory).value = 9
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = (
        ctypes.py_object,
        (
            ctypes.c_void_p,
            ctypes.c_char_p,
            ctypes.c_void_p,
        ),
    )
    capsule = make(ctypes.addressof(memory), b"sparring.streams", None)
    with pytest.raises(ValueError, match=r"version 9\.0.*version 1\.0"):
        Streams(capsule)
