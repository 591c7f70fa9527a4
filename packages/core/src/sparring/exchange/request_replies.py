"""Messages to every rank, and answers to them, in the order of hops.

At hop h this rank sends to rank r+h and serves rank r-h. Both are queues, in the order of hops:

    asked     WAITING ──► UNDER WAY (message out, answer in) ──► answer taken, in the order of the queue
    served    WAITING ──► COMES ──► SERVED on the executor, in the order of the queue ──► ANSWER GOES

Messages of one hop are served while those of others travel. What is taken or served adds up numbers,
so its order must not depend on what comes first: it is that of the queues. At most `chunks_in_flight`
messages of each queue are under way; `exchange/pull.py` says why there is no deadlock.
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
    """A message to another rank, and what is done with its answer.

    Args:
        peer: the rank.
        label: for traces.
        num_bytes: of the message.
        pack: writes it.
        answer_bytes: of the answer; 0: there is none.
        take: reads the answer; raises if it reports a failure.
    """

    peer: int
    label: str
    num_bytes: int
    pack: Callable[[Bytes], None]
    reply_bytes: int = 0
    take: Callable[[Bytes], None] | None = None


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """A message of another rank, and how it is served.

    Args:
        peer: the rank.
        label: for traces.
        num_bytes: of the message.
        serve: reads the message and writes the answer, on the executor.
        answer_bytes: of the answer; 0: there is none.
        fail: writes an answer that reports a failure.
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
    """One round of questions and answers, driven to its end by `run`.

    Args:
        link: sends and receives.
        executor: where messages are served.
        buffers: memory for messages.
        chunks_in_flight: the most messages under way, each way.
        kind: of the questions; answers are `MessageKind.ROWS`.
        verb: for traces: what a service does.
        on_progress: called whenever a message has moved or a service has ended.
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
        """Returns what failed on this rank, after all other ranks were served.

        Args:
            questions: in the order of hops.
            services: in the order of hops.
            own: this rank's share of its own question; runs on the executor before all services.

        Raises:
            PeerFailure: a rank is gone or silent, and nothing failed here.
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
            # A rank that was told of this failure may have left since; the cause is here.
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
            # Of one rank's messages only the first is looked at: they come in order.
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
            # The others still need this rank, so it goes on to the end.
            self._error = self._error or error
        self.buffers.give_back(reply)

    def _ended(self, job: Job, label: str) -> None:
        self._error = self._error or job.error
        if self.messenger.trace is not None:
            details = {"of": label}
            self.messenger.trace.add(
                self.verb, job.begin_ns, job.end_ns, details, thread_id=job.thread_id
            )
