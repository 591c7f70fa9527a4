"""The event loop: capacity, failures raised in the next step, draining, exit and fork."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator

import pytest

from sparring.errors import ClosedError, DeadlineError, InvalidArgumentError
from sparring.runtime.events import BackgroundError, EventLoop
from sparring_testing.processes.child_processes import run_script

WAIT = 60.0  # seconds after which a hanging test fails


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    loop = EventLoop(capacity=4, num_threads=2, deadline_seconds=WAIT)
    yield loop
    loop.close()


def fail() -> None:
    raise OSError("disk full")


def threads_of_loops() -> set[threading.Thread]:
    """Running threads; some may belong to loops of other tests that are still ending."""
    return {each for each in threading.enumerate() if each.name.startswith("sparring-events")}


# -- running --------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_coroutine_that_would_end_the_program_fails_without_ending_it(
    kind: type[BaseException],
) -> None:
    async def leave() -> None:
        raise kind

    async def go_on() -> str:
        return "going on"

    loop = EventLoop()
    failed = loop.submit(leave, name="leave")
    with pytest.raises(kind):
        failed.result(WAIT)
    time.sleep(0.1)  # so that a loop that is ending disappears
    assert loop.submit(go_on).result(WAIT) == "going on"
    with pytest.raises(BackgroundError, match="leave"):
        loop.close()


def test_a_loop_that_cannot_start_raises_and_can_be_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> None:
        raise OSError("too many open files")

    loop = EventLoop()
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.events, "new_event_loop", refused)
        patched.setattr(asyncio, "new_event_loop", refused)
        with pytest.raises(OSError, match="too many open files"):
            loop.submit(lambda: None)
    assert loop.num_outstanding == 0
    assert loop.submit(lambda: 7).result(WAIT) == 7
    loop.close()


def test_a_loop_without_references_is_freed() -> None:
    loop = EventLoop()
    loop.submit(lambda: None).result(WAIT)
    loop.drain()
    found = weakref.ref(loop)
    del loop
    gc.collect()
    assert found() is None


def test_coroutines_run_on_one_loop_of_another_thread(loop: EventLoop) -> None:
    async def where() -> tuple[int, int]:
        await asyncio.sleep(0)
        return threading.get_ident(), id(asyncio.get_running_loop())

    first = loop.submit(where()).result(WAIT)
    second = loop.submit(where).result(WAIT)  # the function itself
    assert first == second
    assert first[0] != threading.get_ident()


def test_a_blocking_callable_does_not_delay_coroutines(loop: EventLoop) -> None:
    gate = threading.Event()
    blocked = loop.submit(lambda: gate.wait(WAIT))

    async def quick() -> str:
        return "quick"

    assert loop.submit(quick).result(WAIT) == "quick"
    assert not blocked.done()
    gate.set()
    assert blocked.result(WAIT)


def test_threads_start_with_the_first_work_and_end_with_close() -> None:
    before = threads_of_loops()
    loop = EventLoop(num_threads=2)
    assert threads_of_loops() <= before
    loop.submit(lambda: None).result(WAIT)
    started = threads_of_loops() - before
    assert len(started) == 3
    loop.close()
    deadline = time.monotonic() + WAIT
    while threads_of_loops() & started and time.monotonic() < deadline:
        time.sleep(0.001)
    assert not threads_of_loops() & started


def test_tasks_can_be_awaited_from_another_loop(loop: EventLoop) -> None:
    async def main() -> int:
        result: int = await loop.submit(lambda: 3)
        return result

    assert asyncio.run(main()) == 3


def test_work_that_cannot_run_is_rejected(loop: EventLoop) -> None:
    with pytest.raises(InvalidArgumentError, match="a coroutine or a callable, found int"):
        loop.submit(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="capacity=0"):
        EventLoop(capacity=0)


# -- bounds ---------------------------------------------------------------------


def test_submit_blocks_while_full_and_continues_when_work_ends(loop: EventLoop) -> None:
    gate = threading.Event()
    for _ in range(4):
        loop.submit(lambda: gate.wait(WAIT))
    begun = time.monotonic()
    threading.Timer(0.05, gate.set).start()
    assert loop.submit(lambda: 5).result(WAIT) == 5
    assert time.monotonic() - begun >= 0.04


def test_submit_to_a_full_loop_raises_at_its_deadline(loop: EventLoop) -> None:
    gate = threading.Event()

    async def never_begun() -> None: ...

    for _ in range(4):
        loop.submit(lambda: gate.wait(WAIT))
    with pytest.raises(DeadlineError, match=r"'save' waited 0.01 s for capacity: 4 works"):
        loop.submit(never_begun(), name="save", timeout=0.01)
    assert loop.num_outstanding == 4
    gate.set()


def test_background_work_that_submits_to_a_full_loop_never_waits_for_itself() -> None:
    with EventLoop(capacity=1, deadline_seconds=WAIT) as loop:

        def submit_more() -> str:
            try:
                loop.submit(lambda: None)
            except DeadlineError:
                return "refused"
            return "taken"

        assert loop.submit(submit_more).result(WAIT) == "refused"


# -- failures ---------------------------------------------------------------------


def test_check_raises_the_first_failure_once(loop: EventLoop) -> None:
    async def fail_too() -> None:
        raise ValueError("later")

    loop.submit(fail, name="save snapshot")
    loop.drain()
    loop.submit(fail_too)
    loop.drain()
    with pytest.raises(
        BackgroundError, match=r"'save snapshot' failed: OSError: disk full; 1 more failed"
    ) as caught:
        loop.check()
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.name == "save snapshot"
    assert caught.value.num_failed == 2
    loop.check()


def test_a_failure_does_not_stop_other_work(loop: EventLoop) -> None:
    with pytest.raises(OSError, match="disk full"):
        loop.submit(fail).result(WAIT)
    assert loop.submit(lambda: 1).result(WAIT) == 1
    with pytest.raises(BackgroundError):
        loop.check()


def test_a_callable_that_returns_a_coroutine_is_a_failure(loop: EventLoop) -> None:
    loop.submit(lambda: asyncio.sleep(0), name="careless")
    loop.drain()
    with pytest.raises(BackgroundError, match="submit the coroutine"):
        loop.check()


def test_cancelled_work_does_not_run_and_is_not_a_failure(loop: EventLoop) -> None:
    gate = threading.Event()
    for _ in range(2):
        loop.submit(lambda: gate.wait(WAIT))
    waiting = loop.submit(fail)
    assert waiting.cancel()
    gate.set()
    loop.drain()
    loop.check()
    assert waiting.cancelled()


# -- drain and close ----------------------------------------------------------------


def test_drain_waits_for_all_and_names_late_work(loop: EventLoop) -> None:
    gate = threading.Event()
    task = loop.submit(lambda: gate.wait(WAIT), name="slow save")
    with pytest.raises(DeadlineError, match="slow save"):
        loop.drain(0.01)
    gate.set()
    loop.drain()
    assert task.done()
    assert loop.num_outstanding == 0


def test_close_drains_rejects_new_work_and_may_be_repeated() -> None:
    ended: list[int] = []

    async def slowly() -> None:
        await asyncio.sleep(0.02)
        ended.append(1)

    loop = EventLoop()
    loop.submit(slowly())
    loop.submit(lambda: ended.append(2))
    loop.close()
    loop.close()
    assert sorted(ended) == [1, 2]
    with pytest.raises(ClosedError, match="closed event loop"):
        loop.submit(lambda: None)


def test_close_raises_a_failure_that_was_not_checked() -> None:
    loop = EventLoop()
    loop.submit(fail, name="last save")
    with pytest.raises(BackgroundError, match="last save"):
        loop.close()
    loop.close()
    with pytest.raises(BackgroundError, match="in block"), EventLoop() as other:
        other.submit(fail, name="in block")


def test_close_waits_longer_for_work_with_closing_seconds() -> None:
    gate = threading.Event()
    with EventLoop() as loop:
        loop.submit(lambda: gate.wait(WAIT), closing_seconds=WAIT)
        threading.Timer(0.3, gate.set).start()
        loop.close(0.05)
        assert gate.is_set()


@pytest.mark.parametrize("error", [DeadlineError("too late; wait longer"), ValueError("odd")])
def test_errors_of_sparring_are_logged_without_a_traceback(
    error: Exception, loop: EventLoop, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise error

    loop.submit(fails, name="last save")
    loop.drain()
    (record,) = caplog.records
    assert "'last save' failed" in record.getMessage()
    assert str(error) in record.getMessage()
    assert bool(record.exc_info) == isinstance(error, ValueError)
    with pytest.raises(BackgroundError):
        loop.check()


def test_close_gives_up_at_its_deadline_and_cancels_coroutines() -> None:
    gate = threading.Event()
    has_begun = threading.Event()
    was_cancelled = threading.Event()

    async def endless() -> None:
        has_begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    loop = EventLoop(num_threads=1)
    loop.submit(endless(), name="endless")
    is_stuck = threading.Event()
    stuck = loop.submit(lambda: is_stuck.set() or gate.wait(WAIT), name="stuck")
    waiting = loop.submit(lambda: None, name="waiting")
    assert has_begun.wait(WAIT)
    assert is_stuck.wait(WAIT)
    with pytest.raises(DeadlineError, match="endless, stuck, waiting"):
        loop.close(0.05)
    assert was_cancelled.is_set()
    assert waiting.cancelled()
    assert not stuck.done()
    gate.set()
    assert stuck.result(WAIT)


def test_background_work_may_not_wait_for_itself(loop: EventLoop) -> None:
    with pytest.raises(InvalidArgumentError, match="would wait for itself"):
        loop.submit(loop.drain).result(WAIT)
    with pytest.raises(BackgroundError):
        loop.check()


def test_submitting_from_many_threads_loses_nothing(loop: EventLoop) -> None:
    counted: list[int] = []

    async def count(n: int) -> None:
        counted.append(n)

    def submit_some(first: int) -> None:
        for n in range(first, first + 100):
            loop.submit(count(n) if n % 2 else functools.partial(counted.append, n))

    threads = [threading.Thread(target=submit_some, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loop.drain()
    assert sorted(counted) == list(range(400))


# -- exit and fork ----------------------------------------------------------------------


def test_exit_drains_a_loop_that_was_not_closed() -> None:
    done = run_script(
        """
        import asyncio, os, time
        from sparring.runtime import pool as execution
        from sparring.runtime.events import EventLoop
        loop = EventLoop()
        async def save():
            await asyncio.sleep(0.1)
            os.write(1, b"%d\\n" % await execution.submit(pow, 2, 3))
        loop.submit(save())
        loop.submit(lambda: (time.sleep(0.1), os.write(1, b"called\\n")))
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == ["8", "called"]


