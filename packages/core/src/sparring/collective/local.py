"""Collective of ranks that are threads of one process, for tests, simulation and a single rank."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field

from sparring.contracts.ranks.collective import Array, Collective, Work, WorkContext
from sparring.contracts.ranks.notices import Failure, Inquiry, Notice, NoticeKind
from sparring.errors import InvalidArgumentError, PeerFailure, SparringError

__all__ = ["LocalCollective", "LocalGroup"]


@dataclass(slots=True)
class _Mailbox:
    """Messages from one rank to another with one tag, or receives that wait for them; at least one
    of the two queues is empty."""

    messages: deque[Array] = field(default_factory=deque)
    waiting: deque[_ReceiveWork] = field(default_factory=deque)


class LocalGroup:
    """A group of `world_size` ranks in one process, which exchange messages through shared mailboxes.

    Args:
        world_size: number of ranks.
        deadline_seconds: maximum duration of each wait.

    Raises:
        InvalidArgumentError: `world_size` is below 1.

    Examples:
        >>> import numpy as np
        >>> from sparring import LocalGroup
        >>> group = LocalGroup(2)
        >>> first, second = group.join(0), group.join(1)
        >>> buffer = np.zeros(3)
        >>> first.send(np.ones(3), 1).wait(), second.receive(buffer, 0).wait(), buffer.tolist()
        (None, None, [1.0, 1.0, 1.0])
    """

    def __init__(self, world_size: int, *, deadline_seconds: float = 60.0) -> None:
        if world_size < 1:
            raise InvalidArgumentError(
                f"local group: world_size must be at least 1, found {world_size}; raise it"
            )
        self.world_size = world_size
        self.deadline_seconds = deadline_seconds
        self.changed = threading.Condition()
        # (source, destination, tag) -> messages, or receives that wait for them, in their order
        self.boxes: dict[tuple[int, int, int], _Mailbox] = defaultdict(_Mailbox)
        # rank that no longer takes part -> reason why a wait for it fails
        self.gone: dict[int, Failure] = {}
        # waiting rank -> rank that it waits for
        self.waiting: dict[int, int] = {}

    def join(self, rank: int) -> LocalCollective:
        """Returns the collective of one rank, for use on the thread of that rank.

        Args:
            rank: ``0 <= rank < world_size``.

        Raises:
            InvalidArgumentError: the group has no such rank.
        """
        return LocalCollective(self, rank)


class _SendWork(Work):
    """A send, which is always complete because the message is copied."""

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return


class _ReceiveWork(Work):
    def __init__(self, owner: LocalCollective, buffer: Array, source: int) -> None:
        self._owner = owner
        self._buffer = buffer
        self._source = source
        self._context: WorkContext = owner.context
        self._limit: float | None = None
        self._is_done = False
        self._error: SparringError | None = None

    def done(self) -> bool:
        with self._owner.group.changed:
            return self._poll()

    def wait(self) -> None:
        group = self._owner.group
        with group.changed:
            group.waiting[self._owner.rank] = self._source
            while not self._poll():
                group.changed.wait(max(self._remaining(), 0.0))
            del group.waiting[self._owner.rank]
            if self._error is not None:
                raise self._error

    def take(self, message: Array) -> None:
        """Fills the buffer. The caller has the lock of the group."""
        if message.nbytes != self._buffer.nbytes:
            self._error = InvalidArgumentError(
                f"receive from rank {self._source}: the buffer has {self._buffer.nbytes} bytes, the "
                f"message {message.nbytes}; both sides must agree on the size"
            )
            return
        self._buffer.reshape(-1)[...] = message.view(self._buffer.dtype)
        self._is_done = True

    def _poll(self) -> bool:
        """Returns whether the message has arrived or the wait has failed. The caller has the lock."""
        if self._is_done or self._error is not None:
            return True
        if self._source in self._owner.group.gone:
            self._fail(self._owner.find_failure(self._source))
        elif self._remaining() <= 0:
            inquiry = Inquiry(self._owner.rank, self._owner.deadline_seconds)
            for rank, peer in self._owner.group.waiting.items():
                inquiry.note(rank, Notice(NoticeKind.ANSWER, peer))
            for rank, failure in self._owner.group.gone.items():
                inquiry.note(rank, Notice(NoticeKind.ANSWER, failure.culprit))
            self._fail(inquiry.verdict(self._source))
        return self._error is not None

    def _fail(self, failure: Failure) -> None:
        self._error = self._owner.failed(self._source, failure, self._context)

    def _remaining(self) -> float:
        if self._limit is None:
            self._limit = time.monotonic() + self._owner.deadline_seconds
        return self._limit - time.monotonic()


class LocalCollective(Collective):
    """One rank of a `LocalGroup`."""

    def __init__(self, group: LocalGroup, rank: int) -> None:
        super().__init__(rank, group.world_size, deadline_seconds=group.deadline_seconds)
        self.group = group

    def close(self) -> None:
        self._is_closed = True
        self._report(Failure.left(self.rank))

    def find_failure(self, peer: int) -> Failure:
        """Returns why a wait for a rank that no longer takes part fails. The caller has the lock."""
        failure = self.group.gone[peer]
        # If others report this rank as the culprit, it is nevertheless alive, so report that `peer`
        # left.
        return Failure.left(peer) if failure.culprit == self.rank else failure

    def failed(self, peer: int, failure: Failure, context: WorkContext) -> PeerFailure:
        """Notifies the other ranks of a failed wait for `peer`, and returns the error to raise."""
        self._report(Failure.from_report(self.rank, failure.notice()))
        return self.peer_failure(peer, failure.found, context, culprit=failure.culprit)

    def _give_up_impl(self, culprit: int) -> None:
        self._report(Failure.from_report(self.rank, Failure.own(culprit).notice()))

    def _report(self, failure: Failure) -> None:
        with self.group.changed:
            self.group.gone.setdefault(self.rank, failure)
            self.group.changed.notify_all()

    def _send_impl(self, buffer: Array, destination: int, tag: int) -> Work:
        with self.group.changed:
            if destination in self.group.gone:
                raise self.failed(destination, self.find_failure(destination), self.context)
            box = self.group.boxes[(self.rank, destination, tag)]
            message = buffer.reshape(-1).view("uint8")
            if box.waiting:
                box.waiting.popleft().take(message)
                self.group.changed.notify_all()
            else:
                box.messages.append(message.copy())
        return _SendWork()

    def _receive_impl(self, buffer: Array, source: int, tag: int) -> Work:
        receiving = _ReceiveWork(self, buffer, source)
        with self.group.changed:
            box = self.group.boxes[(source, self.rank, tag)]
            if box.messages:
                receiving.take(box.messages.popleft())
            else:
                box.waiting.append(receiving)
        return receiving
