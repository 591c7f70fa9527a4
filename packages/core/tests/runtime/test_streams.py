"""Streams awaited from Python, with a device whose streams are late."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sparring import _native
from sparring.errors import ClosedError, DeadlineError, DeviceLostError
from sparring_testing.processes.child_processes import run_fork

from .late_device import LateDevice


def test_a_wait_ends_when_the_work_on_the_stream_is_complete() -> None:
    device = LateDevice()
    streams, done = device.streams(), []
    with streams.open() as stream, device.using(stream.handle):
        for number in range(20):
            device.put(lambda number=number: done.append(number))
        task = stream.reached()
        may_go = threading.Event()
        device.put(lambda: may_go.wait(20.0) and done.append(99))
        task.result(10.0)
        assert done == list(range(20))
        may_go.set()
        assert task.end_ns >= task.begin_ns

        async def wait() -> list[int]:
            await stream
            return done

        assert asyncio.run(wait())[-1] == 99


def test_a_stream_follows_another() -> None:
    device = LateDevice()
    streams, done = device.streams(), []
    with streams.open() as first, streams.open() as second:
        for number in range(10):
            with device.using(first.handle):
                device.put(lambda number=number: done.append(("first", number)))
            second.follow(first)
            with device.using(second.handle):
                device.put(lambda number=number: done.append(("second", number)))
            first.follow(second)
        second.reached().result(10.0)
    assert done == [(name, number) for number in range(10) for name in ("first", "second")]


def test_many_threads_wait_for_many_streams() -> None:
    device = LateDevice()
    streams = device.streams()

    def wait_often(_: int) -> int:
        with streams.open() as stream:
            for _ in range(25):
                count = [0]
                with device.using(stream.handle):
                    device.put(lambda count=count: count.append(1))
                stream.reached().result(20.0)
                assert count[-1] == 1
        return 25

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(wait_often, range(8))) == 200
    assert _native.num_stream_waits() == 0


def test_a_late_wait_raises_a_deadline_error_and_may_still_end() -> None:
    device = LateDevice()
    with device.streams().open() as stream, device.using(stream.handle):
        may_go = threading.Event()
        device.put(lambda: may_go.wait(20.0) and None)
        begin = time.monotonic()
        with pytest.raises(DeadlineError, match=r"late:0: a stream .* 0\.1.* allow more"):
            stream.reached(0.1).result(20.0)
        assert 0.1 <= time.monotonic() - begin < 10.0
        with pytest.raises(DeadlineError, match="a stream of late:0 has not ended within 0"):
            stream.reached().result(0)
        may_go.set()
        stream.reached().result(20.0)


def test_a_device_that_is_lost_during_a_wait_is_named() -> None:
    device = LateDevice()
    with device.streams().open() as stream:
        device.calls_back = False  # like CUDA after a failure
        task = stream.reached()
        assert not task.done()
        device.lost = b"unspecified launch failure"
        with pytest.raises(DeviceLostError, match=r"late:0: .* unspecified launch failure"):
            task.result(20.0)
        with pytest.raises(DeviceLostError, match="unspecified launch failure"):
            stream.reached().result(20.0)
        device.lost = None
    assert _native.num_stream_waits() == 0


def test_a_cancelled_wait_ends_quietly() -> None:
    device = LateDevice()
    with device.streams().open() as stream:
        task = stream.reached()
        task.cancel()
        stream.reached().result(20.0)
        assert task.done()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_waits_started_before_a_fork_do_not_hang_the_child() -> None:
    device = LateDevice()
    with device.streams().open() as stream, device.using(stream.handle):
        may_go = threading.Event()
        device.put(lambda: may_go.wait(60.0) and None)
        task = stream.reached()

        def child() -> None:
            with pytest.raises(ClosedError):
                task.result(10.0)
            assert _native.num_stream_waits() == 0

        assert run_fork(child) == 0
        assert not task.done()
        may_go.set()
        task.result(20.0)
