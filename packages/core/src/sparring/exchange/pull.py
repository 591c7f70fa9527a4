"""One pull by the ring: rows are found while other rows are in flight.

At hop h, this rank requests rows from rank r+h and serves rank r-h. Both directions have a queue of
chunks in the order of hops. A chunk has the following states. The driving thread advances a chunk when
one of its messages has arrived or its find has ended; it never waits for one particular chunk:

    outgoing   WAITING ──► IN FLIGHT (keys out, rows in) ──► rows copied to the result
    incoming   WAITING ──► KEYS ARRIVE ──► FOUND on the executor ──► ROWS SENT ──► done
    own        WAITING ──► FOUND on the executor, when it has no other rows to find

At most `chunks_in_flight` chunks per queue are in flight. There is no deadlock: consider the incomplete
stream with the lowest hop. All earlier streams of its requester and of its owner are complete, so it is
at the head of both queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import Keys
from sparring.errors import PeerFailure
from sparring.exchange.messages import (
    Codec,
    PullRequest,
    PullResult,
    reply_bytes,
    write_failure,
)
from sparring.exchange.messenger import Buffers, MessageKind, Messenger, Transfer
from sparring.exchange.refresh import PullRecord
from sparring.exchange.routing import ChunkTransfer, RoutedKeys, chunk_transfers
from sparring.exchange.table_rows import TableRows
from sparring.runtime.threads import InlineExecutor, Job, SerialExecutor

__all__ = ["MAX_FINDS", "RingPull"]

_KEYS, _ROWS = MessageKind.KEYS, MessageKind.ROWS
MAX_FINDS = 2
"""Maximum number of finds on the executor: one is running, and the next one is queued."""


@dataclass(slots=True)
class _Outgoing:
    planned: ChunkTransfer
    keys_going: Transfer
    rows_coming: Transfer
    has_sent: bool = False
    has_placed: bool = False


@dataclass(slots=True)
class _Incoming:
    planned: ChunkTransfer
    keys: Keys
    keys_coming: Transfer | None
    message: npt.NDArray[np.uint8] | None = None
    finding: Job | None = None
    rows_going: Transfer | None = None


@dataclass(slots=True)
class RingPull:
    """One pull of several tables; `run` completes it.

    Args:
        messenger: sends and receives messages.
        executor: executor on which rows are found.
        requests: one request per table.
        codecs: codec of each table's rows.
        routed: keys of all requests, grouped by owner.
        served_counts: ``(world_size, tables)``: rows that each rank requests from this one.
        chunk_rows: maximum number of keys per message.
        chunks_in_flight: maximum number of chunks in flight per direction.
        buffers: buffers of messages.
        record: stores the keys that other ranks request; None if they are not stored.
    """

    messenger: Messenger
    executor: SerialExecutor
    requests: Sequence[PullRequest]
    codecs: Sequence[Codec]
    routed: RoutedKeys
    served_counts: npt.NDArray[np.int64]
    chunk_rows: int
    chunks_in_flight: int
    buffers: Buffers = field(default_factory=Buffers)
    record: PullRecord | None = None
    results: list[PullResult] = field(default_factory=list)
    _outgoing: deque[_Outgoing] = field(default_factory=deque)
    _incoming: deque[_Incoming] = field(default_factory=deque)
    _own: list[Job] = field(default_factory=list)
    _rows: TableRows = field(init=False)
    _num_finding: int = 0
    _error: BaseException | None = None

    def run(self) -> list[PullResult]:
        """Returns the rows in the order of each request's keys.

        Raises:
            PeerFailure: a rank is gone, does not respond, or could not read its rows.
            SparringError: a storage of this rank failed. The failure was reported to the other ranks,
                which got all other rows.
        """
        for request in self.requests:
            count, width = len(request.keys), request.columns.end - request.columns.begin
            rows = np.empty((count, width), request.table.numpy_dtype)
            self.results.append(PullResult(rows, np.empty(count, np.bool_)))
        self._rows = TableRows(self.requests, self.codecs, self.routed, self.results)
        to_ask = chunk_transfers(self.messenger.later_ranks, self.routed.counts, self.chunk_rows)
        to_serve = chunk_transfers(
            self.messenger.earlier_ranks, self.served_counts, self.chunk_rows
        )
        to_find = chunk_transfers(
            [self.messenger.collective.rank], self.routed.counts, self.chunk_rows
        )
        counts = np.concatenate([self.routed.counts, self.served_counts])
        is_short = int(counts.sum(axis=1).max()) <= self.chunk_rows
        try:
            if is_short and isinstance(self.executor, InlineExecutor):
                self._run_in_order(list(to_ask), list(to_serve), list(to_find))
            else:
                self._run_as_it_comes(to_ask, to_serve, to_find)
        except PeerFailure:
            # If this rank has an error, it may be the reason why the other rank has left.
            if self._error is None:
                raise
        finally:
            self.executor.finish()
        if self._error is not None:
            raise self._error
        return self.results

    def _run_as_it_comes(
        self,
        to_ask: Iterator[ChunkTransfer],
        to_serve: Iterator[ChunkTransfer],
        to_find: Iterator[ChunkTransfer],
    ) -> None:
        while True:
            moved = self._send_requests(to_ask)
            moved |= self._serve_requests(to_serve)
            moved |= self._find(to_find)
            if not (moved or self._outgoing or self._incoming or self._own):
                return
            self.messenger.pause(self.executor, has_progressed=moved)

    def _run_in_order(
        self,
        to_ask: Sequence[ChunkTransfer],
        to_serve: Sequence[ChunkTransfer],
        to_find: Sequence[ChunkTransfer],
    ) -> None:
        """Sends the same messages for the case of one message per rank, where nothing can overlap:
        waiting in the order of hops costs less than polling.

        A rank waits only after it has sent all its keys, and waits for rows only after it has sent all
        rows.
        """
        messenger, going = self.messenger, []
        messages = [
            self.buffers.take(reply_bytes(planned.chunk, self.codecs)) for planned in to_ask
        ]
        rows_coming = [
            messenger.receive(_ROWS, message, planned.peer, planned.label)
            for message, planned in zip(messages, to_ask, strict=True)
        ]
        keys_coming = [
            messenger.receive(
                _KEYS, np.empty(planned.chunk.count, np.int64), planned.peer, planned.label
            )
            for planned in to_serve
        ]
        for planned in to_ask:
            keys = self.routed.streams[planned.peer][planned.chunk.begin : planned.chunk.end]
            going.append(messenger.send(_KEYS, keys, planned.peer, planned.label))
        for planned in to_find:
            self._ended(
                self._submit(partial(self._rows.find_own, planned.chunk, planned.peer)), "hop 0"
            )
        lent = []
        for planned, coming in zip(to_serve, keys_coming, strict=True):
            messenger.wait(coming)
            if self.record is not None:
                self.record.add(planned.peer, coming.buffer)
            message = self.buffers.take(reply_bytes(planned.chunk, self.codecs))
            lent.append(message)
            served = _Incoming(planned, coming.buffer, None, message)
            find = partial(self._rows.find, message, planned.chunk, coming.buffer)
            self._send(served, self._submit(find))
            assert served.rows_going is not None
            going.append(served.rows_going)
        for planned, coming in zip(to_ask, rows_coming, strict=True):
            messenger.wait(coming)
            self._place(coming.buffer, planned)
        for transfer in going:
            messenger.wait(transfer)
        for message in [*messages, *lent]:
            self.buffers.give_back(message)

    def _send_requests(self, waiting: Iterator[ChunkTransfer]) -> bool:
        """Sends keys, and copies received rows to the result."""
        moved = False
        while len(self._outgoing) < self.chunks_in_flight:
            planned = next(waiting, None)
            if planned is None:
                break
            message = self.buffers.take(reply_bytes(planned.chunk, self.codecs))
            rows_coming = self.messenger.receive(_ROWS, message, planned.peer, planned.label)
            keys = self.routed.streams[planned.peer][planned.chunk.begin : planned.chunk.end]
            keys_going = self.messenger.send(_KEYS, keys, planned.peer, planned.label)
            self._outgoing.append(_Outgoing(planned, keys_going, rows_coming))
            moved = True
        silent: set[int] = set()
        for asked in self._outgoing:
            if not asked.has_sent and self.messenger.is_done(asked.keys_going):
                asked.has_sent = moved = True
            # Only the first message of each rank is polled, because messages arrive in order.
            if asked.has_placed or asked.planned.peer in silent:
                continue
            if self.messenger.is_done(asked.rows_coming):
                asked.has_placed = moved = True
                self._place(asked.rows_coming.buffer, asked.planned)
                self.buffers.give_back(asked.rows_coming.buffer)
            else:
                silent.add(asked.planned.peer)
        while self._outgoing and self._outgoing[0].has_sent and self._outgoing[0].has_placed:
            self._outgoing.popleft()
        return moved

    def _serve_requests(self, waiting: Iterator[ChunkTransfer]) -> bool:
        """Receives keys, and sends found rows in the order of the requests."""
        moved = False
        while len(self._incoming) < self.chunks_in_flight:
            planned = next(waiting, None)
            if planned is None:
                break
            keys = np.empty(planned.chunk.count, np.int64)
            keys_coming = self.messenger.receive(_KEYS, keys, planned.peer, planned.label)
            self._incoming.append(_Incoming(planned, keys, keys_coming))
            moved = True
        silent: set[int] = set()
        later: set[int] = set()
        for served in self._incoming:
            if served.keys_coming is not None and served.planned.peer not in silent:
                if self.messenger.is_done(served.keys_coming):
                    served.keys_coming, moved = None, True
                    if self.record is not None:
                        self.record.add(served.planned.peer, served.keys)
                else:
                    silent.add(served.planned.peer)
            finding = served.finding
            # Replies to a rank must be sent in the order of its requests.
            if finding is not None and finding.is_done and served.planned.peer not in later:
                self._send(served, finding)
                served.finding, moved = None, True
            if served.rows_going is None:
                later.add(served.planned.peer)
        while self._incoming:
            rows_going = self._incoming[0].rows_going
            if rows_going is None or not self.messenger.is_done(rows_going):
                break
            self.buffers.give_back(rows_going.buffer)
            self._incoming.popleft()
            moved = True
        return moved

    def _find(self, waiting: Iterator[ChunkTransfer]) -> bool:
        """Submits finds to the executor: rows for other ranks first, then this rank's own rows."""
        moved = False
        for job in [job for job in self._own if job.is_done]:
            self._own.remove(job)
            self._ended(job, "hop 0")
            moved = True
        for served in self._incoming:
            if self._num_finding >= MAX_FINDS:
                return moved
            is_ready = served.keys_coming is None and served.message is None
            if not is_ready:
                continue
            chunk = served.planned.chunk
            served.message = self.buffers.take(reply_bytes(chunk, self.codecs))
            served.finding = self._submit(
                partial(self._rows.find, served.message, chunk, served.keys)
            )
            moved = True
        # Only if the executor is idle, because rows for other ranks, which must be sent, come first.
        planned = None if self._num_finding else next(waiting, None)
        if planned is not None:
            self._own.append(
                self._submit(partial(self._rows.find_own, planned.chunk, planned.peer))
            )
            moved = True
        return moved

    def _submit(self, call: Any) -> Job:
        self._num_finding += 1
        return self.executor.submit(call)

    def _ended(self, job: Job, label: str) -> None:
        self._num_finding -= 1
        self._error = self._error or job.error
        if self.messenger.trace is not None:
            details = {"of": label}
            self.messenger.trace.add(
                "find", job.begin_ns, job.end_ns, details, thread_id=job.thread_id
            )

    def _send(self, served: _Incoming, job: Job) -> None:
        planned = served.planned
        self._ended(job, planned.label)
        if job.error is not None and served.message is not None:
            write_failure(served.message)
        served.rows_going = self.messenger.send(_ROWS, served.message, planned.peer, planned.label)

    def _place(self, message: npt.NDArray[np.uint8], planned: ChunkTransfer) -> None:
        try:
            self._rows.place(message, planned.chunk, planned.peer)
        except BaseException as error:
            # The other ranks still need this rank, so it continues to the end.
            self._error = self._error or error
