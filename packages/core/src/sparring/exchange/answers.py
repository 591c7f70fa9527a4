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
from sparring.exchange.link import Buffers, Link, MessageKind, Transfer
from sparring.runtime.threads import Job, SerialExecutor

__all__ = ["Answers", "Question", "Service"]

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Question:
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
    answer_bytes: int = 0
    take: Callable[[Bytes], None] | None = None


@dataclass(frozen=True, slots=True)
class Service:
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
    answer_bytes: int = 0
    fail: Callable[[Bytes], None] | None = None


@dataclass(slots=True)
class _Asked:
    question: Question
    going: Transfer
    coming: Transfer | None
    has_sent: bool = False
    has_taken: bool = False


@dataclass(slots=True)
class _Served:
    service: Service
    coming: Transfer
    has_come: bool = False
    job: Job | None = None
    answer: Bytes | None = None
    going: Transfer | None = None


@dataclass(slots=True)
class Answers:
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

    link: Link
    executor: SerialExecutor
    buffers: Buffers
    chunks_in_flight: int
    kind: MessageKind
    verb: str
    on_progress: Callable[[], None] | None = None
    _asked: deque[_Asked] = field(default_factory=deque)
    _served: deque[_Served] = field(default_factory=deque)
    _error: BaseException | None = None

    def run(
        self,
        questions: Iterator[Question],
        services: Iterator[Service],
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
                moved = self._ask(questions)
                mine = mine or self.executor.submit(own)
                moved |= self._serve(services)
                if mine.is_done and not has_ended:
                    has_ended = moved = True
                    self._ended(mine, "hop 0")
                if moved and self.on_progress is not None:
                    self.on_progress()
                if not moved and has_ended and not (self._asked or self._served):
                    break
                self.link.pause(self.executor, has_progressed=moved)
        except PeerFailure:
            # A rank that was told of this failure may have left since; the cause is here.
            if self._error is None:
                raise
        finally:
            self.executor.finish()
        return self._error

    def _ask(self, waiting: Iterator[Question]) -> bool:
        moved = False
        while len(self._asked) < self.chunks_in_flight:
            question = next(waiting, None)
            if question is None:
                break
            coming = None
            if question.answer_bytes:
                answer = self.buffers.take(question.answer_bytes)
                coming = self.link.receive(MessageKind.ROWS, answer, question.peer, question.label)
            message = self.buffers.take(question.num_bytes)
            question.pack(message)
            going = self.link.send(self.kind, message, question.peer, question.label)
            self._asked.append(_Asked(question, going, coming, has_taken=coming is None))
            moved = True
        may_take = True
        for asked in self._asked:
            if not asked.has_sent and self.link.is_done(asked.going):
                asked.has_sent = moved = True
                self.buffers.give_back(asked.going.buffer)
            if asked.coming is not None and not asked.has_taken:
                if may_take and self.link.is_done(asked.coming):
                    asked.has_taken = moved = True
                    self._take(asked.question, asked.coming.buffer)
                else:
                    may_take = False
        while self._asked and self._asked[0].has_sent and self._asked[0].has_taken:
            self._asked.popleft()
        return moved

    def _serve(self, waiting: Iterator[Service]) -> bool:
        moved = False
        while len(self._served) < self.chunks_in_flight:
            service = next(waiting, None)
            if service is None:
                break
            message = self.buffers.take(service.num_bytes)
            coming = self.link.receive(self.kind, message, service.peer, service.label)
            self._served.append(_Served(service, coming))
            moved = True
        moved |= self._begin_serving()
        for served in self._served:
            if served.job is None or not served.job.is_done:
                break
            if served.going is None and served.answer is not None:
                moved = True
                self._answer(served, served.job)
        while self._served and self._is_over(self._served[0]):
            self._served.popleft()
            moved = True
        return moved

    def _begin_serving(self) -> bool:
        moved = False
        silent: set[int] = set()
        for served in self._served:
            # Of one rank's messages only the first is looked at: they come in order.
            if served.has_come or served.service.peer in silent:
                continue
            if self.link.is_done(served.coming):
                served.has_come = moved = True
            else:
                silent.add(served.service.peer)
        for served in self._served:
            if not served.has_come:
                break
            if served.job is None:
                served.answer = self.buffers.take(served.service.answer_bytes)
                serve = partial(served.service.serve, served.coming.buffer, served.answer)
                served.job = self.executor.submit(serve)
                moved = True
        return moved

    def _answer(self, served: _Served, job: Job) -> None:
        service, answer = served.service, served.answer
        assert answer is not None
        self._ended(job, service.label)
        self.buffers.give_back(served.coming.buffer)
        if not service.answer_bytes:
            self.buffers.give_back(answer)
            served.answer = None
            return
        if job.error is not None and service.fail is not None:
            service.fail(answer)
        served.going = self.link.send(MessageKind.ROWS, answer, service.peer, service.label)

    def _is_over(self, served: _Served) -> bool:
        if served.going is None:
            return served.job is not None and served.job.is_done and served.answer is None
        if not self.link.is_done(served.going):
            return False
        self.buffers.give_back(served.going.buffer)
        return True

    def _take(self, question: Question, answer: Bytes) -> None:
        assert question.take is not None
        try:
            question.take(answer)
        except BaseException as error:
            # The others still need this rank, so it goes on to the end.
            self._error = self._error or error
        self.buffers.give_back(answer)

    def _ended(self, job: Job, label: str) -> None:
        self._error = self._error or job.error
        if self.link.trace is not None:
            details = {"of": label}
            self.link.trace.add(
                self.verb, job.begin_ns, job.end_ns, details, thread_id=job.thread_id
            )
