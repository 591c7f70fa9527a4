"""The execution pool from Python: its size, its calls, asyncio, fork and exit."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from sparring import _native
from sparring.errors import ClosedError, DeadlineError, InvalidArgumentError
from sparring.runtime import pool as execution
from sparring_testing.processes.child_processes import run_fork, run_script

WAIT = 60.0  # seconds after which a hanging test fails


@pytest.fixture
def two_threads() -> Iterator[None]:
    execution.configure_pool(2)
    yield
    execution.configure_pool(None)


def loops_over_all(num_threads: int) -> bool:
    """Whether a loop of many long ranges runs on this number of threads."""
    return any(_native.pool_threads_of_loop(64, 1, 0.001) == num_threads for _ in range(20))


# -- size ---------------------------------------------------------------------


def test_configure_sets_the_number_of_threads() -> None:
    for threads in (3, 1, 2):
        execution.configure_pool(threads)
        assert execution.num_threads() == threads
    execution.configure_pool(None)
    assert execution.num_threads() == _native.default_threads()
    assert execution.num_threads() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("variable", "expected"),
    [("1", 1), (" 1,4", 1), ("1024", None), ("0", None), ("-1", None), ("many", None)],
)
def test_omp_num_threads_bounds_the_automatic_size(variable: str, expected: int | None) -> None:
    script = """
from sparring import _native
from sparring.runtime import pool
print(pool.num_threads(), end=" ")
pool.configure_pool(3)
print(pool.num_threads(), end=" ")
for sharing in (1, 2):
    pool.configure_pool(None, sharing=sharing)
    print(pool.num_threads(), end=" ")
"""
    environment = {**os.environ, "OMP_NUM_THREADS": variable}
    found = subprocess.check_output([sys.executable, "-c", script], text=True, env=environment)
    cores = _native.usable_cores()
    own, half = (cores, max(1, cores // 2)) if expected is None else (expected, expected)
    assert found.split() == [str(each) for each in (own, 3, own, half)]


@pytest.mark.parametrize("threads", [-1, 1025, 2**40, 1.5, "4", True])
def test_configure_rejects_invalid_numbers_of_threads(threads: object) -> None:
    before = execution.num_threads()
    with pytest.raises(InvalidArgumentError, match=r"must be 1 to 1024"):
        execution.configure_pool(threads)  # type: ignore[arg-type]
    assert execution.num_threads() == before


def test_configure_rejects_while_a_call_runs(two_threads: None) -> None:
    gate = threading.Event()
    task = execution.submit(gate.wait, WAIT)
    try:
        with pytest.raises(InvalidArgumentError, match="has work"):
            execution.configure_pool(3)
        assert execution.num_threads() == 2
    finally:
        gate.set()
    assert task.result(WAIT)
    execution.configure_pool(3)


def test_a_loop_uses_the_caller_and_the_workers(two_threads: None) -> None:
    assert loops_over_all(2)
    assert _native.pool_threads_of_loop(64, 64, 0.0) == 1


def test_idle_threads_sleep(two_threads: None) -> None:
    assert loops_over_all(2)
    for _ in range(10):  # on a busy machine it may take a while until they are idle
        time.sleep(0.05)
        before = time.process_time()
        time.sleep(0.3)
        if time.process_time() - before < 0.03:
            return
    pytest.fail("threads without work keep a processor busy")


# -- calls --------------------------------------------------------------------


def test_submit_runs_on_a_thread_of_the_pool() -> None:
    def where(prefix: str, *, suffix: str) -> tuple[bool, int, str]:
        return _native.is_pool_thread(), threading.get_ident(), prefix + suffix

    is_pool_thread, ident, text = execution.submit(where, "a", suffix="b").result(WAIT)
    assert is_pool_thread
    assert ident != threading.get_ident()
    assert text == "ab"
    assert not _native.is_pool_thread()


def test_exception_is_raised_by_result_with_its_traceback() -> None:
    def fail() -> None:
        raise KeyError("missing")

    task = execution.submit(fail)
    with pytest.raises(KeyError, match="missing") as caught:
        task.result(WAIT)
    assert caught.traceback[-1].name == "fail"
    assert task.done()


def test_timeout_error_of_the_call_is_not_a_deadline_error() -> None:
    def fail() -> None:
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine") as caught:
        execution.submit(fail).result(WAIT)
    assert not isinstance(caught.value, DeadlineError)


def test_result_raises_deadline_error_and_can_be_called_again() -> None:
    gate = threading.Event()
    task = execution.submit(gate.wait, WAIT)
    with pytest.raises(DeadlineError, match=r"Event\.wait has not ended within 0\.01 s"):
        task.result(0.01)
    assert not task.done()
    gate.set()
    assert task.result(WAIT)


def test_calls_run_concurrently_with_the_caller(two_threads: None) -> None:
    mine, theirs = threading.Event(), threading.Event()

    def meet() -> bool:
        theirs.set()
        return mine.wait(WAIT)

    task = execution.submit(meet)
    assert theirs.wait(WAIT)
    mine.set()
    assert task.result(WAIT)


def test_calls_may_wait_for_calls_without_running_out_of_threads(two_threads: None) -> None:
    def add_up(depth: int) -> int:
        if depth == 0:
            return 1
        parts = [execution.submit(add_up, depth - 1) for _ in range(2)]
        return sum(part.result() for part in parts)

    assert execution.submit(add_up, 6).result(WAIT) == 64


def test_many_calls_all_end() -> None:
    tasks = [execution.submit(pow, n, 2) for n in range(2000)]
    assert [task.result(WAIT) for task in tasks] == [n * n for n in range(2000)]


def test_cancel_keeps_a_waiting_call_from_starting() -> None:
    execution.configure_pool(1)
    begun, gate = threading.Event(), threading.Event()

    def block() -> bool:
        begun.set()
        return gate.wait(WAIT)

    blocker = execution.submit(block)
    assert begun.wait(WAIT)
    has_run: list[int] = []
    waiting = execution.submit(has_run.append, 1)
    assert waiting.cancel()
    assert waiting.cancelled()
    gate.set()
    assert blocker.result(WAIT)
    with pytest.raises(concurrent.futures.CancelledError):
        waiting.result(WAIT)
    assert execution.submit(len, has_run).result(WAIT) == 0
    assert not blocker.cancel()
    execution.configure_pool(None)


def test_arguments_of_a_call_are_freed_when_it_has_ended() -> None:
    class Big:
        def use(self) -> None: ...

    big = Big()
    freed = weakref.ref(big)
    task = execution.submit(Big.use, big)
    task.result(WAIT)
    del big
    deadline = time.monotonic() + WAIT  # the worker may not have left the call yet
    while freed() is not None and time.monotonic() < deadline:
        gc.collect()
    assert freed() is None
    assert task.done()


# -- asyncio ------------------------------------------------------------------


def test_tasks_can_be_awaited() -> None:
    async def main() -> tuple[list[int], str]:
        squares = await asyncio.gather(*(execution.submit(pow, n, 2) for n in range(5)))
        try:
            await execution.submit(int, "no number")
        except ValueError as error:
            return squares, str(error)
        return squares, ""

    squares, message = asyncio.run(main())
    assert squares == [0, 1, 4, 9, 16]
    assert "no number" in message


def test_awaiting_a_task_leaves_the_loop_free() -> None:
    gate = threading.Event()

    async def main() -> bool:
        task = execution.submit(gate.wait, WAIT)
        asyncio.get_running_loop().call_later(0.01, gate.set)
        return await task

    assert asyncio.run(main())


# -- fork -----------------------------------------------------------------------


def test_forked_child_of_an_idle_pool_loops_and_calls(two_threads: None) -> None:
    assert loops_over_all(2)
    execution.submit(pow, 2, 2).result(WAIT)

    def child() -> None:
        assert loops_over_all(2)
        assert execution.submit(pow, 2, 3).result(WAIT) == 8

    assert run_fork(child) == 0
    assert loops_over_all(2)


def test_forked_child_of_a_busy_pool_computes_on_its_own_thread(two_threads: None) -> None:
    gate = threading.Event()
    theirs = execution.submit(gate.wait, WAIT)

    def child() -> None:
        execution.configure_pool(4)  # nothing to configure
        with pytest.raises(ClosedError):
            theirs.result(1.0)
        assert execution.num_threads() == 1
        assert _native.pool_threads_of_loop(64, 1, 0.0001) == 1
        assert execution.submit(pow, 2, 3).result(WAIT) == 8

    status = run_fork(child)
    gate.set()
    assert status == 0
    assert theirs.result(WAIT)


def test_fork_while_another_thread_has_used_the_pool(two_threads: None) -> None:
    used, gate = threading.Event(), threading.Event()

    def use_and_stay() -> None:
        loops_over_all(2)
        used.set()
        gate.wait(WAIT)

    other = threading.Thread(target=use_and_stay)
    other.start()
    assert used.wait(WAIT)

    def child() -> None:
        _native.pool_threads_of_loop(64, 1, 0.0001)
        assert execution.submit(pow, 2, 3).result(WAIT) == 8

    try:
        assert run_fork(child) == 0
    finally:
        gate.set()
        other.join()
    assert loops_over_all(2)


def test_forked_child_ends_by_itself() -> None:
    done = run_script(
        """
        import os, sys
        from sparring import _native
        from sparring.runtime import pool as execution
        execution.configure_pool(2)
        execution.submit(pow, 2, 2).result()
        pid = os.fork()
        _native.pool_threads_of_loop(64, 1, 0.0001)
        assert execution.submit(pow, 2, 3).result() == 8
        if pid:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


