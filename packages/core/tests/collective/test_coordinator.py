"""Coordinated tasks of ranks: all ranks proceed, or all raise the same error."""

from __future__ import annotations

import time

import pytest

from sparring.collective import coordinator
from sparring.collective.coordinator import Coordinator
from sparring.collective.local import LocalGroup
from sparring.contracts.ranks.collective import Collective
from sparring.errors import (
    CapacityError,
    InvalidArgumentError,
    PeerFailure,
    SnapshotError,
    SparringError,
)
from sparring_testing.processes.rank_threads import run_ranks

WORLD_SIZE, BROKEN = 3, 1


@pytest.fixture(autouse=True)
def quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_HEARTBEAT_SECONDS", 0.05)


def error_on_each_rank(error: Exception, *, starts: bool = False) -> list[SparringError]:
    def body(collective: Collective) -> SparringError:
        made = Coordinator(collective, "a task")
        if starts:
            made.start()
        with pytest.raises((SparringError, KeyError)) as caught:
            made.agree(error if collective.rank == BROKEN else None)
        return caught.value  # type: ignore[return-value]

    return run_ranks(WORLD_SIZE, body)


@pytest.mark.parametrize("starts", [False, True])
def test_an_error_of_one_rank_is_raised_on_all_in_its_class(starts: bool) -> None:
    found = error_on_each_rank(CapacityError("full", table="user"), starts=starts)
    assert [type(each) for each in found] == [CapacityError] * WORLD_SIZE
    assert str(found[BROKEN]) == "full"
    assert str(found[0]) == "a task: rank 1 failed: full"
    assert (found[0].rank, found[0].table) == (BROKEN, "user")


def test_an_error_of_another_library_is_a_snapshot_error_on_other_ranks() -> None:
    found = error_on_each_rank(KeyError("k"))
    assert [type(each) for each in found] == [SnapshotError, KeyError, SnapshotError]


def test_a_failed_peer_stays_the_rank_that_failed() -> None:
    found = error_on_each_rank(PeerFailure("gone", rank=7))
    assert [each.rank for each in found] == [7, 7, 7]


@pytest.mark.parametrize("starts", [False, True])
def test_without_an_error_all_proceed(starts: bool) -> None:
    def body(collective: Collective) -> None:
        made = Coordinator(collective, "a task")
        if starts:
            made.start()
            time.sleep(0.2 * collective.rank)
            made.check()
        made.agree()
        made.agree()

    run_ranks(WORLD_SIZE, body)


def test_a_difference_is_reported_with_name_both_values_and_rank() -> None:
    def body(collective: Collective) -> SparringError:
        mine = {"same": 1, "nested": {"dim": 4 + (collective.rank == 2)}}
        with pytest.raises(InvalidArgumentError) as caught:
            Coordinator(collective, "a task").all_equal(mine, "ranks differ", "fix it")
        return caught.value

    for found in run_ranks(WORLD_SIZE, body):
        assert str(found) == "ranks differ: nested.dim is 4 on rank 0 and 5 on rank 2; fix it"
        assert (found.setting, found.rank) == ("nested.dim", 2)


@pytest.mark.parametrize(
    ("first", "other", "texts"),
    [
        ({"a": None}, {}, ("null", "missing")),
        ({"a": True}, {"a": 1}, ("true", "1")),
        ({"a": {"b": 1}}, {"a": [1]}, ('{"b": 1}', "[1]")),
    ],
)
def test_true_and_one_are_different_values(
    first: dict[str, object], other: dict[str, object], texts: tuple[str, str]
) -> None:
    def body(collective: Collective) -> str:
        with pytest.raises(InvalidArgumentError) as caught:
            Coordinator(collective, "a task").all_equal(
                other if collective.rank else first, "ranks differ", "fix it"
            )
        return str(caught.value)

    expected = f"ranks differ: a is {texts[0]} on rank 0 and {texts[1]} on rank 1; fix it"
    assert run_ranks(2, body) == [expected] * 2


def test_nan_equals_nan() -> None:
    run_ranks(2, lambda it: Coordinator(it, "a task").all_equal({"a": float("nan")}, "", ""))


def work_until_stopped(made: Coordinator) -> None:
    while True:
        made.check()
        time.sleep(0.01)


@pytest.mark.parametrize("waits", [False, True])
def test_an_abort_ends_the_work_of_the_others(waits: bool) -> None:
    def body(collective: Collective) -> str:
        made = Coordinator(collective, "a task")
        made.start()
        if collective.rank == BROKEN:
            made.abort(KeyboardInterrupt(), waits=waits)
            if not waits:
                made.abort(KeyboardInterrupt())
            return ""
        with pytest.raises(SparringError) as caught:
            work_until_stopped(made)
        return str(caught.value)

    for rank, found in enumerate(run_ranks(WORLD_SIZE, body)):
        assert rank == BROKEN or "rank 1 failed: it was stopped (KeyboardInterrupt())" in found


def test_a_single_rank_raises_its_own_error() -> None:
    made = Coordinator(LocalGroup(1).join(0), "a task")
    made.start()
    made.all_equal({"a": 1}, "", "")
    with pytest.raises(KeyError):
        made.agree(KeyError("k"))
