"""Threads that know how the other ranks are while the main thread is blocked inside gloo.

gloo's waits have drawbacks for us. A wait that times out closes all connections of this rank, so to
the other ranks it looks dead; and nothing but that ends a wait early. So no wait of ours times out
inside gloo. Instead:

    one thread for each peer   waits for the peer's last word (`Farewell`), and so learns at once when
                               the peer leaves, reports a failure, or its connection closes
    one timekeeper             looks now and then whether the main thread has waited too long

Whoever of them finds that the main thread waits in vain first tells the other ranks who failed,
and then ends the wait by letting a receive of its own time out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from sparring.collective.farewell import FAREWELL_TAG, Farewell, empty_farewell

__all__ = ["FOREVER", "Failure", "GroupWatch", "PostMessage"]

FOREVER = timedelta(days=365)

# How long a rank that lost a connection waits for somebody's word on who failed first, and how
# long after a last word what was sent before it may still come.
_GRACE_SECONDS = 0.1

# For last words to leave before the connections close.
_LINGER_SECONDS = 0.02

_BREAK_TAG = FAREWELL_TAG + 1

PostMessage = Callable[[torch.Tensor, int, int], dist.Work]
"""``(tensor, peer, tag) -> work`` starts a message."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Who failed, and what an error says was found."""

    culprit: int
    found: str


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What the main thread is blocked in."""

    peer: int
    limit: float


class GroupWatch:
    """Watches over the peers of one rank.

    Args:
        rank: of `world_size`.
        deadline_seconds: only for the words of an error; each wait brings its own limit.
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
        self._waiting: _Waiting | None = None
        self._failure: Failure | None = None
        self._is_closed = False
        self._left: dict[int, float] = {}
        self._lost: dict[int, float] = {}
        for peer in self._peers:
            # Posted here, so that a last word finds it however early it comes.
            message = torch.from_numpy(empty_farewell())
            work = receive(message, peer, FAREWELL_TAG)
            self._start(f"sparring-peer-{peer}", self._listen, peer, message, work)
        if self._peers:
            self._start("sparring-timekeeper", self._keep_time)

    # -- asked by works ---------------------------------------------------------------

    def begin_wait(self, peer: int, limit: float) -> None:
        """The main thread is about to block; `limit` is a time of `time.monotonic`."""
        self._waiting = _Waiting(peer, limit)

    def end_wait(self) -> None:
        self._waiting = None

    def trouble(self, peer: int, is_late: bool) -> Failure | None:
        """Why a wait for `peer` is in vain, if it is. Does not block."""
        with self._lock:
            left = self._left.get(peer)
        if self._failure is None:
            if left is not None and time.monotonic() > left + _GRACE_SECONDS:
                self.fail(Failure(peer, "it left the group"))
            elif is_late:
                found = f"nothing came within {self._deadline_seconds:g} s"
                self.fail(Failure(peer, found))
        return self._failure

    def explain(self, peer: int, error: Exception) -> Failure:
        """Who failed first, after gloo raised `error` in a wait for `peer`."""
        limit = time.monotonic() + _GRACE_SECONDS
        while self._failure is None and time.monotonic() < limit:
            time.sleep(0.005)
        if self._failure is None:
            with self._lock:
                first = min(self._lost, key=lambda each: self._lost[each], default=peer)
            reason = str(error).partition("\n")[0].partition(". This is typically")[0]
            self.fail(Failure(first, f"its connection failed ({reason})"))
        assert self._failure is not None
        return self._failure

    def fail(self, failure: Failure) -> None:
        """Remembers the first failure, and tells all others."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure
        if not self._is_closed:
            self._say(failure.culprit)

    def close(self) -> None:
        """Tells all others that this rank leaves."""
        if self._failure is None:
            self._say(None)
        self._is_closed = True

    # -- the threads ------------------------------------------------------------------

    def _start(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        # Daemons, because a peer that never ends would keep this process alive.
        threading.Thread(target=target, args=arguments, name=name, daemon=True).start()

    def _listen(self, peer: int, message: torch.Tensor, work: dist.Work) -> None:
        try:
            work.wait(FOREVER)
        # gloo has one class of error, for a closed connection too.
        except RuntimeError:
            with self._lock:
                self._lost[peer] = time.monotonic()
            return
        heard = Farewell.decoded(peer, message.numpy())
        with self._lock:
            self._left[peer] = time.monotonic()
        # A rank that others take for dead knows better.
        if heard.culprit is not None and heard.culprit != self._rank:
            self.fail(Failure(heard.culprit, heard.found))
            self._end_wait_early()

    def _keep_time(self) -> None:
        tick = min(self._deadline_seconds / 50, 0.05)
        while not self._is_closed and self._failure is None:
            time.sleep(tick)
            waiting = self._waiting
            if waiting is not None:
                self.trouble(waiting.peer, time.monotonic() >= waiting.limit)
        self._end_wait_early()

    def _end_wait_early(self) -> None:
        """Ends the wait that the main thread is in, and with it all connections."""
        waiting = self._waiting
        if waiting is None:
            return
        time.sleep(_LINGER_SECONDS)
        try:
            self._receive(torch.empty(1), waiting.peer, _BREAK_TAG).wait(timedelta(milliseconds=1))
        # That is what was wanted; or the connection is closed already, which also ends the wait.
        except RuntimeError:
            return

    def _say(self, culprit: int | None) -> None:
        """Sends the last word to all who may still listen."""
        message = torch.from_numpy(Farewell(self._rank, culprit).encoded())
        works = []
        for peer in self._peers:
            if peer == culprit or peer in self._left or peer in self._lost:
                continue
            try:
                works.append(self._send(message, peer, FAREWELL_TAG))
            except RuntimeError:
                # It is gone too, and its own thread notes that.
                with self._lock:
                    self._lost.setdefault(peer, time.monotonic())
        self._last_words = (message, works)
        if works:
            time.sleep(_LINGER_SECONDS)
