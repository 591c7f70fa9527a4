"""Calls to shards, in rounds, without a network: which attempts are due, and what becomes of each.

In the first round each call goes to one replica of its shard; in the next, calls that failed go to the
next one. Each attempt has its part of the time that is left, so that all replicas have their turn before
the deadline. Where none could be reached, a patient caller spends the rest of the time on waiting for
their connections: a replica may just be starting again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field

from sparring.errors import SparringError
from sparring_serve.client.failures import failure_of_replicas, is_of_replica, refusal_error
from sparring_serve.client.replicas import ReplicaOrder
from sparring_serve.client.transport import Outcome, Send
from sparring_serve.wire.fields import MessageError

__all__ = ["Exchange", "Rounds", "ShardMapMovedError"]

Exchange = Generator[list[Send], Iterable[Outcome], None]
"""Yields attempts to make at once, takes how they ended."""


_MOST_WAITS = 3
"""How often a connection is waited for: it may be one that is just being lost."""


class ShardMapMovedError(Exception):
    """A server has another shard map: the pull begins again with it."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


@dataclass(slots=True, eq=False)
class _Call:
    number: int
    shard: int
    request: bytes
    replicas: list[str]
    """Those that were not asked yet."""
    reasons: dict[str, Outcome] = field(default_factory=dict)
    is_done: bool = False
    num_waits: int = 0

    def begin_again(self) -> bool:
        """Whether all replicas are to be asked once more, and waited for."""
        if self.is_done or self.num_waits == _MOST_WAITS or self.replicas:
            return False
        if {each.status for each in self.reasons.values()} != {"UNAVAILABLE"}:
            return False
        self.num_waits, self.replicas = self.num_waits + 1, list(self.reasons)
        return True


class Rounds:
    """The attempts of a few calls.

    Args:
        method: of the service.
        calls: shard and request of each.
        accept: takes the number of a call and its answer; raises `MessageError` if it is none.
        is_patient: waits for connections until the deadline, rather than to give up before it.
    """

    def __init__(
        self,
        method: str,
        calls: Sequence[tuple[int, bytes]],
        accept: Callable[[int, bytes], None],
        *,
        is_patient: bool,
    ) -> None:
        self._is_patient = is_patient
        self._method = method
        self._calls = [
            _Call(number, shard, request, []) for number, (shard, request) in enumerate(calls)
        ]
        self._accept = accept
        self.num_failovers = 0

    def run(
        self,
        shards: Sequence[Sequence[str]],
        order: ReplicaOrder,
        clock: Callable[[], float],
        deadline: float,
        longest_seconds: float = 600.0,
    ) -> Exchange:
        """All rounds.

        Args:
            shards: addresses of the replicas of each.
            order: of replicas; told which failed.
            clock: seconds.
            deadline: on that clock.
            longest_seconds: of one attempt: servers refuse longer ones.

        Raises:
            SparringError: every replica would refuse one of the calls.
            ShardMapMovedError: keys of a call are elsewhere.
        """
        for each in self._calls:
            each.replicas = order.of(shards[each.shard], clock())
        is_first = True
        while True:
            remaining = deadline - clock()
            due = [each for each in self._calls if not each.is_done and each.replicas]
            if remaining <= 0:
                return
            if not due:
                if not self._is_patient or not self._begin_again():
                    return
                continue
            self.num_failovers += 0 if is_first else len(due)
            is_first = False
            sends = [
                Send(
                    each.replicas[0],
                    self._method,
                    each.request,
                    min(remaining / len(each.replicas), longest_seconds),
                    each.num_waits > 0,
                )
                for each in due
            ]
            for each in due:
                del each.replicas[0]
            outcomes = yield sends
            for call, send, outcome in zip(due, sends, outcomes, strict=True):
                self._take(call, send, outcome, order, clock())

    def _begin_again(self) -> bool:
        begun = [each.begin_again() for each in self._calls]
        return any(begun)

    def failures(self) -> list[tuple[int, SparringError]]:
        """Numbers of calls that no replica answered, and the error of each."""
        return [
            (number, failure_of_replicas(each.shard, each.reasons))
            for number, each in enumerate(self._calls)
            if not each.is_done
        ]

    def has_lost_version(self) -> bool:
        """Whether a replica has no longer, or not yet, the version that was asked for."""
        return any(
            why.status == "NOT_FOUND"
            for each in self._calls
            if not each.is_done
            for why in each.reasons.values()
        )

    def _take(
        self, call: _Call, send: Send, outcome: Outcome, order: ReplicaOrder, now: float
    ) -> None:
        if outcome.answer is not None:
            try:
                self._accept(call.number, outcome.answer)
            except MessageError as error:
                outcome = Outcome(None, "DATA_LOSS", str(error))
            else:
                order.note_success(send.address)
                call.is_done = True
                return
        if not (call.num_waits and outcome.status == "DEADLINE_EXCEEDED"):
            # Otherwise there is still no connection, and the reason was told before.
            call.reasons[send.address] = outcome
        if is_of_replica(outcome):
            # One that has too much to do now is not down.
            if outcome.status != "RESOURCE_EXHAUSTED":
                order.note_failure(send.address, now)
        elif outcome.shard_map:
            raise ShardMapMovedError(outcome)
        elif outcome.status not in ("NOT_FOUND", "FAILED_PRECONDITION"):
            raise refusal_error(send.address, outcome)
