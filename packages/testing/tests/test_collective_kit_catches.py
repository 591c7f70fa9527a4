"""Collectives that break one guarantee, and the test of the kit that detects it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sparring.collective.local import LocalCollective, LocalGroup, _ReceiveWork
from sparring.contracts.ranks.collective import Collective, Reduction
from sparring.errors import PeerFailure
from sparring_testing.collectives import collective_failures
from sparring_testing.collectives.collective_tests import CollectiveTests
from sparring_testing.guard import find_violations
from sparring_testing.processes import deadlines

KIT = CollectiveTests()


class MixesTags(LocalCollective):
    def _send_impl(self, buffer: Any, destination: int, tag: int) -> Any:
        return super()._send_impl(buffer, destination, 0)

    def _receive_impl(self, buffer: Any, source: int, tag: int) -> Any:
        return super()._receive_impl(buffer, source, 0)


class TakesTheLastFirst(LocalCollective):
    def _receive_impl(self, buffer: Any, source: int, tag: int) -> Any:
        with self.group.changed:
            box = self.group.boxes[(source, self.rank, tag)]
            box.waiting.reverse()
            box.messages.reverse()
        return super()._receive_impl(buffer, source, tag)


class TakesAPart(LocalCollective):
    def _receive_impl(self, buffer: Any, source: int, tag: int) -> Any:
        receiving: Any = super()._receive_impl(buffer, source, tag)
        receiving._error = None
        receiving._is_done = receiving._is_done or buffer.nbytes == 8
        return receiving


class ReadsTheBufferLate(LocalCollective):
    def _send_impl(self, buffer: Any, destination: int, tag: int) -> Any:
        class Shared(np.ndarray):
            def copy(self, order: Any = "C") -> Any:
                return self

        return super()._send_impl(buffer.reshape(-1).view(Shared), destination, tag)


class ConvertsToFloat(LocalCollective):
    def _send_impl(self, buffer: Any, destination: int, tag: int) -> Any:
        same = (
            buffer.astype(np.float64).astype(buffer.dtype) if buffer.dtype == np.int64 else buffer
        )
        return super()._send_impl(same, destination, tag)


class LosesShapes(LocalCollective):
    def _all_to_all_impl(self, parts: Any) -> Any:
        return [part.reshape(-1) for part in super()._all_to_all_impl(parts)]


class ForgetsToDivide(LocalCollective):
    def all_reduce(self, buffer: Any, reduction: Reduction = Reduction.SUM) -> Any:
        return super().all_reduce(
            buffer, Reduction.SUM if reduction is Reduction.MEAN else reduction
        )


class AddsFromItselfOn(LocalCollective):
    def all_gather(self, buffer: Any) -> Any:
        gathered = super().all_gather(buffer)
        return gathered[self.rank :] + gathered[: self.rank]


class HasNoBarrier(LocalCollective):
    def barrier(self) -> None:
        return


class WaitsTooLong(LocalCollective):
    def __init__(self, group: LocalGroup, rank: int) -> None:
        super().__init__(group, rank)
        self.deadline_seconds *= 1.5


class NamesNoStep(LocalCollective):
    def peer_failure(self, peer: int, found: str, context: Any, **more: Any) -> PeerFailure:
        return super().peer_failure(peer, found, replace(context, step=None), **more)


class LeavesUnnoticed(LocalCollective):
    def close(self) -> None:
        self._is_closed = True


class GivesUpUnnoticed(LocalCollective):
    def failed(self, peer: int, failure: Any, context: Any) -> PeerFailure:
        return self.peer_failure(peer, failure.found, context, culprit=failure.culprit)


class FailsUnnoticed(LocalCollective):
    def _give_up_impl(self, culprit: int) -> None:
        return


class StaysOpen(LocalCollective):
    def _check_open(self) -> None:
        return


class TakesAnyTag(LocalCollective):
    def _check_message(self, what: str, peer: int, tag: int) -> None:
        super()._check_message(what, peer, 0)


Case = tuple[type[LocalCollective], Callable[[Any], None]]

CASES: list[Case] = [
    (MixesTags, KIT.test_tags_are_kept_apart_and_their_order_is_kept),
    (TakesTheLastFirst, KIT.test_tags_are_kept_apart_and_their_order_is_kept),
    (TakesAPart, lambda run: KIT.test_a_message_of_another_size_is_rejected(run, 4, 8)),
    (ReadsTheBufferLate, KIT.test_a_buffer_may_change_once_its_send_is_done),
    (ConvertsToFloat, lambda run: KIT.test_every_dtype_arrives_byte_for_byte(run, "int64")),
    (LosesShapes, lambda run: KIT.test_gathered_arrays_keep_their_order_and_shapes(run, 3)),
    (
        ForgetsToDivide,
        lambda run: KIT.test_reductions_are_bit_equal_on_all_ranks(
            run, Reduction.MEAN, "float32", (7, 11)
        ),
    ),
    (
        AddsFromItselfOn,
        lambda run: KIT.test_reductions_are_bit_equal_on_all_ranks(
            run, Reduction.SUM, "float32", (7, 11)
        ),
    ),
    (HasNoBarrier, KIT.test_a_barrier_waits_for_the_last_rank),
    (WaitsTooLong, KIT.test_an_operation_without_a_rank_ends_at_the_deadline),
    (NamesNoStep, KIT.test_an_operation_without_a_rank_ends_at_the_deadline),
    (LeavesUnnoticed, KIT.test_a_rank_that_leaves_is_named_before_the_deadline),
    (
        GivesUpUnnoticed,
        lambda run: KIT.test_a_rank_that_gives_up_reports_the_failed_rank_to_its_waiters(
            run, "all_to_all"
        ),
    ),
    (FailsUnnoticed, KIT.test_a_rank_that_gives_up_by_itself_is_named_before_the_deadline),
    (StaysOpen, KIT.test_a_closed_collective_rejects_every_call),
    (TakesAnyTag, KIT.test_wrong_calls_are_rejected),
]


@pytest.mark.parametrize(("broken", "standard_test"), CASES, ids=lambda each: each.__name__)
def test_break_is_caught(
    broken: type[LocalCollective],
    standard_test: Callable[[Any], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_ranks(kind: type[LocalCollective]) -> Any:
        def run(
            world_size: int, body: Any, *arguments: Any, deadline_seconds: float = 10.0
        ) -> list[Any]:
            # A break may keep the others waiting; five seconds are enough to detect it.
            group = LocalGroup(world_size, deadline_seconds=min(deadline_seconds, 5.0))

            def on_rank(rank: int) -> Any:
                with kind(group, rank) as collective:
                    return body(collective, *arguments)

            with ThreadPoolExecutor(world_size) as threads:
                return list(threads.map(on_rank, range(world_size)))

        return run

    with monkeypatch.context() as shorter:
        # A break would only be tried again with the longer ones.
        shorter.setattr(deadlines, "DEADLINES", deadlines.DEADLINES[:1])
        shorter.setattr(collective_failures, "_UNREACHED_DEADLINES", (8.0,))
        # pytest.raises inside a body fails with an exception that is not derived from Exception.
        with pytest.raises((Exception, pytest.fail.Exception)):
            standard_test(run_ranks(broken))
    standard_test(run_ranks(LocalCollective))


def test_the_guard_sees_a_removed_test() -> None:
    suite = type("TestMine", (CollectiveTests,), {"test_empty_parts_are_accepted": None})
    assert find_violations(suite, CollectiveTests) == [
        "TestMine removes test_empty_parts_are_accepted without a reason; delete it, or mark it "
        "with @overrides_kit(reason=...)"
    ]


def test_breaks_replace_existing_methods() -> None:
    """The breaks reach into the local collective, so they must follow it."""
    assert hasattr(_ReceiveWork, "take")
    for name in ("_check_open", "_check_message", "peer_failure", "_all_to_all_impl"):
        assert hasattr(Collective, name)
