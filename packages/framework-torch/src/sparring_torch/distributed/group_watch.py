"""Threads that watch the other ranks while the main thread is blocked in gloo.

If a wait times out in gloo, gloo closes all connections of this rank, so that it looks dead to the other
ranks. However, only a timeout ends a wait early. Therefore no wait of this module times out in gloo.
Instead:

    one thread per peer   waits for the peer's notices (`sparring.contracts.ranks.notices`), replies to
                          its questions, and notices immediately if the peer leaves, reports a failure,
                          or its connection closes
    one timekeeper        checks periodically whether the main thread has waited too long

If a thread finds that the main thread waits in vain, it first reports to the other ranks which rank
failed, and then ends the wait by letting a separate receive time out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from sparring.contracts import (
    NO_RANK,
    NOTICE_TAG,
    Failure,
    Inquiry,
    Notice,
    NoticeKind,
    empty_notice,
)

__all__ = ["NO_TIMEOUT", "GroupWatch", "PostMessage"]

NO_TIMEOUT = timedelta(days=365)

# How long a rank that lost a connection waits for a notice about the first failure, and how long
# after a peer's last notice its earlier messages may still arrive.
_GRACE_SECONDS = 0.1

# Time for last notices to be sent before connections close.
_LINGER_SECONDS = 0.02

_RECENT_SECONDS = 0.25

# How long threads may take to end after their connections are closed.
_END_SECONDS = 2.0

_BREAK_TAG = NOTICE_TAG + 1

PostMessage = Callable[[torch.Tensor, int, int], dist.Work]
"""``(tensor, peer, tag) -> work``: starts a message."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """The wait in which the main thread is blocked."""

    peer: int
    limit: float


class GroupWatch:
    """Watches the peers of one rank.

    Args:
        rank: this rank of `world_size`.
        deadline_seconds: maximum duration of a wait.
        send: starts a message to a peer.
        receive: starts a message from a peer.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        deadline_seconds: float,
        *,
        send: PostMessage,
        receive: PostMessage,
    ) -> None:
        self._rank = rank
        self._peers = [peer for peer in range(world_size) if peer != rank]
        self._deadline_seconds = deadline_seconds
        self._send, self._receive = send, receive
        self._lock = threading.Lock()
        self._waiting: _Wait | None = None
        self._last_poll = (NO_RANK, 0.0)
        self._failure: Failure | None = None
        self._is_closed = False
        # rank -> when its last notice arrived, and why it left
        self._gone: dict[int, tuple[float, Failure]] = {}
        self._lost: dict[int, float] = {}
        self._threads: list[threading.Thread] = []
        self._inquiry = Inquiry(rank, deadline_seconds)
        # gloo loses a message if its work is freed before the message is sent.
        self._sent: deque[tuple[torch.Tensor, dist.Work]] = deque(maxlen=8 * world_size)
        for peer in self._peers:
            # Posted here, so that no notice arrives too early.
            message = torch.from_numpy(empty_notice())
            work = receive(message, peer, NOTICE_TAG)
            self._start(f"sparring-peer-{peer}", self._listen, peer, message, work)
        if self._peers:
            self._start("sparring-timekeeper", self._watch_deadline)

    # -- called by works --------------------------------------------------------------

    def begin_wait(self, peer: int, limit: float) -> None:
        """Records that the main thread is about to block; `limit` is in `time.monotonic` time."""
        self._waiting = _Wait(peer, limit)

    def end_wait(self) -> None:
        self._waiting = None

    def note_wait(self, peer: int) -> float:
        """Records that the main thread polls for a message of `peer`, and returns the time."""
        now = time.monotonic()
        self._last_poll = (peer, now)
        return now

    def poll_failure(self, peer: int, limit: float) -> Failure | None:
        """Returns why a wait for `peer` until `limit` is in vain, or None. Does not block."""
        now = self.note_wait(peer)
        with self._lock:
            gone_at, reason = self._gone.get(peer, (now, None))
            is_due = self._failure is None and self._inquiry.is_due(limit, now)
        if self._failure is None:
            if reason is not None and now > gone_at + _GRACE_SECONDS:
                self.fail(reason)
            elif now >= limit:
                asked = self._list_live_peers()
                with self._lock:
                    failure = self._inquiry.verdict(peer, asked)
                self.fail(failure)
            elif is_due:
                self._send_notice(
                    Notice(NoticeKind.QUESTION, round=self._inquiry.round), self._list_live_peers()
                )
        return self._failure

    def explain(self, peer: int, error: Exception) -> Failure:
        """Returns the first failure, after gloo raised `error` in a wait for `peer`."""
        limit = time.monotonic() + _GRACE_SECONDS
        while self._failure is None and time.monotonic() < limit:
            time.sleep(0.005)
        if self._failure is None:
            self.fail(self._connection_failure(peer, error))
        assert self._failure is not None
        return self._failure

    def _connection_failure(self, peer: int, error: Exception) -> Failure:
        with self._lock:
            if peer in self._gone:
                return self._gone[peer][1]
            first = min(self._lost, key=lambda each: self._lost[each], default=peer)
        reason = str(error).partition("\n")[0].partition(". This is typically")[0]
        return Failure(first, f"its connection failed ({reason})")

    def fail(self, failure: Failure) -> None:
        """Records the first failure, and reports it to all others."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure
        if not self._is_closed:
            listeners = [peer for peer in self._list_live_peers() if peer != failure.culprit]
            self._send_notice(failure.notice(), listeners)

    def close(self) -> None:
        """Reports to all others that this rank leaves, closes connections, and ends the threads.

        A thread that returns from gloo while the interpreter ends would abort the process.
        """
        if self._failure is None:
            self._send_notice(Notice(NoticeKind.LEFT), self._list_live_peers())
        self._is_closed = True
        if self._peers:
            time.sleep(_LINGER_SECONDS)
        for peer in self._peers:
            self._close_connections(peer)
        limit = time.monotonic() + _END_SECONDS
        for thread in self._threads:
            thread.join(max(limit - time.monotonic(), 0.0))

    # -- the threads ------------------------------------------------------------------

    def _start(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        # Daemons, so that a thread that cannot be ended does not keep the process alive.
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self, peer: int, message: torch.Tensor, work: dist.Work) -> None:
        try:
            while True:
                work.wait(NO_TIMEOUT)
                notice = Notice.decode(message.numpy())
                if notice.kind in (NoticeKind.LEFT, NoticeKind.FAILED):
                    break
                work = self._receive(message, peer, NOTICE_TAG)
                self._answer(peer, notice)
        # gloo has only one class of error, also for a closed connection.
        except RuntimeError:
            with self._lock:
                self._lost.setdefault(peer, time.monotonic())
            return
        failure = Failure.from_notice(peer, notice, self._rank)
        with self._lock:
            self._gone[peer] = time.monotonic(), failure
        if not failure.has_left:
            self.fail(failure)
            self._end_wait_early()

    def _answer(self, peer: int, notice: Notice) -> None:
        if notice.kind is NoticeKind.ANSWER:
            with self._lock:
                self._inquiry.note(peer, notice)
            return
        self._send_notice(
            Notice(NoticeKind.ANSWER, self._find_awaited_rank(), notice.round), [peer]
        )

    def _find_awaited_rank(self) -> int:
        waiting, (looked_at, at) = self._waiting, self._last_poll
        if waiting is not None:
            return waiting.peer
        # A rank that polls repeatedly for a message waits, too.
        return looked_at if time.monotonic() - at < _RECENT_SECONDS else NO_RANK

    def _watch_deadline(self) -> None:
        tick = min(self._deadline_seconds / 50, 0.05)
        while not self._is_closed and self._failure is None:
            time.sleep(tick)
            waiting = self._waiting
            if waiting is not None:
                self.poll_failure(waiting.peer, waiting.limit)
        self._end_wait_early()

    def _end_wait_early(self) -> None:
        """Ends the main thread's wait, and with it all connections."""
        waiting = self._waiting
        if waiting is None:
            return
        time.sleep(_LINGER_SECONDS)
        self._close_connections(waiting.peer)

    def _close_connections(self, peer: int) -> None:
        """Closes the connection to `peer`, and with it all others."""
        try:
            self._receive(torch.empty(1), peer, _BREAK_TAG).wait(timedelta(milliseconds=1))
        # This is expected, or the connection is already closed.
        except RuntimeError:
            return

    def _list_live_peers(self) -> list[int]:
        """Returns the ranks that may still listen."""
        with self._lock:
            return [
                peer for peer in self._peers if peer not in self._gone.keys() | self._lost.keys()
            ]

    def _send_notice(self, notice: Notice, peers: list[int]) -> None:
        message = torch.from_numpy(notice.encode())
        for peer in peers:
            try:
                self._sent.append((message, self._send(message, peer, NOTICE_TAG)))
            except RuntimeError:
                # The peer is gone, too.
                with self._lock:
                    self._lost.setdefault(peer, time.monotonic())
