"""Exchanges in which one rank has other settings, ends, rejects a step or fails.

The file is long because each failure is tested on the same ranks and tables, in every phase.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalCollective
from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.contracts.ranks.exchange_options import ExchangeOptions
from sparring.contracts.ranks.shard_map import ShardMap
from sparring.contracts.storage.updates import MethodChoice
from sparring.contracts.tables.initializers import Uniform
from sparring.contracts.tables.table import TableConfig
from sparring.engine.container import StepContainer
from sparring.engine.tables.storage_choice import StorageChoice
from sparring.errors import (
    CapacityError,
    ClosedError,
    InvalidArgumentError,
    PeerFailure,
    SparringError,
    StorageIOError,
)
from sparring.exchange.headers import exchange_more_counts, send_shutdown_notice
from sparring.exchange.messenger import ExchangeCounters, MessageKind, Messenger, find_tag
from sparring.kernels.functions import partition
from sparring.runtime.events import BackgroundError
from sparring.updates.resolve import parse_hyper, resolve_method
from sparring_testing.processes.rank_threads import run_ranks
from sparring_testing.processes.table_steps import descend, open_tables, read_rows
from sparring_testing.processes.thread_rendezvous import ThreadRendezvous

from .late_transport import LateGroup

TABLE = TableConfig("item", 4, initializer=Uniform(-1, 1))
SOON, LONG = 30.0, 60.0
"""Seconds: how soon ranks must be told, and the deadline until which they would wait otherwise."""
LEVELS = [ExchangeOptions(chunk_rows=8, two_levels=False), ExchangeOptions(two_levels=True)]


def container_of(
    collective: Collective, table: TableConfig = TABLE, **options: Any
) -> StepContainer:
    rendezvous = ThreadRendezvous(collective.world_size)
    return open_tables(table, collective=collective, rendezvous=rendezvous, **options)


def step(made: StepContainer, keys: Any, gradient: float = 1.0) -> None:
    with made.step(descend(0.25)) as one:
        found = one.lookup("item", keys)
        one.accumulate(found, np.full((len(found.keys), 4), gradient, np.float32))


def error_of(call: Callable[[], Any]) -> SparringError:
    with pytest.raises(SparringError) as caught:
        call()
    return caught.value


# -- different setups ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("differs", "expected"),
    [
        ({"table": replace(TABLE, dim=5)}, ["tables.item.dim", "4", "5"]),
        ({"table": replace(TABLE, dtype="float16")}, ["tables.item.dtype", "float32", "float16"]),
        (
            {"table": replace(TABLE, initializer=Uniform(-2, 1))},
            ["tables.item.initializer", "-1", "-2"],
        ),
        ({"table": replace(TABLE, seed=9)}, ["tables.item.seed", "0", "9"]),
        ({"reduction": Reduction.SUM}, ["reduction", "mean", "sum"]),
        ({"non_finite_gradients": "skip"}, ["non_finite_gradients", "raise", "skip"]),
        ({"exchange": ExchangeOptions(chunk_rows=3)}, ["exchange.chunk_rows", "auto", "3"]),
        (
            {"exchange": ExchangeOptions(two_levels=False)},
            ["exchange.two_levels", '"auto"', "false"],
        ),
        ({"config": {"training": {"steps": 7}}}, ["config.training", "missing", "7"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_ranks_with_different_setups_are_rejected_at_start(
    differs: Mapping[str, Any], expected: list[str]
) -> None:
    def body(collective: Collective) -> str:
        made = container_of(collective, **(differs if collective.rank == 2 else {}))
        error = error_of(lambda: made.lookup("item", np.arange(3)))
        assert isinstance(error, InvalidArgumentError)
        return str(error)

    for message in run_ranks(3, body):
        for part in (*expected, "rank 0", "rank 2"):
            assert part in message


def test_another_version_of_the_code_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = iter(["1.0", "1.1"])
    monkeypatch.setattr("sparring.engine.job.fingerprint._version", lambda: next(versions))

    def body(collective: Collective) -> str:
        return str(error_of(lambda: container_of(collective).lookup("item", np.arange(3))))

    for message in run_ranks(2, body):
        assert "code version" in message
        assert "1.0" in message
        assert "1.1" in message


def test_a_table_declared_on_only_one_rank_is_named() -> None:
    def body(collective: Collective) -> str:
        made = container_of(collective)
        if collective.rank == 1:
            made.declare(TableConfig("extra", 2), StorageChoice("memory"))
        return str(error_of(lambda: made.lookup("item", np.arange(3))))

    for message in run_ranks(2, body):
        assert "tables.extra is missing on rank 0" in message


def test_ranks_that_look_up_different_tables_raise_an_error() -> None:
    def body(collective: Collective) -> str:
        made = container_of(collective)
        made.declare(TableConfig("user", 2), StorageChoice("memory"))
        name = "user" if collective.rank else "item"
        return str(error_of(lambda: made.lookup(name, np.arange(3))))

    for message in run_ranks(2, body):
        assert 'request is ["item[0:4]"] on rank 0 and ["user[0:2]"] on rank 1' in message


# -- a rank that ends ----------------------------------------------------------------


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_rank_that_runs_out_of_batches_is_named_at_the_step_boundary(world_size: int) -> None:
    last = world_size - 1

    def body(collective: Collective) -> PeerFailure | None:
        made = container_of(collective)
        for _ in range(2):
            step(made, np.arange(5))
        if collective.rank == last:
            made.close()
            return None
        begin = time.monotonic()
        error = error_of(lambda: step(made, np.arange(5)))
        assert time.monotonic() - begin < SOON
        assert isinstance(error, PeerFailure)
        assert made.counters.steps == 2
        made.close()
        return error

    survivors = run_ranks(world_size, body, LONG)[:last]
    for error in survivors:
        assert (error.rank, error.step, error.steps_applied) == (last, 2, 2)
        assert f"rank {last}" in str(error)
        assert "tables contain 2 steps" in str(error)
    # With several survivors, one may be notified by another, with a different message.
    if world_size == 2:
        assert "rank 1 ended training after 2 steps" in str(survivors[0])


def test_a_rank_that_ended_and_left_is_known_to_have_ended() -> None:
    def body(collective: Collective) -> PeerFailure | None:
        assert isinstance(collective, LocalCollective)
        made = container_of(collective)
        step(made, np.arange(5))
        if collective.rank == 1:
            made.close()
            collective.close()
            return None
        with collective.group.changed:
            assert collective.group.changed.wait_for(lambda: 1 in collective.group.gone, 10)
        error = error_of(lambda: step(made, np.arange(5)))
        assert isinstance(error, PeerFailure)
        return error

    error = run_ranks(2, body, LONG)[0]
    assert (error.rank, error.step, error.steps_applied) == (1, 1, 1)
    assert "rank 1 ended training after 1 step," in str(error)


def test_messages_to_a_finished_rank_are_not_awaited() -> None:
    group = LateGroup(2, deadline_seconds=LONG)

    def body(rank: int) -> float:
        made = container_of(group.join(rank))
        step(made, np.arange(5))
        if rank == 1:
            made.close()
            return 0.0
        begin = time.monotonic()
        assert error_of(lambda: step(made, np.arange(5))).rank == 1
        return time.monotonic() - begin

    with ThreadPoolExecutor(2) as threads:
        assert max(threads.map(body, range(2))) < SOON


def test_a_rank_may_end_while_others_read_their_own_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def body(collective: Collective) -> bool:
        made = container_of(collective, exchange=ExchangeOptions(chunk_rows=50))
        step(made, np.arange(100))
        storage = made.storage("item")
        find = storage._find_impl

        def slow_find(*arguments: Any) -> None:
            time.sleep(0.4)
            find(*arguments)

        if collective.rank == 1:
            storage._find_impl = slow_find  # type: ignore[method-assign]
        # Rank 0 requests none of rank 1's rows, and finishes long before it.
        everything = np.arange(400)
        owners = ShardMap.balanced(2).owners[partition(everything)]
        keys = everything if collective.rank else everything[owners == 0]
        found = made.lookup("item", keys, is_registered=False)
        made.close()
        return len(found.rows) == len(keys)

    assert run_ranks(2, body) == [True, True]


def test_a_rank_that_ends_during_an_exchange_is_soon_named() -> None:
    def body(collective: Collective) -> int | None:
        made = container_of(collective, exchange=ExchangeOptions(chunk_rows=5))
        step(made, np.arange(100))
        if collective.rank == 1:
            _stop_after(collective, 9)
            with pytest.raises(_Killed):
                made.lookup("item", np.arange(100))
            made.close()
            return None
        begin = time.monotonic()
        error = error_of(lambda: made.lookup("item", np.arange(100)))
        assert time.monotonic() - begin < SOON
        return error.rank

    assert run_ranks(2, body, LONG)[0] == 1


def test_a_rank_that_starts_to_evaluate_is_also_named() -> None:
    def body(collective: Collective) -> str:
        made = container_of(collective)
        step(made, np.arange(5))
        if collective.rank == 1:
            return str(error_of(lambda: made.lookup("item", np.arange(5), is_registered=False)))
        return str(error_of(lambda: step(made, np.arange(5))))

    trainer, evaluator = run_ranks(2, body, LONG)
    assert "rank 1 ended training after 1 step," in trainer
    assert "rank 0 looks up rows for training, step 1" in evaluator


def test_after_a_failure_the_exchange_stays_failed() -> None:
    def body(collective: Collective) -> None:
        made = container_of(collective)
        if collective.rank:
            made.close()
            with pytest.raises(ClosedError):
                made.lookup("item", np.arange(3))
            return
        first = error_of(lambda: made.lookup("item", np.arange(3)))
        begin = time.monotonic()
        second = error_of(lambda: made.lookup("item", np.arange(3)))
        assert time.monotonic() - begin < SOON
        assert (first.rank, str(first)) == (second.rank, str(second))

    run_ranks(2, body, LONG)


# -- a rank that rejects -------------------------------------------------------------


@pytest.mark.parametrize("is_fused", [True, False], ids=["fused", "function"])
def test_a_full_storage_on_one_rank_stops_the_step_on_all_and_training_continues(
    is_fused: bool,
) -> None:
    method = resolve_method("adam")
    hyper = parse_hyper(method, {"lr": 0.1})

    def body(collective: Collective) -> str:
        options = {"capacity": 12} if collective.rank == 1 else {}
        made = container_of(collective, storage=StorageChoice("memory", options))
        made.set_state("item", method.initial_state(4, hyper, np.dtype(np.float32)), "adam")
        applied = 0

        def train(keys: np.ndarray) -> None:
            nonlocal applied
            found = made.lookup("item", keys)
            assert found.shadow_id is not None
            gradient = np.ones((len(found.keys), 4), np.float32)
            made.resources.accumulate(found.shadow_id, gradient)
            if is_fused:
                made.apply_methods({"item": MethodChoice(method, hyper, applied + 1)})
            else:
                made.apply(descend(0.25))
            applied += 1

        train(np.arange(10))
        before = read_rows(made, "item")
        error = error_of(lambda: train(np.arange(200)))
        assert isinstance(error, CapacityError)
        assert read_rows(made, "item") == before
        assert made.counters.steps == 1
        train(np.arange(10))
        assert read_rows(made, "item") != before
        return str(error)

    messages = run_ranks(3, body)
    for rank in (0, 2):
        assert "rank 1 cannot apply it, so no rank does" in messages[rank]
        assert "a capacity of 12" in messages[rank]
    assert messages[1].startswith("table 'item' has")


def test_a_background_failure_on_one_rank_stops_the_step_on_all() -> None:
    def body(collective: Collective) -> str:
        made = container_of(collective)
        step(made, np.arange(5))
        before = read_rows(made, "item")
        if collective.rank == 0:

            def fail() -> None:
                raise OSError("disk gone")

            made.events.submit(fail, name="snapshot")
            made.events.drain(5.0)
        error = error_of(lambda: step(made, np.arange(5)))
        assert isinstance(error, BackgroundError)
        assert read_rows(made, "item") == before
        step(made, np.arange(5))
        assert made.counters.steps == 2
        made.close()
        return str(error)

    mine, theirs = run_ranks(2, body)
    assert "snapshot" in mine
    assert "rank 0 cannot apply it" in theirs
    assert "snapshot" in theirs


@pytest.mark.parametrize("exchange", LEVELS, ids=["one level", "two levels"])
def test_a_storage_that_cannot_read_is_named_by_the_requesting_rank(
    monkeypatch: pytest.MonkeyPatch, exchange: ExchangeOptions
) -> None:
    def body(collective: Collective) -> SparringError | OSError:
        collective.hosts = [[0, 1], [2]]
        made = container_of(collective, exchange=exchange)
        step(made, np.arange(100))
        if collective.rank == 1:

            def fail(*_arguments: Any) -> None:
                raise OSError("disk gone")

            monkeypatch.setattr(made.storage("item"), "_find_impl", fail)
        try:
            made.lookup("item", np.arange(100))
        except (SparringError, OSError) as error:
            return error
        raise AssertionError("nothing was raised")

    errors = run_ranks(3, body)
    assert str(errors[1]) == "disk gone"
    for rank in (0, 2):
        assert isinstance(errors[rank], PeerFailure)
        assert errors[rank].rank == 1
        assert "its storage failed" in str(errors[rank])


@pytest.mark.parametrize("exchange", LEVELS, ids=["one level", "two levels"])
def test_a_storage_that_fails_before_the_update_stops_the_step_on_all(
    exchange: ExchangeOptions,
) -> None:
    def body(collective: Collective) -> str:
        collective.hosts = [[0, 1], [2]]
        made = container_of(collective, exchange=exchange)
        step(made, np.arange(100))
        before = read_rows(made, "item")
        storage = made.storage("item")
        find = storage._find_impl

        def fail(*_arguments: Any) -> None:
            raise StorageIOError("disk gone")

        found = made.lookup("item", np.arange(100))
        made.resources.accumulate(found.shadow_id or 0, np.ones((100, 4), np.float32))
        if collective.rank == 2:
            storage._find_impl = fail  # type: ignore[method-assign]
        error = error_of(lambda: made.apply(descend(0.25)))
        assert isinstance(error, StorageIOError)
        storage._find_impl = find  # type: ignore[method-assign]
        assert read_rows(made, "item") == before
        step(made, np.arange(100))
        assert made.counters.steps == 2
        return str(error)

    messages = run_ranks(3, body)
    assert messages[2] == "disk gone"
    for rank in (0, 1):
        assert "rank 2 cannot apply it, so no rank does: disk gone" in messages[rank]


# -- a rank that dies ----------------------------------------------------------------

STEPS = 4


def trained(made: StepContainer, rank: int) -> list[dict[int, bytes]]:
    """Rows of the shard before and after each step."""
    history = [read_rows(made, "item")]
    for number in range(STEPS):
        step(made, np.random.default_rng((number, rank)).integers(0, 60, 25))
        history.append(read_rows(made, "item"))
    return history


class _Killed(BaseException):
    """Error that simulates the end of a process."""


def test_a_rank_that_dies_anywhere_leaves_no_half_applied_step() -> None:
    """Rank 1 of 3 ends at its nth message, for many n.

    Survivors name it, and their tables have the rows before or after a step, as the error reports.
    """
    options = ExchangeOptions(chunk_rows=4, chunks_in_flight=2)

    def undisturbed(collective: Collective) -> tuple[list[dict[int, bytes]], int]:
        made = container_of(collective, exchange=options)
        history = trained(made, collective.rank)
        return history, made.exchange.counters.num_messages_sent

    results = run_ranks(3, undisturbed)
    histories = [history for history, _ in results]
    most = results[1][1]
    for last in np.random.default_rng(1).integers(1, most - 6, 8).tolist():

        def body(collective: Collective, last: int = last) -> None:
            made = container_of(collective, exchange=options)
            if collective.rank == 1:
                _die_after(collective, last)
                with pytest.raises(_Killed):
                    trained(made, 1)
                return
            begin = time.monotonic()
            error = error_of(lambda: trained(made, collective.rank))
            assert time.monotonic() - begin < SOON
            assert isinstance(error, PeerFailure)
            assert error.rank == 1, str(error)
            assert error.step == error.steps_applied == made.counters.steps
            assert read_rows(made, "item") == histories[collective.rank][error.steps_applied]

        run_ranks(3, body, LONG)


def _die_after(collective: Collective, num_messages: int) -> None:
    _stop_after(collective, num_messages, collective.close)


def _stop_after(
    collective: Collective, num_messages: int, before: Callable[[], None] = lambda: None
) -> None:
    """Raises instead of sending one message; later messages are sent."""
    send_impl = collective._send_impl
    left = [num_messages]

    def send(buffer: Any, destination: int, tag: int) -> Any:
        left[0] -= 1
        if left[0] == -1:
            before()
            raise _Killed
        return send_impl(buffer, destination, tag)

    collective._send_impl = send  # type: ignore[method-assign]


def test_a_shutdown_notice_is_not_mistaken_for_counts_of_many_tables() -> None:
    """Rank 1 died when rank 2 had its header and rank 0 had not, so rank 0 gives up while rank 2 waits
    for the counts for which headers have no room."""

    def body(collective: Collective) -> Any:
        messenger = Messenger(collective, ExchangeCounters())
        counts = np.zeros((3, 60), np.int64)
        if collective.rank == 0:
            # Rank 2 is waiting.
            collective.receive(np.empty(3, np.int64), 2, find_tag(MessageKind.COUNTS)).wait()
            send_shutdown_notice(messenger, 0, 1)
            collective.give_up(1)
        if collective.rank < 2:
            return None
        error = error_of(lambda: exchange_more_counts(messenger, counts, counts[:, :57]))
        assert isinstance(error, PeerFailure)
        return error.rank

    assert run_ranks(3, body, LONG)[2] == 1
