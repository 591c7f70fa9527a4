"""Sends and receives over a gloo group."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque

import torch
import torch.distributed as dist

from sparring.contracts import Collective, Failure, Work, WorkContext
from sparring.errors import PeerFailure
from sparring_torch.distributed.group_watch import NO_TIMEOUT, GroupWatch

__all__ = ["Channel", "GroupWork"]

_POLL_SECONDS = 0.02
_END_SECONDS = 2.0


class Channel:
    """Messages of one tag in one direction between this rank and one peer, in order.

    gloo cannot test whether a message has arrived; it can only wait. Therefore the first
    `GroupWork.done` of a channel starts a thread that waits. A channel whose works are only waited
    for needs no thread.
    """

    def __init__(self) -> None:
        # Works that nothing has waited for yet; they keep their buffers alive.
        self.pending: deque[GroupWork] = deque()
        self._queue: queue.SimpleQueue[GroupWork | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def add(self, work: GroupWork) -> None:
        while self.pending and self.pending[0].is_settled:
            self.pending.popleft()
        self.pending.append(work)

    def hand_over(self, last: GroupWork) -> None:
        """Lets the thread wait for `last` and all works before it."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._wait_for_works, name="sparring-channel", daemon=True
            )
            self._thread.start()
        while self.pending:
            work = self.pending.popleft()
            if not work.is_settled:
                work.is_handed_over = True
                self._queue.put(work)
            if work is last:
                return

    def close(self) -> None:
        """Ends the thread; its connections must already be closed."""
        self._queue.put(None)
        if self._thread is not None:
            self._thread.join(_END_SECONDS)

    def _wait_for_works(self) -> None:
        while (work := self._queue.get()) is not None:
            work.wait_on_thread()


class GroupWork(Work):
    """One message in flight.

    Args:
        owner: the collective, which names the ranks in errors.
        watch: knows which ranks failed.
        channel: the channel with the messages before this one.
        in_flight: gloo's work.
        tensor: the buffer as a tensor.
        peer: the other rank.
    """

    def __init__(
        self,
        owner: Collective,
        watch: GroupWatch,
        channel: Channel,
        in_flight: dist.Work,
        *,
        tensor: torch.Tensor,
        peer: int,
    ) -> None:
        self._owner = owner
        self._watch = watch
        self._channel = channel
        self._under_way = in_flight
        self._tensor = tensor
        self._peer = peer
        self._context: WorkContext = owner.context
        self._limit: float | None = None
        self._error: PeerFailure | None = None
        self._is_done = False
        self._thread_error: RuntimeError | None = None
        self._thread_ended = threading.Event()
        self.is_handed_over = False
        channel.add(self)

    @property
    def is_settled(self) -> bool:
        return self._is_done or self._error is not None

    def done(self) -> bool:
        if self.is_settled:
            return True
        if not self.is_handed_over:
            self._channel.hand_over(self)
        return self._poll()

    def wait(self) -> None:
        if not self.is_settled:
            if self.is_handed_over:
                self._watch.begin_wait(self._peer, self._deadline())
                while not self._poll():
                    self._thread_ended.wait(_POLL_SECONDS)
                self._watch.end_wait()
            else:
                self._wait_here()
        if self._error is not None:
            raise self._error

    def wait_on_thread(self) -> None:
        """Runs on the channel's thread."""
        try:
            self._under_way.wait(NO_TIMEOUT)
        except RuntimeError as error:
            self._thread_error = error
        self._thread_ended.set()

    def _wait_here(self) -> None:
        self._watch.begin_wait(self._peer, self._deadline())
        try:
            self._under_way.wait(NO_TIMEOUT)
        except RuntimeError as error:
            self._fail(self._watch.explain(self._peer, error))
        else:
            self._is_done = True
        finally:
            self._watch.end_wait()

    def _poll(self) -> bool:
        if self._thread_ended.is_set():
            if self._thread_error is None:
                self._is_done = True
            else:
                self._fail(self._watch.explain(self._peer, self._thread_error))
            return True
        failure = self._watch.poll_failure(self._peer, self._deadline())
        if failure is not None:
            self._fail(failure)
        return failure is not None

    def _deadline(self) -> float:
        if self._limit is None:
            self._limit = time.monotonic() + self._owner.deadline_seconds
        return self._limit

    def _fail(self, failure: Failure) -> None:
        self._error = self._owner.peer_failure(
            self._peer, failure.found, self._context, culprit=failure.culprit
        )
