"""Tests with ranks that leave or stop responding."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sparring.contracts import Collective, WorkContext
from sparring.errors import ClosedError, PeerFailure
from sparring_testing.processes.deadlines import check_with_deadlines

__all__ = ["FailureTests"]


# Deadlines of tests in which ranks are notified long before.
_UNREACHED_DEADLINES = (8.0, 60.0)


def _poll_until_failure(collective: Collective) -> None:
    work = collective.receive(np.empty(3), 0)
    while not work.done():
        time.sleep(0.002)
    work.wait()


# Operations in which rank 2 waits for rank 0.
_WAITS: dict[str, Callable[[Collective], Any]] = {
    "wait": lambda collective: collective.receive(np.empty(3), 0).wait(),
    "done": _poll_until_failure,
    "all_to_all": lambda collective: collective.all_to_all([np.zeros(2)] * 3),
    "all_gather": lambda collective: collective.all_gather(np.zeros(2)),
    "all_reduce": lambda collective: collective.all_reduce(np.zeros(1 << 14)),
    "barrier": lambda collective: collective.barrier(),
}


class FailureTests:
    """Every wait ends, and its error reports the rank that failed."""

    @pytest.mark.parametrize("how", ["wait", "done"])
    def test_silence_ends_at_the_deadline_naming_rank_operation_table_and_step(
        self, run_ranks: Any, how: str
    ) -> None:
        def check(deadline: float) -> None:
            failed = run_ranks(2, wait_for_silence, how, deadline_seconds=deadline)[0]
            assert failed["names"] == [1, "pull", "user", 7]
            assert failed["words"] == [True] * 4
            assert deadline * 0.9 <= failed["seconds"] <= deadline * 1.1 + 0.05

        check_with_deadlines(check)

    def test_a_failure_is_raised_again(self, run_ranks: Any) -> None:
        def check(deadline: float) -> None:
            assert run_ranks(2, fail_twice, deadline_seconds=deadline)[0] == [1, 1, True]

        check_with_deadlines(check)

    def test_an_operation_without_a_rank_ends_at_the_deadline(self, run_ranks: Any) -> None:
        def check(deadline: float) -> None:
            results = run_ranks(3, miss_an_operation, deadline_seconds=deadline)
            for rank in (0, 1):
                assert results[rank]["names"] == [2, "barrier", None, 3]
                assert results[rank]["seconds"] <= deadline * 1.1 + 0.05

        check_with_deadlines(check)

    def test_ranks_that_wait_in_turn_name_the_last_of_the_chain(self, run_ranks: Any) -> None:
        def check(deadline: float) -> None:
            results = run_ranks(3, wait_in_turn, deadline_seconds=deadline)
            for rank in (0, 1):
                assert results[rank]["names"] == [2, "exchange", None, None], results[rank]
                assert results[rank]["seconds"] <= deadline * 1.1 + 0.05

        check_with_deadlines(check)

    def test_a_rank_that_leaves_is_named_before_the_deadline(self, run_ranks: Any) -> None:
        def check(deadline: float) -> None:
            results = run_ranks(3, miss_a_rank_that_left, deadline_seconds=deadline)
            for rank in (0, 1):
                assert results[rank]["names"] == [2, "push", "item", 1]
                assert results[rank]["seconds"] <= deadline / 2

        check_with_deadlines(check, _UNREACHED_DEADLINES)

    @pytest.mark.parametrize("operation", sorted(_WAITS))
    def test_a_rank_that_gives_up_reports_the_failed_rank_to_its_waiters(
        self, run_ranks: Any, operation: str
    ) -> None:
        def check(deadline: float) -> None:
            body = wait_for_a_rank_that_gives_up
            results = run_ranks(3, body, operation, deadline_seconds=deadline)
            for rank in (0, 2):
                assert results[rank]["names"] == [1, operation, "item", 1], results[rank]
                assert results[rank]["seconds"] <= deadline / 2

        check_with_deadlines(check, _UNREACHED_DEADLINES)

    def test_a_rank_that_gives_up_by_itself_is_named_before_the_deadline(
        self, run_ranks: Any
    ) -> None:
        def check(deadline: float) -> None:
            results = run_ranks(3, wait_for_a_rank_that_fails, deadline_seconds=deadline)
            for rank in (0, 2):
                assert results[rank]["names"] == [1, "push", "item", 1], results[rank]
                assert results[rank]["seconds"] <= deadline * 0.6

        check_with_deadlines(check)

    def test_messages_sent_before_leaving_arrive(self, run_ranks: Any) -> None:
        assert run_ranks(2, send_and_leave)[0] == 6

    def test_a_closed_collective_rejects_every_call(self, run_ranks: Any) -> None:
        assert run_ranks(2, use_after_close) == [5, 5]


def _catch_failure(call: Any) -> dict[str, Any]:
    start = time.monotonic()
    with pytest.raises(PeerFailure) as caught:
        call()
    seconds = time.monotonic() - start
    error, text = caught.value, str(caught.value)
    words = [f"rank {error.rank}", str(error.operation), repr(error.table), f"step {error.step}"]
    return {
        "names": [error.rank, error.operation, error.table, error.step],
        "words": [word in text for word in words],
        "seconds": seconds,
    }


def wait_for_silence(collective: Collective, how: str) -> Any:
    if collective.rank == 1:
        time.sleep(collective.deadline_seconds * 1.4)
        return None
    collective.context = WorkContext("pull", table="user", step=7)
    work = collective.receive(np.empty(3), 1)

    def ask() -> None:
        limit = time.monotonic() + 5 * collective.deadline_seconds
        while how == "done" and not work.done() and time.monotonic() < limit:
            time.sleep(0.002)
        work.wait()

    return _catch_failure(ask)


def fail_twice(collective: Collective) -> Any:
    if collective.rank == 1:
        time.sleep(collective.deadline_seconds * 2)
        return None
    work = collective.receive(np.empty(3), 1)
    first = _catch_failure(work.wait)
    start = time.monotonic()
    second = _catch_failure(work.wait)
    return [
        first["names"][0],
        second["names"][0],
        time.monotonic() - start < collective.deadline_seconds / 3,
    ]


def miss_an_operation(collective: Collective) -> Any:
    collective.context = WorkContext("barrier", step=3)
    collective.barrier()
    if collective.rank == 2:
        time.sleep(collective.deadline_seconds * 1.4)
        return None
    return _catch_failure(collective.barrier)


def wait_in_turn(collective: Collective) -> Any:
    collective.barrier()
    # Rank 0 waits longest, for a rank that is itself waiting.
    time.sleep(collective.deadline_seconds * [0.0, 0.2, 1.4][collective.rank])
    if collective.rank == 2:
        return None
    return _catch_failure(collective.receive(np.empty(3), collective.rank + 1).wait)


def miss_a_rank_that_left(collective: Collective) -> Any:
    collective.barrier()
    if collective.rank == 2:
        collective.close()
        time.sleep(0.5)
        return None
    collective.context = WorkContext("push", table="item", step=1)
    # The peer may have left so long ago that the receive cannot even start.
    return _catch_failure(lambda: collective.receive(np.empty(3), 2).wait())


def wait_for_a_rank_that_gives_up(collective: Collective, operation: str) -> Any:
    collective.barrier()
    collective.context = WorkContext(operation, table="item", step=1)
    if collective.rank == 2:
        return _catch_failure(lambda: _WAITS[operation](collective))
    if collective.rank == 1:
        time.sleep(0.2)
        collective.close()
        return None
    failed = _catch_failure(lambda: collective.receive(np.empty(3), 1, 1).wait())
    collective.close()
    return failed


def wait_for_a_rank_that_fails(collective: Collective) -> Any:
    collective.barrier()
    if collective.rank == 1:
        collective.give_up(1)
        time.sleep(collective.deadline_seconds * 0.8)
        return None
    collective.context = WorkContext("push", table="item", step=1)
    return _catch_failure(collective.barrier)


def send_and_leave(collective: Collective) -> int:
    if collective.rank == 1:
        collective.send(np.array([6]), 0).wait()
        return 0
    got = np.zeros(1, np.int64)
    receiving = collective.receive(got, 1)
    time.sleep(0.3)
    receiving.wait()
    return int(got[0])


def use_after_close(collective: Collective) -> int:
    collective.barrier()
    collective.close()
    collective.close()
    other = 1 - collective.rank
    calls = [
        lambda: collective.send(np.zeros(1), other),
        lambda: collective.receive(np.zeros(1), other),
        lambda: collective.all_to_all([np.zeros(1)] * 2),
        lambda: collective.all_reduce(np.zeros(1)),
        collective.barrier,
    ]
    for call in calls:
        with pytest.raises(ClosedError):
            call()
    return len(calls)
