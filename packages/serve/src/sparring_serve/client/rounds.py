"""Calls to shards, in rounds, without a network: which attempts are due, and what becomes of each.

In the first round each call goes to one replica of its shard; in the next, calls that failed go to the
next one. Each attempt has its part of the time that is left, so that all replicas have their turn before
the deadline. If all replicas of a shard failed in a way that may pass, such as too many calls or a lost
connection, they are asked again after a pause, until the deadline. Lookups, pushes and saves differ in
what may pass and how long an attempt takes: their `RetryPolicy` states it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from sparring.errors import SparringError
from sparring_serve.client.circuit_breaker import CircuitState
from sparring_serve.client.failures import (
    REPLICA_FAILURES,
    is_replica_failure,
    make_replicas_error,
    make_status_error,
)
from sparring_serve.client.replicas import ReplicaOrder, pauses
from sparring_serve.client.transport import Outcome, Pause, Send
from sparring_serve.wire.fields import MessageError

__all__ = [
    "IMPATIENT",
    "ONE_RECONNECT",
    "PATIENT",
    "UNTIL_ANSWERED",
    "Exchange",
    "RetryPolicy",
    "Rounds",
    "ShardMapMovedError",
]

Exchange = Generator[list[Send] | Pause, Iterable[Outcome], None]
"""Yields attempts to make at once, and takes their outcomes; or yields a pause."""

_BUSY, _UNCONNECTED = frozenset({"RESOURCE_EXHAUSTED"}), frozenset({"UNAVAILABLE"})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Specifies when a replica is called again, and how long an attempt takes.

    Args:
        repeated: statuses after which a replica is called again, until the deadline.
        repeated_once: statuses after which it is called again once.
        awaited: statuses after which the next attempt waits for a connection.
        num_spared: attempts for which an attempt leaves time, besides those at other replicas.
        shortest_seconds: of an attempt, if that much time is left.
        breaks_circuits: whether the `CircuitBreaker` leaves out replicas that do not answer.
        raises_refusals: whether a refusal ends all calls. Otherwise the others continue.
    """

    repeated: frozenset[str] = frozenset()
    repeated_once: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()
    num_spared: int = 0
    shortest_seconds: float = 0.0
    breaks_circuits: bool = True
    raises_refusals: bool = True

    def attempt_seconds(self, remaining: float, num_replicas: int) -> float:
        """Returns the time for one attempt.

        Args:
            remaining: seconds until the deadline.
            num_replicas: replicas that have not had their turn, this one included.
        """
        share = remaining / (num_replicas + self.num_spared)
        return min(max(share, self.shortest_seconds), remaining)


PATIENT = RetryPolicy(repeated=_BUSY | _UNCONNECTED, awaited=_UNCONNECTED)
"""For lookups: waits for connections until the deadline."""

IMPATIENT = RetryPolicy(repeated=_BUSY, repeated_once=_UNCONNECTED)
"""For lookups with a fallback: a lost or refused connection is tried once more."""

UNTIL_ANSWERED = RetryPolicy(
    repeated=REPLICA_FAILURES,
    awaited=REPLICA_FAILURES,
    num_spared=1,
    shortest_seconds=1.0,
    breaks_circuits=False,
    raises_refusals=False,
)
"""For pushes, which every shard must accept: after a lost reply there is time for another attempt."""

ONE_RECONNECT = RetryPolicy(
    repeated_once=_UNCONNECTED,
    awaited=_UNCONNECTED,
    raises_refusals=False,
)
"""For calls between shards: a shard that cannot be reached may be restarting."""


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
    """Those that are asked next, in this order."""
    last: str = ""
    """The replica that was asked last."""
    reasons: dict[str, Outcome] = field(default_factory=dict)
    is_done: bool = False
    num_repeats: int = 0

    def repeat(self, policy: RetryPolicy) -> bool:
        """Whether replicas are asked once more."""
        if self.is_done or any(not is_replica_failure(each) for each in self.reasons.values()):
            return False  # their answer stands
        statuses = policy.repeated if self.num_repeats else policy.repeated | policy.repeated_once
        self.replicas = [
            address for address, each in self.reasons.items() if each.status in statuses
        ]
        self.num_repeats += bool(self.replicas)
        return bool(self.replicas)

    def waits(self, address: str, policy: RetryPolicy) -> bool:
        """Whether an attempt waits for a connection."""
        before = self.reasons.get(address)
        return before is not None and before.status in policy.awaited


