"""Retry policies of pushes and of calls between shards, where they differ from lookups."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sparring.errors import InvalidArgumentError
from sparring_serve.client.replicas import ReplicaOrder
from sparring_serve.client.rounds import (
    ONE_RECONNECT,
    PATIENT,
    UNTIL_A_LEADER_ANSWERED,
    UNTIL_ANSWERED,
    RetryPolicy,
    Rounds,
)
from sparring_serve.client.transport import Outcome, Send, run_steps
from sparring_serve.testing.faulty_transport import TransportClock

HANG = Outcome(None, "DEADLINE_EXCEEDED", "deadline")
CUT = Outcome(None, "UNAVAILABLE", "connection refused")
REFUSAL = Outcome(None, "INVALID_ARGUMENT", "no such table")
ANSWER = Outcome(b"answer")


class ScriptedTransport:
    """Gives the outcomes of a function of each attempt. A hang takes all of its time."""

    def __init__(self, outcome_of: Callable[[Send], Outcome]) -> None:
        self._outcome_of = outcome_of
        self.clock = TransportClock()
        self.sent: list[tuple[float, Send]] = []

    def exchange(self, sends: list[Send]) -> list[Outcome]:
        self.sent += [(self.clock.now, each) for each in sends]
        outcomes = [self._outcome_of(each) for each in sends]
        self.clock.now += max(
            each.timeout_seconds if outcome is HANG else 0.0
            for each, outcome in zip(sends, outcomes, strict=True)
        )
        return outcomes

    def pause(self, seconds: float) -> None:
        self.clock.now += seconds

    def close(self) -> None: ...


def run(
    policy: RetryPolicy, outcome_of: Callable[[Send], Outcome], num_shards: int = 1
) -> tuple[ScriptedTransport, list[Outcome | None]]:
    """Runs a call to the only replica of each shard for at most 8 s."""
    transport = ScriptedTransport(outcome_of)
    calls = [(shard, b"") for shard in range(num_shards)]
    rounds = Rounds("Push", calls, lambda *_: None, policy)
    shards = [(f"shard:{shard}",) for shard in range(num_shards)]
    steps = rounds.run(shards, ReplicaOrder(), transport.clock, 8.0)
    run_steps(steps, transport)
    return transport, rounds.outcomes()


def test_a_push_without_an_answer_is_resent_until_its_deadline() -> None:
    transport, outcomes = run(UNTIL_ANSWERED, lambda _: HANG)
    times, sends = zip(*transport.sent, strict=True)
    # Half of the remaining time, at least a second, so that a lost answer leaves time for a retry.
    assert [round(each.timeout_seconds, 1) for each in sends[:3]] == [4.0, 2.0, 1.0]
    assert all(each.timeout_seconds >= min(1.0, 8.0 - at) for at, each in transport.sent)
    assert transport.clock.now == pytest.approx(8.0)
    # It is sent immediately after a hang: no circuit opens.
    assert times[1] - 4.0 <= 0.01
    assert [each.waits for each in sends] == [False] + [True] * (len(sends) - 1)
    assert outcomes == [HANG]


@pytest.mark.parametrize("policy", [UNTIL_ANSWERED, ONE_RECONNECT])
def test_a_rejection_by_one_shard_does_not_affect_calls_to_the_others(policy: RetryPolicy) -> None:
    def outcome_of(send: Send) -> Outcome:
        if send.address == "shard:0":
            return REFUSAL
        return ANSWER if send.waits else CUT

    transport, outcomes = run(policy, outcome_of, num_shards=2)
    assert outcomes == [REFUSAL, None]
    assert [each.address for _, each in transport.sent] == ["shard:0", "shard:1", "shard:1"]
    with pytest.raises(InvalidArgumentError, match="no such table"):
        run(PATIENT, outcome_of, num_shards=2)


@pytest.mark.parametrize(("outcome", "waits"), [(CUT, [False, True]), (HANG, [False])])
def test_a_shard_calls_another_again_only_to_reconnect_and_only_once(
    outcome: Outcome, waits: list[bool]
) -> None:
    transport, outcomes = run(ONE_RECONNECT, lambda _: outcome)
    assert [each.waits for _, each in transport.sent] == waits
    assert outcomes == [outcome]


@pytest.mark.parametrize("leader", [Outcome(None, "UNAVAILABLE", "no follower"), REFUSAL])
def test_a_failed_push_reports_the_reasons_of_all_replicas(leader: Outcome) -> None:
    transport = ScriptedTransport(lambda send: CUT if send.address == "a" else leader)
    rounds = Rounds("Push", [(0, b"")], lambda *_: None, UNTIL_A_LEADER_ANSWERED)
    run_steps(rounds.run([("a", "b")], ReplicaOrder(), transport.clock, 8.0), transport)
    message = f"a: connection refused; b: {leader.message}"
    assert rounds.outcomes() == [Outcome(None, leader.status, message)]