def test_exit_waits_a_bounded_time_and_logs_late_work() -> None:
    done = run_script(
        """
        import time
        from sparring.runtime import events
        events.EXIT_SECONDS = 0.1
        loop = events.EventLoop()
        loop.submit(lambda: time.sleep(60), name="endless save")
        """
    )
    assert done.returncode == 0
    assert "endless save" in done.stderr


def test_exit_logs_a_failure_that_was_not_checked() -> None:
    done = run_script(
        """
        from sparring.runtime.events import EventLoop
        def fail():
            raise OSError("disk full")
        EventLoop().submit(fail, name="last save")
        """
    )
    assert "last save" in done.stderr
    assert "disk full" in done.stderr


def test_a_forked_child_cannot_use_the_loop_but_can_create_another(loop: EventLoop) -> None:
    gate = threading.Event()
    theirs = loop.submit(lambda: gate.wait(WAIT), name="save")
    refused: list[Callable[[], object]] = [
        lambda: theirs.result(1.0),
        lambda: theirs.wait(1.0),
        lambda: loop.submit(lambda: 7),
        loop.drain,
        loop.check,
    ]

    def child() -> bool:
        for call in refused:
            with pytest.raises(ClosedError, match=r"in process \d+ before a fork, and is used in"):
                call()
        loop.close()
        with EventLoop() as other:
            return bool(other.submit(lambda: 7).result(WAIT) == 7)

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if child() else 2
        finally:
            os._exit(status)
    gate.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert theirs.result(WAIT)


def test_a_forked_child_ends_and_drains_only_its_own_loops() -> None:
    done = run_script(
        """
        import os, sys, threading
        from sparring.runtime.events import EventLoop
        gate, loop = threading.Event(), EventLoop()
        loop.submit(lambda: (gate.wait(), os.write(1, b"the parent's\\n")))
        pid = os.fork()
        if not pid:
            EventLoop().submit(lambda: os.write(1, b"the child's\\n"))
            sys.exit(3)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        gate.set()
        sys.exit(status)
        """
    )
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout == "the child's\nthe parent's\n"
