"""Requests to all ranks and their replies, in the order of hops.

At hop h, this rank sends to rank r+h and serves rank r-h. Both directions have a queue in the order of
hops:

    outgoing   WAITING ──► IN FLIGHT (request out, reply in) ──► reply processed, in the queue's order
    incoming   WAITING ──► ARRIVING ──► SERVED on the executor, in the queue's order ──► REPLY SENT

Requests of one hop are served while messages of other hops are in flight. Processing and serving sum
numbers, so they follow the order of the queues, not the order of arrival. At most `chunks_in_flight`
messages per queue are in flight; `exchange/pull.py` explains why there is no deadlock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from sparring.errors import PeerFailure
from sparring.exchange.messenger import Buffers, MessageKind, Messenger, Transfer
from sparring.runtime.threads import Job, SerialExecutor

__all__ = ["RequestReplies", "OutgoingRequest", "IncomingRequest"]

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request to another rank, and the processing of its reply.

    Args:
        peer: the other rank.
        label: label for traces.
        num_bytes: bytes of the request.
        pack: writes the request.
        reply_bytes: bytes of the reply; 0 if there is no reply.
        take: processes the reply; raises if the reply reports a failure.
    """

    peer: int
    label: str
    num_bytes: int
    pack: Callable[[Bytes], None]
    reply_bytes: int = 0
    take: Callable[[Bytes], None] | None = None


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A request of another rank, and how it is served.

    Args:
        peer: the other rank.
        label: label for traces.
        num_bytes: bytes of the request.
        serve: reads the request and writes the reply, on the executor.
        reply_bytes: bytes of the reply; 0 if there is no reply.
        fail: writes a reply that reports a failure.
    """

    peer: int
    label: str
    num_bytes: int
    serve: Callable[[Bytes, Bytes], None]
    reply_bytes: int = 0
    fail: Callable[[Bytes], None] | None = None


@dataclass(slots=True)
class _Outgoing:
    question: OutgoingRequest
    going: Transfer
    coming: Transfer | None
    has_sent: bool = False
    has_taken: bool = False


@dataclass(slots=True)
class _Incoming:
    service: IncomingRequest
    coming: Transfer
    has_come: bool = False
    job: Job | None = None
    reply: Bytes | None = None
    going: Transfer | None = None


@dataclass(slots=True)
class RequestReplies:
    """One round of requests and replies; `run` completes it.

    Args:
        messenger: sends and receives messages.
        executor: executor on which requests are served.
        buffers: buffers of messages.
        chunks_in_flight: maximum number of messages in flight per direction.
        kind: kind of the requests; replies are `MessageKind.ROWS`.
        verb: name of the spans of served requests.
        on_progress: called when a message has made progress or a request was served.
    """

    messenger: Messenger
    executor: SerialExecutor
    buffers: Buffers
    chunks_in_flight: int
    kind: MessageKind
    verb: str
    on_progress: Callable[[], None] | None = None
    _outgoing: deque[_Outgoing] = field(default_factory=deque)
    _incoming: deque[_Incoming] = field(default_factory=deque)
    _error: BaseException | None = None

    def run(
        self,
        questions: Iterator[OutgoingRequest],
        services: Iterator[IncomingRequest],
        own: Callable[[], None],
    ) -> BaseException | None:
        """Runs the round, and returns the error of this rank after all other ranks were served.

        Args:
            questions: outgoing requests, in the order of hops.
            services: incoming requests, in the order of hops.
            own: serves this rank's request to itself; runs on the executor before all services.

        Raises:
            PeerFailure: a rank is gone or does not respond, and this rank has no error.
        """
        mine: Job | None = None
        has_ended = False
        try:
            while True:
                moved = self._send_requests(questions)
                mine = mine or self.executor.submit(own)
                moved |= self._serve_requests(services)
                if mine.is_done and not has_ended:
                    has_ended = moved = True
                    self._ended(mine, "hop 0")
                if moved and self.on_progress is not None:
                    self.on_progress()
                if not moved and has_ended and not (self._outgoing or self._incoming):
                    break
                self.messenger.pause(self.executor, has_progressed=moved)
        except PeerFailure:
            # If this rank has an error, it may be the reason why the other rank has left.
            if self._error is None:
                raise
        finally:
            self.executor.finish()
        return self._error

    def _send_requests(self, waiting: Iterator[OutgoingRequest]) -> bool:
        moved = False
        while len(self._outgoing) < self.chunks_in_flight:
            question = next(waiting, None)
            if question is None:
                break
            coming = None
            if question.reply_bytes:
                reply = self.buffers.take(question.reply_bytes)
                coming = self.messenger.receive(
                    MessageKind.ROWS, reply, question.peer, question.label
                )
            message = self.buffers.take(question.num_bytes)
            question.pack(message)
            going = self.messenger.send(self.kind, message, question.peer, question.label)
            self._outgoing.append(_Outgoing(question, going, coming, has_taken=coming is None))
            moved = True
        may_take = True
        for asked in self._outgoing:
            if not asked.has_sent and self.messenger.is_done(asked.going):
                asked.has_sent = moved = True
                self.buffers.give_back(asked.going.buffer)
            if asked.coming is not None and not asked.has_taken:
                if may_take and self.messenger.is_done(asked.coming):
                    asked.has_taken = moved = True
                    self._take(asked.question, asked.coming.buffer)
                else:
                    may_take = False
        while self._outgoing and self._outgoing[0].has_sent and self._outgoing[0].has_taken:
            self._outgoing.popleft()
        return moved

    def _serve_requests(self, waiting: Iterator[IncomingRequest]) -> bool:
        moved = False
        while len(self._incoming) < self.chunks_in_flight:
            service = next(waiting, None)
            if service is None:
                break
            message = self.buffers.take(service.num_bytes)
            coming = self.messenger.receive(self.kind, message, service.peer, service.label)
            self._incoming.append(_Incoming(service, coming))
            moved = True
        moved |= self._begin_serving()
        for served in self._incoming:
            if served.job is None or not served.job.is_done:
                break
            if served.going is None and served.reply is not None:
                moved = True
                self._answer(served, served.job)
        while self._incoming and self._is_over(self._incoming[0]):
            self._incoming.popleft()
            moved = True
        return moved

    def _begin_serving(self) -> bool:
        moved = False
        silent: set[int] = set()
        for served in self._incoming:
            # Only the first message of each rank is polled, because messages arrive in order.
            if served.has_come or served.service.peer in silent:
                continue
            if self.messenger.is_done(served.coming):
                served.has_come = moved = True
            else:
                silent.add(served.service.peer)
        for served in self._incoming:
            if not served.has_come:
                break
            if served.job is None:
                served.reply = self.buffers.take(served.service.reply_bytes)
                serve = partial(served.service.serve, served.coming.buffer, served.reply)
                served.job = self.executor.submit(serve)
                moved = True
        return moved

    def _answer(self, served: _Incoming, job: Job) -> None:
        service, reply = served.service, served.reply
        assert reply is not None
        self._ended(job, service.label)
        self.buffers.give_back(served.coming.buffer)
        if not service.reply_bytes:
            self.buffers.give_back(reply)
            served.reply = None
            return
        if job.error is not None and service.fail is not None:
            service.fail(reply)
        served.going = self.messenger.send(MessageKind.ROWS, reply, service.peer, service.label)

    def _is_over(self, served: _Incoming) -> bool:
        if served.going is None:
            return served.job is not None and served.job.is_done and served.reply is None
        if not self.messenger.is_done(served.going):
            return False
        self.buffers.give_back(served.going.buffer)
        return True

    def _take(self, question: OutgoingRequest, reply: Bytes) -> None:
        assert question.take is not None
        try:
            question.take(reply)
        except BaseException as error:
            # The other ranks still need this rank, so it continues to the end.
            self._error = self._error or error
        self.buffers.give_back(reply)

    def _ended(self, job: Job, label: str) -> None:
        self._error = self._error or job.error
        if self.messenger.trace is not None:
            details = {"of": label}
            self.messenger.trace.add(
                self.verb, job.begin_ns, job.end_ns, details, thread_id=job.thread_id
            )