# -- exit -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "time.sleep(60)",
        "while True: pass",
        "while True: time.sleep(0.0001)",
        "while True: _native.pool_threads_of_loop(1, 1, 0.0002)",
    ],
    ids=["sleeping", "computing", "waking", "native"],
)
def test_exit_waits_a_bounded_time_for_calls(body: str) -> None:
    done = run_script(
        f"""
        import threading, time
        from sparring import _native
        from sparring.runtime import pool as execution
        execution.EXIT_SECONDS = 0.1
        begun = threading.Semaphore(0)
        def stay():
            begun.release()
            {body}
        execution.configure_pool(2)
        tasks = [execution.submit(stay) for _ in range(4)]
        begun.acquire()
        begun.acquire()
        """
    )
    assert done.returncode == 0
    assert "the interpreter ends before these calls have ended: stay, stay" in done.stderr


def test_exit_lets_short_calls_end_and_cancels_waiting_ones() -> None:
    done = run_script(
        """
        import threading, time
        from sparring.runtime import pool as execution
        begun = threading.Event()
        def report(text):
            begun.set()
            time.sleep(1.0)
            print(text, flush=True)
        execution.configure_pool(1)
        execution.submit(report, "first")
        begun.wait()
        execution.submit(report, "second")
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "first\n", "")


def test_submit_while_the_interpreter_ends_is_rejected() -> None:
    done = run_script(
        """
        import atexit
        @atexit.register  # before the pool's own, so that it runs after it
        def late():
            from sparring.errors import ClosedError
            try:
                execution.submit(print, "ran")
            except ClosedError as error:
                print(error)
        from sparring.runtime import pool as execution
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "print was submitted while the interpreter is ending" in done.stdout
