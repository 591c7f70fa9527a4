"""One rank of a group whose ranks on one host communicate through shared memory.

Messages advance only while they are polled, as with MPI. The calls of an endpoint release the GIL, and a
wait is one call unless a notice arrives. Messages to ranks on other hosts, and messages in device memory,
are passed to another collective.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from sparring.contracts import (
    NOTICE_TAG,
    Array,
    Collective,
    Failure,
    Inquiry,
    Notice,
    NoticeKind,
    PolledWork,
    Work,
    WorkContext,
)
from sparring.errors import InvalidArgumentError, PeerFailure, SparringError
from sparring_shm._native import Endpoint, Request

__all__ = ["ShmCollective"]

# Maximum time of a native wait. Between two of them, questions of other ranks and signals are handled,
# and messages to other hosts advance.
_WAIT_SECONDS, _WAIT_SECONDS_BETWEEN_HOSTS = 0.05, 0.001


class ShmCollective(Collective):
    """One rank of a group.

    Args:
        between_hosts: connection to all ranks; closed with this collective.
        endpoint: connection to the ranks of this host.
        local: the ranks of this host, in the order of their indexes in `endpoint`.
        kept: connections and file descriptors that `endpoint` uses; closed with this collective.
    """

    within_host = "shm"

    def __init__(
        self,
        between_hosts: Collective,
        endpoint: Endpoint,
        local: Sequence[int],
        kept: ExitStack,
    ) -> None:
        super().__init__(
            between_hosts.rank,
            between_hosts.world_size,
            deadline_seconds=between_hosts.deadline_seconds,
        )
        self.devices = between_hosts.devices
        self.hosts = between_hosts.hosts
        self.endpoint = endpoint
        self._between_hosts = between_hosts
        self._ranks = list(local)
        self._local = {rank: index for index, rank in enumerate(local)}
        self._kept = kept
        self._made_in = os.getpid()
        self._has_other_hosts = len(local) < self.world_size
        longest = _WAIT_SECONDS_BETWEEN_HOSTS if self._has_other_hosts else _WAIT_SECONDS
        self._wait_seconds = min(longest, self.deadline_seconds / 50)
        # Keeps buffers alive, because other processes read them until the message is complete.
        self._under_way: dict[int, _ShmWork] = {}
        self._failure: Failure | None = None
        self._gone: dict[int, Failure] = {}
        self._inquiry = Inquiry(self.rank, self.deadline_seconds)

    def send(
        self, buffer: Any, destination: int, tag: int = 0, *, stream: int | None = None
    ) -> Work:
        """As in the contract; buffers in device memory are sent by the other collective."""
        if isinstance(buffer, np.ndarray) or len(self.devices) == 1:
            return super().send(buffer, destination, tag)
        self._check_message("send to", destination, tag)
        return self._relay(self._other().send(buffer, destination, tag, stream=stream), destination)

    def receive(self, buffer: Any, source: int, tag: int = 0, *, stream: int | None = None) -> Work:
        """As in the contract; buffers in device memory are received by the other collective."""
        if isinstance(buffer, np.ndarray) or len(self.devices) == 1:
            return super().receive(buffer, source, tag)
        self._check_message("receive from", source, tag)
        return self._relay(self._other().receive(buffer, source, tag, stream=stream), source)

    def close(self) -> None:
        """Leaves the group and notifies the others, without waiting for operations in progress."""
        if self._is_closed:
            return
        # In a forked process, the rings belong to the rank, which continues.
        if os.getpid() == self._made_in:
            if self._failure is None:
                self.endpoint.progress()
                self._send_notices(Notice(NoticeKind.LEFT), self._others())
            self.endpoint.close()
            self._between_hosts.close()
        self._is_closed = True
        self._kept.close()

    # -- for works --------------------------------------------------------------------

    def wait_for(self, request: Request, peer: int) -> None:
        """Waits for some milliseconds until a request is complete or a notice arrives."""
        if self._has_other_hosts:
            self._between_hosts.progress(peer)
        self.endpoint.wait(request, self._wait_seconds)

    def forget(self, work: _ShmWork) -> None:
        self._under_way.pop(id(work), None)

    def wait_failure(
        self, peer: int, context: WorkContext, limit: float, now: float
    ) -> PeerFailure | None:
        """Returns the error if a wait for a rank of this host cannot succeed, and notifies the other
        ranks; otherwise returns None."""
        if self._failure is None and not self._is_closed:
            self.handle_events(peer)
        if self._failure is None:
            if self._is_closed:
                self._failure = Failure.left(self.rank)
            elif peer in self._gone:
                self.fail(self._gone[peer])
            elif now >= limit:
                verdict = self._inquiry.verdict(peer, self._others())
                # Only the rank that waits for another host can query the ranks there; it reports the
                # cause when its own wait ends.
                if verdict.culprit in self._local or now >= limit + self.deadline_seconds:
                    self.fail(verdict)
            if self._failure is None and self._inquiry.is_due(limit, now):
                question = Notice(NoticeKind.QUESTION, round=self._inquiry.round)
                self._send_notices(question, self._others())
        if self._failure is None:
            return None
        return self.failed(peer, self._failure, context)

    def relay_failure(self, peer: int, context: WorkContext) -> PeerFailure | None:
        """Returns the error of a wait for a rank of another host if a rank of this host failed."""
        self.handle_events(peer)
        return None if self._failure is None else self.failed(peer, self._failure, context)

    def failed(self, peer: int, failure: Failure, context: WorkContext) -> PeerFailure:
        """Returns the error of a wait for `peer`."""
        return self.peer_failure(peer, failure.found, context, culprit=failure.culprit)

    def fail(self, failure: Failure) -> None:
        """Records the first failure, and notifies the ranks of all hosts."""
        if self._failure is not None:
            return
        self._failure = failure
        peers = [peer for peer in self._others() if peer != failure.culprit]
        self._send_notices(failure.notice(), peers)
        # Within one host it is MPI that must know, because its finalization waits for all ranks.
        if self._has_other_hosts or not failure.has_left:
            self._between_hosts.give_up(failure.culprit)

    def handle_events(self, waiting_for: int) -> None:
        """Handles the notices of the ranks of this host, and their ends."""
        while self._failure is None and (event := self.endpoint.take_event()) is not None:
            source, message = self._ranks[event[0]], event[1]
            if message is None:
                self._gone.setdefault(source, Failure(source, "its process ended"))
                continue
            notice = Notice.decode(np.array(message))
            if notice.kind is NoticeKind.QUESTION:
                self._send_notices(Notice(NoticeKind.ANSWER, waiting_for, notice.round), [source])
            elif notice.kind is NoticeKind.ANSWER:
                self._inquiry.note(source, notice)
            else:
                failure = Failure.from_notice(source, notice, self.rank)
                self._gone.setdefault(source, failure)
                if not failure.has_left:
                    self.fail(failure)

    # -- sending and receiving ------------------------------------------------------

    def _give_up_impl(self, culprit: int) -> None:
        self.fail(Failure.own(culprit))

    def _send_impl(self, buffer: Array, destination: int, tag: int) -> Work:
        index = self._local.get(destination)
        if index is None:
            return self._relay(self._other()._send_impl(buffer, destination, tag), destination)
        request = self.endpoint.send(buffer, index, tag)
        return self._track(_ShmWork(self, request, buffer, destination))

    def _receive_impl(self, buffer: Array, source: int, tag: int) -> Work:
        index = self._local.get(source)
        if index is None:
            return self._relay(self._other()._receive_impl(buffer, source, tag), source)
        request = self.endpoint.receive(buffer, index, tag)
        return self._track(_ShmWork(self, request, buffer, source))

    def _track(self, work: _ShmWork) -> Work:
        if work.request.is_pending:
            self._under_way[id(work)] = work
        return work

    def _other(self) -> Collective:
        self._between_hosts.context = self.context
        return self._between_hosts

    def _relay(self, work: Work, peer: int) -> Work:
        return _RelayedWork(self, work, peer)

    def _others(self) -> list[int]:
        """Returns the ranks of this host that may still receive notices."""
        return [peer for peer in self._ranks if peer != self.rank and peer not in self._gone]

    def _send_notices(self, notice: Notice, peers: list[int]) -> None:
        # The message is kept by a request that is not complete, and otherwise already in the ring.
        for peer in peers:
            self._send_impl(notice.encode(), peer, NOTICE_TAG)


class _ShmWork(PolledWork):
    """A message between two ranks of this host."""

    def __init__(self, owner: ShmCollective, request: Request, buffer: Array, peer: int) -> None:
        super().__init__(owner.deadline_seconds)
        self.request = request
        self._owner = owner
        self._buffer = buffer
        self._peer = peer
        self._context = owner.context

    def wait(self) -> None:
        while not self.done():
            self._owner.wait_for(self.request, self._peer)
        super().wait()

    def _is_complete_impl(self) -> bool:
        if not self._owner.endpoint.test(self.request):
            return False
        self._owner.forget(self)
        if self.request.is_lost:
            failure = Failure(self._peer, "it left or ended before its message was read")
            self._owner.fail(failure)
            raise self._owner.failed(self._peer, failure, self._context)
        if self.request.wrong_bytes is not None:
            raise InvalidArgumentError(
                f"receive from rank {self._peer}: the buffer has {self._buffer.nbytes} bytes, the "
                f"message {self.request.wrong_bytes}; both sides must agree on the size"
            )
        return True

    def _failure_impl(self, limit: float, now: float) -> SparringError | None:
        return self._owner.wait_failure(self._peer, self._context, limit, now)


class _RelayedWork(PolledWork):
    """A message of the other collective. While it is polled, questions of this host are answered."""

    def __init__(self, owner: ShmCollective, work: Work, peer: int) -> None:
        super().__init__(owner.deadline_seconds)
        self._owner = owner
        self._work = work
        self._peer = peer
        self._context = owner.context

    def _is_complete_impl(self) -> bool:
        if not self._work.done():
            self._owner.endpoint.progress()
            return False
        try:
            self._work.wait()
        except PeerFailure as error:
            culprit = error.details["rank"]
            assert isinstance(culprit, int)
            self._owner.fail(Failure(culprit, str(error)))
            raise
        return True

    def _failure_impl(self, limit: float, now: float) -> SparringError | None:
        # The other collective raises at the deadline.
        return self._owner.relay_failure(self._peer, self._context)
