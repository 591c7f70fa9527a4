"""Received messages and pending receives, which readers and the caller's thread share."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from sparring.contracts import NO_RANK, Array, Failure, Inquiry, Notice, Work, WorkContext
from sparring.errors import InvalidArgumentError, PeerFailure

__all__ = ["Mailboxes", "PendingReceive", "CompletedSend"]


@dataclass(slots=True)
class _Mailbox:
    """Messages and pending receives of one sender and tag; at most one of the two is not empty."""

    messages: deque[Array] = field(default_factory=deque)
    receiving: deque[PendingReceive] = field(default_factory=deque)


class Mailboxes:
    """Messages and notices that this rank received. Every method takes the lock."""

    def __init__(self, rank: int, deadline_seconds: float) -> None:
        self.deadline_seconds = deadline_seconds
        self.changed = threading.Condition()
        self.gone: dict[int, Failure] = {}
        """Rank → reason why waiting for it fails."""
        self.inquiry = Inquiry(rank, deadline_seconds)
        self.asked = NO_RANK, 0.0
        """Rank that this one waits for, and the time of its last poll."""
        self._boxes: dict[tuple[int, int], _Mailbox] = defaultdict(_Mailbox)

    def put(self, source: int, tag: int, message: Array) -> None:
        """Stores a received message, or passes it to a pending receive."""
        with self.changed:
            box = self._boxes[source, tag]
            if box.receiving:
                box.receiving.popleft().take(message)
            else:
                box.messages.append(message)
            self.changed.notify_all()

    def post(self, source: int, tag: int, receiving: PendingReceive) -> None:
        """Adds a receive, which gets the first message that no earlier receive got."""
        with self.changed:
            box = self._boxes[source, tag]
            if box.messages:
                receiving.take(box.messages.popleft())
            else:
                box.receiving.append(receiving)

    def record_failure(self, peer: int, failure: Failure) -> Failure:
        """Records why waits for `peer` fail; returns the first recorded reason."""
        with self.changed:
            self.changed.notify_all()
            return self.gone.setdefault(peer, failure)

    def record_answer(self, peer: int, notice: Notice) -> None:
        """Records which rank `peer` is waiting for."""
        with self.changed:
            self.inquiry.note(peer, notice)

    def awaited_rank(self) -> int:
        """Returns the rank that this rank is waiting for. Other ranks request it."""
        rank, when = self.asked
        return rank if time.monotonic() - when < 0.1 * self.deadline_seconds else NO_RANK


class PendingReceive(Work):
    """A receive in progress."""

    def __init__(
        self,
        mailboxes: Mailboxes,
        fail: Callable[[int, Failure, WorkContext], PeerFailure],
        ask: Callable[[], None],
        buffer: Array,
        source: int,
        context: WorkContext,
    ) -> None:
        self._mailboxes, self._fail, self._ask = mailboxes, fail, ask
        self._buffer, self._source, self._context = buffer, source, context
        self._limit: float | None = None
        self._is_done = False
        self._error: InvalidArgumentError | PeerFailure | None = None

    def done(self) -> bool:
        with self._mailboxes.changed:
            return self._poll()

    def wait(self) -> None:
        changed = self._mailboxes.changed
        with changed:
            while not self._poll():
                changed.wait(self._mailboxes.deadline_seconds / 100)
        if self._error is not None:
            raise self._error

    def take(self, message: Array) -> None:
        """Fills the buffer. The caller must hold the lock."""
        if message.nbytes != self._buffer.nbytes:
            self._error = InvalidArgumentError(
                f"receive from rank {self._source}: the buffer has {self._buffer.nbytes} bytes, the "
                f"message {message.nbytes}; both sides must agree on the size"
            )
            return
        self._buffer.reshape(-1)[...] = message.view(self._buffer.dtype)
        self._is_done = True

    def _poll(self) -> bool:
        """Returns whether the receive is done or failed. The caller must hold the lock."""
        if self._is_done or self._error is not None:
            return True
        boxes, now = self._mailboxes, time.monotonic()
        self._limit = self._limit or now + boxes.deadline_seconds
        boxes.asked = self._source, now
        failure = boxes.gone.get(self._source)
        if failure is None and now >= self._limit:
            failure = boxes.inquiry.verdict(self._source)
        elif failure is None and boxes.inquiry.is_due(self._limit, now):
            self._ask()
        if failure is not None:
            self._error = self._fail(self._source, failure, self._context)
        if self._error is not None:
            boxes.asked = NO_RANK, 0.0
        return self._error is not None


class CompletedSend(Work):
    """A send whose data the system has copied, so its buffer can be reused."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return
