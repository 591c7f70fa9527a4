"""Threads of core, the order of jobs, and functions that are called at exit."""

from __future__ import annotations

import atexit
import gc
import threading
from collections.abc import Callable
from functools import partial

import pytest

from sparring.runtime.lifecycle import at_exit
from sparring.runtime.threads import SerialExecutor, Threads

WAIT = 60.0  # seconds after which a hanging test fails


class LateThreads(Threads):
    """Threads that cannot start for a while, like when the interpreter is ending."""

    can_start = False

    def start(self) -> None:
        if not self.can_start:
            raise RuntimeError("can't start new thread at interpreter shutdown")
        super().start()


def test_jobs_run_in_their_order() -> None:
    executor, order = SerialExecutor(Threads("test")), list[int]()
    jobs = [executor.submit(partial(order.append, number)) for number in range(100)]
    while not jobs[-1].is_done:
        executor.pause(0.01)
    executor.finish()
    assert order == list(range(100))


def test_an_executor_without_a_thread_rejects_a_job_and_ends() -> None:
    given = LateThreads("test")
    executor, ran = SerialExecutor(given), list[str]()
    with pytest.raises(RuntimeError, match="shutdown"):
        executor.submit(lambda: ran.append("refused"))
    assert executor.is_idle
    executor.finish()
    given.can_start = True
    job = executor.submit(lambda: ran.append("taken"))
    while not job.is_done:
        executor.pause(0.01)
    executor.finish()
    assert ran == ["taken"]


def test_a_call_without_a_thread_does_not_run_later() -> None:
    given, ran = LateThreads("test"), list[str]()
    with pytest.raises(RuntimeError, match="shutdown"):
        given.run(lambda: ran.append("refused"))
    given.can_start = True
    given.submit(lambda: ran.append("taken")).result(WAIT)
    given.close()
    assert ran == ["taken"]


def test_threads_end_when_they_are_deleted() -> None:
    made = Threads("sparring-dropped", 2)
    made.start()
    running = [each for each in threading.enumerate() if each.name.startswith("sparring-dropped")]
    del made
    for thread in running:
        thread.join(WAIT)
    assert len(running) == 2
    assert not any(thread.is_alive() for thread in running)


def test_a_method_is_called_at_exit_unless_its_object_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends, calls = list[Callable[[], None]](), list[str]()
    monkeypatch.setattr(atexit, "register", ends.append)
    monkeypatch.setattr(atexit, "unregister", ends.remove)

    class Part:
        def close(self) -> None:
            calls.append("closed")

    part = Part()
    at_exit(part.close)
    ends[0]()
    assert calls == ["closed"]
    del part
    gc.collect()
    assert ends == []
