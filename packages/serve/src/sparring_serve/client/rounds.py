"""Calls shards in rounds. This module decides which attempts are made and processes their outcomes,
but does not access the network.

In the first round, each call goes to one replica of its shard; in the next round, failed calls go to
the next replica. Each attempt has a share of the remaining time, so that all replicas are tried
before the deadline. If all replicas of a shard failed for a temporary reason, such as too many
calls or a lost connection, they are called again after a pause. This is repeated until the
deadline. Lookups, pushes and saves have a different `RetryPolicy`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    "AT_THE_LEADER",
    "IMPATIENT",
    "ONE_RECONNECT",
    "PATIENT",
    "UNTIL_ANSWERED",
    "UNTIL_A_LEADER_ANSWERED",
    "Exchange",
    "RetryPolicy",
    "Rounds",
    "ShardMapMovedError",
]

Exchange = Generator[list[Send] | Pause, Iterable[Outcome], None]
"""Yields attempts to make concurrently and receives their outcomes; or yields a pause."""

_BUSY, _UNCONNECTED = frozenset({"RESOURCE_EXHAUSTED"}), frozenset({"UNAVAILABLE"})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Specifies when a replica is called again, and how long an attempt takes.

    Args:
        repeated: Statuses after which a replica is called again, until the deadline.
        repeated_once: Statuses after which it is called again once.
        awaited: Statuses after which the next attempt waits for a connection.
        num_spared: Number of attempts to reserve time for, in addition to the attempts at other
            replicas.
        shortest_seconds: Minimum time of an attempt, if that much time is left.
        breaks_circuits: Whether the `CircuitBreaker` skips replicas that do not reply.
        raises_refusals: Whether a rejected call ends all calls. Otherwise the others continue.
    """

    repeated: frozenset[str] = frozenset()
    repeated_once: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()
    num_spared: int = 0
    shortest_seconds: float = 0.0
    breaks_circuits: bool = True
    raises_refusals: bool = True

    def attempt_seconds(self, remaining: float, num_replicas: int) -> float:
        """Returns the timeout of one attempt.

        Args:
            remaining: Seconds until the deadline.
            num_replicas: Number of replicas that have not been tried, including this one.
        """
        share = remaining / (num_replicas + self.num_spared)
        return min(max(share, self.shortest_seconds), remaining)


PATIENT = RetryPolicy(repeated=_BUSY | _UNCONNECTED, awaited=_UNCONNECTED)
"""For lookups: waits for connections until the deadline."""

IMPATIENT = RetryPolicy(repeated=_BUSY, repeated_once=_UNCONNECTED)
"""For lookups with a fallback: retries once after a lost or failed connection."""

UNTIL_ANSWERED = RetryPolicy(
    repeated=REPLICA_FAILURES,
    awaited=REPLICA_FAILURES,
    num_spared=1,
    shortest_seconds=1.0,
    breaks_circuits=False,
    raises_refusals=False,
)
"""For pushes, which every shard must accept: reserves time for another attempt after a lost reply."""

AT_THE_LEADER = replace(PATIENT, awaited=frozenset(), breaks_circuits=False)
"""For lookups in tables that learn: only one of the replicas answers, and another one replaces it."""

UNTIL_A_LEADER_ANSWERED = replace(UNTIL_ANSWERED, awaited=frozenset())
"""For pushes to shards with several replicas."""

ONE_RECONNECT = RetryPolicy(
    repeated_once=_UNCONNECTED,
    awaited=_UNCONNECTED,
    raises_refusals=False,
)
"""For calls between shards: a shard that cannot be reached may be restarting."""


class ShardMapMovedError(Exception):
    """A server has another shard map: the lookup starts again with that map."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.message)
        self.outcome = outcome


@dataclass(slots=True, eq=False)
class _Call:
    number: int
    shard: int
    request: bytes
    replicas: list[str]
    """Replicas to call next, in this order."""
    last: str = ""
    """The replica that was called last."""
    reasons: dict[str, Outcome] = field(default_factory=dict)
    is_done: bool = False
    num_repeats: int = 0

    def repeat(self, policy: RetryPolicy) -> bool:
        """Returns whether replicas are called again."""
        if self.is_done or any(not is_replica_failure(each) for each in self.reasons.values()):
            return False  # a rejection is final
        statuses = policy.repeated if self.num_repeats else policy.repeated | policy.repeated_once
        self.replicas = [
            address for address, each in self.reasons.items() if each.status in statuses
        ]
        self.num_repeats += bool(self.replicas)
        return bool(self.replicas)

    def waits(self, address: str, policy: RetryPolicy) -> bool:
        """Returns whether an attempt waits for a connection."""
        before = self.reasons.get(address)
        return before is not None and before.status in policy.awaited


class Rounds:
    """The attempts of several calls.

    Args:
        method: Method of the service.
        calls: Shard and request of each call.
        accept: Receives the number of a call and its reply; raises `MessageError` if the reply is
            invalid.
        policy: Retry policy.
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
        self._seconds = 0.0
        self.num_failovers = 0

    def run(
        self,
        shards: Sequence[Sequence[str]],
        order: ReplicaOrder,
        clock: Callable[[], float],
        deadline: float,
        longest_seconds: float = 600.0,
    ) -> Exchange:
        """Runs all rounds.

        Args:
            shards: Addresses of the replicas of each shard.
            order: Order of replicas; it records failures.
            clock: Returns the time in seconds.
            deadline: Deadline on that clock.
            longest_seconds: Maximum timeout of one attempt that servers accept.

        Raises:
            SparringError: All replicas would reject one of the calls.
            ShardMapMovedError: The keys of a call belong to another shard.
        """
        for each in self._calls:
            each.replicas = order.of(shards[each.shard], clock())
        pause = pauses()
        self._seconds = deadline - clock()
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
        """Makes one attempt of each call that is due."""
        now = clock()
        sent: list[_Call] = []
        sends: list[Send] = []
        probed: set[str] = set()
        for call in due:
            address = call.replicas[0]
            if address in probed:
                continue  # wait for the outcome of the probe
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
        """Returns the numbers and errors of calls that no replica answered."""
        return [
            (number, make_replicas_error(each.shard, each.reasons, self._seconds))
            for number, each in enumerate(self._calls)
            if not each.is_done
        ]

    def outcomes(self) -> list[Outcome | None]:
        """Returns the failures of calls; None if the call succeeded or was not sent in time.

        If several replicas failed, the message lists all of them, and the status is a rejection if there
        is one.
        """
        return [None if each.is_done else _combined(each.reasons) for each in self._calls]

    def has_lost_version(self) -> bool:
        """Returns whether a replica does not have the requested version, or does not have it yet."""
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
            # Otherwise there is still no connection, and an earlier attempt recorded the reason.
            call.reasons[send.address] = outcome
        if is_replica_failure(outcome):
            # An overloaded replica is not down.
            if outcome.status != "RESOURCE_EXHAUSTED":
                order.note_failure(send.address, now)
        elif outcome.shard_map:
            raise ShardMapMovedError(outcome)
        elif self._policy.raises_refusals and outcome.status not in (
            "NOT_FOUND",
            "FAILED_PRECONDITION",
        ):
            raise make_status_error(send.address, outcome)


def _combined(reasons: Mapping[str, Outcome]) -> Outcome | None:
    if len(reasons) < 2:
        return next(iter(reasons.values()), None)
    chosen = min(reasons.values(), key=is_replica_failure)
    listed = "; ".join(
        f"{place}: {each.message or each.status}" for place, each in sorted(reasons.items())
    )
    return replace(chosen, message=listed)