class Rounds:
    """The attempts of a few calls.

    Args:
        method: of the service.
        calls: shard and request of each.
        accept: takes the number of a call and its answer; raises `MessageError` if it is none.
        policy: of attempts.
    """

    def __init__(
        self,
        method: str,
        calls: Sequence[tuple[int, bytes]],
        accept: Callable[[int, bytes], None],
        policy: RetryPolicy = PATIENT,
    ) -> None:
        self._policy = policy
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
        pause = pauses()
        while True:
            now = clock()
            remaining = deadline - now
            if remaining <= 0:
                return
            due = [each for each in self._calls if not each.is_done and each.replicas]
            if due:
                yield from self._round(due, order, clock, deadline, longest_seconds)
                continue
            repeated = [each.repeat(self._policy) for each in self._calls]
            if not any(repeated):
                return
            yield Pause(min(next(pause), remaining))

    def _round(
        self,
        due: Sequence[_Call],
        order: ReplicaOrder,
        clock: Callable[[], float],
        deadline: float,
        longest_seconds: float,
    ) -> Exchange:
        """One attempt of each call that is due."""
        now = clock()
        sent: list[_Call] = []
        sends: list[Send] = []
        probed: set[str] = set()
        for call in due:
            address = call.replicas[0]
            if address in probed:
                continue  # it waits for what becomes of the probe
            seconds = self._policy.attempt_seconds(deadline - now, len(call.replicas))
            seconds = min(seconds, longest_seconds)
            state = CircuitState.CLOSED
            if self._policy.breaks_circuits:
                state = order.breaker.state(address, now, seconds)
            del call.replicas[0]
            if state is CircuitState.OPEN:
                call.reasons[address] = order.breaker.outcome(address, now)
                continue
            note = None
            if state is CircuitState.HALF_OPEN:
                probed.add(address)
                note = partial(self._note_late, address, order, clock)
            waits = call.waits(address, self._policy)
            sends.append(Send(address, self._method, call.request, seconds, waits, note))
            sent.append(call)
            self.num_failovers += call.last not in ("", address)
            call.last = address
        if not sends:
            return
        outcomes = yield sends
        for call, send, outcome in zip(sent, sends, outcomes, strict=True):
            self._take(call, send, outcome, order, (now, clock()))

    @staticmethod
    def _note_late(address: str, order: ReplicaOrder, clock: Callable[[], float]) -> None:
        order.note_success(address)
        order.breaker.note_answer(address, clock())

    def failures(self) -> list[tuple[int, SparringError]]:
        """Numbers of calls that no replica answered, and the error of each."""
        return [
            (number, make_replicas_error(each.shard, each.reasons))
            for number, each in enumerate(self._calls)
            if not each.is_done
        ]

    def outcomes(self) -> list[Outcome | None]:
        """Failures of calls to one replica each. None: it answered, or was not asked in time."""
        return [
            None if each.is_done else next(iter(each.reasons.values()), None)
            for each in self._calls
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
        self,
        call: _Call,
        send: Send,
        outcome: Outcome,
        order: ReplicaOrder,
        times: tuple[float, float],
    ) -> None:
        began, now = times
        if outcome.status != "DEADLINE_EXCEEDED":
            order.breaker.note_answer(send.address, now)
        elif not send.waits:
            order.breaker.note_deadline(send.address, began, send.timeout_seconds)
        if outcome.answer is not None:
            try:
                self._accept(call.number, outcome.answer)
            except MessageError as error:
                outcome = Outcome(None, "DATA_LOSS", str(error))
            else:
                order.note_success(send.address)
                call.is_done = True
                return
        if not (send.waits and outcome.status == "DEADLINE_EXCEEDED"):
            # Otherwise there is still no connection, and the reason was told before.
            call.reasons[send.address] = outcome
        if is_replica_failure(outcome):
            # One that has too much to do now is not down.
            if outcome.status != "RESOURCE_EXHAUSTED":
                order.note_failure(send.address, now)
        elif outcome.shard_map:
            raise ShardMapMovedError(outcome)
        elif self._policy.raises_refusals and outcome.status not in (
            "NOT_FOUND",
            "FAILED_PRECONDITION",
        ):
            raise make_status_error(send.address, outcome)
