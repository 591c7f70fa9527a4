"""Requests are processed and served in the order of hops, independent of the order of arrival."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from sparring.errors import PeerFailure
from sparring.exchange.messenger import Buffers, MessageKind
from sparring.exchange.request_replies import IncomingRequest, OutgoingRequest, RequestReplies
from sparring.runtime.threads import InlineExecutor


@dataclass
class Moving:
    buffer: Any
    ready_at: int


class ScriptedLink:
    """Messages arrive at the ticks that a test specifies; a poll without progress is a tick."""

    trace = None

    def __init__(self, answer_at: dict[int, int], message_at: dict[int, int]) -> None:
        self.answer_at, self.message_at = answer_at, message_at
        self.now = 0
        self.sent: list[tuple[MessageKind, int]] = []

    def send(self, kind: MessageKind, buffer: Any, peer: int, _: str) -> Moving:
        self.sent.append((kind, peer))
        return Moving(buffer, self.now)

    def receive(self, kind: MessageKind, buffer: Any, peer: int, _: str) -> Moving:
        buffer[:] = peer
        at = self.answer_at if kind is MessageKind.ROWS else self.message_at
        return Moving(buffer, at[peer])

    def is_done(self, transfer: Moving) -> bool:
        if transfer.ready_at > 99:
            raise PeerFailure("gone", rank=0, operation="pull")
        return transfer.ready_at <= self.now

    def pause(self, _: Any, *, has_progressed: bool) -> None:
        self.now += not has_progressed
        assert self.now < 50, "it never ends"


def made(messenger: Any, in_flight: int) -> RequestReplies:
    return RequestReplies(
        messenger, InlineExecutor(), Buffers(), in_flight, MessageKind.KEYS, "find"
    )


def asked(peer: int, seen: list[str]) -> OutgoingRequest:
    def take(answer: Any) -> None:
        seen.append(f"take {answer[0]}")

    return OutgoingRequest(peer, "", 8, lambda message: message.fill(0), 8, take)


def served(peer: int, seen: list[str], *, fails: bool = False) -> IncomingRequest:
    def serve(message: Any, answer: Any) -> None:
        seen.append(f"serve {message[0]}")
        if fails:
            raise OSError("the disk is gone")
        answer.fill(1)

    return IncomingRequest(peer, "", 8, serve, 8, lambda answer: answer.fill(2))


@pytest.mark.parametrize("in_flight", [1, 2, 8])
def test_answers_and_services_are_in_the_order_of_hops(in_flight: int) -> None:
    seen: list[str] = []
    messenger = ScriptedLink({1: 7, 2: 1, 3: 3}, {3: 5, 2: 9, 1: 1})
    questions = iter([asked(peer, seen) for peer in (1, 2, 3)])
    services = iter([served(peer, seen) for peer in (3, 2, 1)])
    error = made(messenger, in_flight).run(questions, services, lambda: seen.append("own"))
    assert error is None
    assert seen[0] == "own"
    assert [each for each in seen if "take" in each] == ["take 1", "take 2", "take 3"]
    assert [each for each in seen if "serve" in each] == ["serve 3", "serve 2", "serve 1"]
    assert [peer for kind, peer in messenger.sent if kind is MessageKind.ROWS] == [3, 2, 1]


def test_a_service_that_fails_is_answered_and_the_others_are_served() -> None:
    seen: list[str] = []
    messenger = ScriptedLink({1: 0}, {2: 0, 1: 1})
    services = iter([served(2, seen, fails=True), served(1, seen)])
    error = made(messenger, 2).run(iter([asked(1, seen)]), services, lambda: None)
    assert isinstance(error, OSError)
    assert seen == ["take 1", "serve 2", "serve 1"]


def test_an_own_failure_precedes_a_rank_that_left_because_of_it() -> None:
    seen: list[str] = []
    messenger = ScriptedLink({}, {2: 0, 1: 100})
    services = iter([served(2, seen, fails=True), served(1, seen)])
    assert isinstance(made(messenger, 1).run(iter([]), services, lambda: None), OSError)
    messenger = ScriptedLink({}, {1: 100})
    with pytest.raises(PeerFailure):
        made(messenger, 1).run(iter([]), iter([served(1, seen)]), lambda: None)
