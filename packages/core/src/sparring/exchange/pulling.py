"""One pull by the ring: rows are found while others travel.

At hop h this rank asks rank r+h and serves rank r-h. Both are queues of chunks, in the order of hops.
A chunk goes through these states; the driving thread moves it on whenever a message has come or a
find has ended, and never waits for one of them alone:

    asked     WAITING ──► UNDER WAY (keys out, rows in) ──► placed
    served    WAITING ──► KEYS COME ──► FOUND on the lane ──► ROWS GO ──► done
    own       WAITING ──► FOUND on the lane, whenever it has nothing else to find

At most `chunks_in_flight` chunks of each queue are under way. Nothing can wait in a circle: of the
streams that are not through yet, take the one of the lowest hop. All that its asker asked before and
all that its owner served before is through, so both have it at the head of their queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.errors import PeerFailure
from sparring.exchange.beside import InlineLane, Job, Lane
from sparring.exchange.buffers import Buffers
from sparring.exchange.counters import MessageKind
from sparring.exchange.link import Link, Transfer
from sparring.exchange.record import PullRecord
from sparring.exchange.reply import find_into, find_rows, place_reply, refuse_into, reply_bytes
from sparring.exchange.requests import Pulled, PullRequest
from sparring.exchange.routing import Routed, Turn, turns_of
from sparring.exchange.wire import Codec
from sparring.storage.contract import Keys

__all__ = ["MOST_FINDS", "RingPull"]

_KEYS, _ROWS = MessageKind.KEYS, MessageKind.ROWS
MOST_FINDS = 2
"""On the lane at once: one runs, and the next is there when it ends."""


@dataclass(slots=True)
class _Asked:
    turn: Turn
    keys_going: Transfer
    rows_coming: Transfer
    has_sent: bool = False
    has_placed: bool = False


@dataclass(slots=True)
class _Served:
    turn: Turn
    keys: Keys
    keys_coming: Transfer | None
    message: npt.NDArray[np.uint8] | None = None
    finding: Job | None = None
    rows_going: Transfer | None = None


@dataclass(slots=True)
class RingPull:
    """One pull of several tables, driven to its end by `run`.

    Args:
        link: sends and receives.
        lane: where rows are found.
        requests: one for each table.
        codecs: how each table's rows travel.
        routed: the keys of all requests by owner.
        served_counts: ``(world_size, tables)``: what each rank asks of this one.
        chunk_rows: the most keys in a message.
        chunks_in_flight: the most chunks under way, each way.
        buffers: memory for messages.
        record: where keys that other ranks asked for are kept; None: nowhere.
    """

    link: Link
    lane: Lane
    requests: Sequence[PullRequest]
    codecs: Sequence[Codec]
    routed: Routed
    served_counts: npt.NDArray[np.int64]
    chunk_rows: int
    chunks_in_flight: int
    buffers: Buffers = field(default_factory=Buffers)
    record: PullRecord | None = None
    results: list[Pulled] = field(default_factory=list)
    _asked: deque[_Asked] = field(default_factory=deque)
    _served: deque[_Served] = field(default_factory=deque)
    _own: list[Job] = field(default_factory=list)
    _num_finding: int = 0
    _error: BaseException | None = None

    def run(self) -> list[Pulled]:
        """Returns the rows in the order of each request's keys.

        Raises:
            PeerFailure: a rank is gone or silent, or could not read its rows.
            SparringError: this rank's own storage failed. Other ranks were told so, and given
                all other rows.
        """
        for request in self.requests:
            count, width = len(request.keys), request.columns.end - request.columns.begin
            rows = np.empty((count, width), request.table.numpy_dtype)
            self.results.append(Pulled(rows, np.empty(count, np.bool_)))
        rank, world_size = self.link.collective.rank, self.link.collective.world_size
        asked = [(rank + hop) % world_size for hop in range(1, world_size)]
        served = [(rank - hop) % world_size for hop in range(1, world_size)]
        to_ask = turns_of(asked, self.routed.counts, self.chunk_rows)
        to_serve = turns_of(served, self.served_counts, self.chunk_rows)
        to_find = turns_of([rank], self.routed.counts, self.chunk_rows)
        counts = np.concatenate([self.routed.counts, self.served_counts])
        is_short = int(counts.sum(axis=1).max()) <= self.chunk_rows
        try:
            if is_short and isinstance(self.lane, InlineLane):
                self._run_in_order(list(to_ask), list(to_serve), list(to_find))
            else:
                self._run_as_it_comes(to_ask, to_serve, to_find)
        except PeerFailure:
            # Whoever was told that this rank failed may have left since; the cause is here.
            if self._error is None:
                raise
        finally:
            self.lane.finish()
        if self._error is not None:
            raise self._error
        return self.results

    def _run_as_it_comes(
        self, to_ask: Iterator[Turn], to_serve: Iterator[Turn], to_find: Iterator[Turn]
    ) -> None:
        while True:
            moved = self._ask(to_ask)
            moved |= self._serve(to_serve)
            moved |= self._find(to_find)
            if not (moved or self._asked or self._served or self._own):
                return
            self.link.pause(self.lane, has_progressed=moved)

    def _run_in_order(
        self, to_ask: Sequence[Turn], to_serve: Sequence[Turn], to_find: Sequence[Turn]
    ) -> None:
        """The same messages where there is one for each rank, and nothing to overlap: to wait for
        them in the order of hops costs less than to look which of them has come.

        Nobody waits before all its keys are on their way, nor for rows before it has sent all of
        its own.
        """
        link, going = self.link, []
        messages = [self.buffers.take(reply_bytes(turn.chunk, self.codecs)) for turn in to_ask]
        rows_coming = [
            link.receive(_ROWS, message, turn.peer, turn.what)
            for message, turn in zip(messages, to_ask, strict=True)
        ]
        keys_coming = [
            link.receive(_KEYS, np.empty(turn.chunk.count, np.int64), turn.peer, turn.what)
            for turn in to_serve
        ]
        for turn in to_ask:
            keys = self.routed.streams[turn.peer][turn.chunk.begin : turn.chunk.end]
            going.append(link.send(_KEYS, keys, turn.peer, turn.what))
        for turn in to_find:
            self._ended(self._submit(partial(self._find_own, turn)), "hop 0")
        lent = []
        for turn, coming in zip(to_serve, keys_coming, strict=True):
            link.wait(coming)
            if self.record is not None:
                self.record.add(turn.peer, coming.buffer)
            message = self.buffers.take(reply_bytes(turn.chunk, self.codecs))
            lent.append(message)
            served = _Served(turn, coming.buffer, None, message)
            find = partial(
                find_into, message, turn.chunk, coming.buffer, self.requests, self.codecs
            )
            self._send(served, self._submit(find))
            assert served.rows_going is not None
            going.append(served.rows_going)
        for turn, coming in zip(to_ask, rows_coming, strict=True):
            link.wait(coming)
            self._place(coming.buffer, turn)
        for transfer in going:
            link.wait(transfer)
        for message in [*messages, *lent]:
            self.buffers.give_back(message)

    def _ask(self, waiting: Iterator[Turn]) -> bool:
        """Sends keys, and places rows that came."""
        moved = False
        while len(self._asked) < self.chunks_in_flight:
            turn = next(waiting, None)
            if turn is None:
                break
            message = self.buffers.take(reply_bytes(turn.chunk, self.codecs))
            rows_coming = self.link.receive(_ROWS, message, turn.peer, turn.what)
            keys = self.routed.streams[turn.peer][turn.chunk.begin : turn.chunk.end]
            keys_going = self.link.send(_KEYS, keys, turn.peer, turn.what)
            self._asked.append(_Asked(turn, keys_going, rows_coming))
            moved = True
        silent: set[int] = set()
        for asked in self._asked:
            if not asked.has_sent and self.link.is_done(asked.keys_going):
                asked.has_sent = moved = True
            # Of one rank's messages only the first is looked at: they come in order.
            if asked.has_placed or asked.turn.peer in silent:
                continue
            if self.link.is_done(asked.rows_coming):
                asked.has_placed = moved = True
                self._place(asked.rows_coming.buffer, asked.turn)
                self.buffers.give_back(asked.rows_coming.buffer)
            else:
                silent.add(asked.turn.peer)
        while self._asked and self._asked[0].has_sent and self._asked[0].has_placed:
            self._asked.popleft()
        return moved

    def _serve(self, waiting: Iterator[Turn]) -> bool:
        """Takes keys in, and sends rows that were found, in the order of asking."""
        moved = False
        while len(self._served) < self.chunks_in_flight:
            turn = next(waiting, None)
            if turn is None:
                break
            keys = np.empty(turn.chunk.count, np.int64)
            keys_coming = self.link.receive(_KEYS, keys, turn.peer, turn.what)
            self._served.append(_Served(turn, keys, keys_coming))
            moved = True
        silent: set[int] = set()
        later: set[int] = set()
        for served in self._served:
            if served.keys_coming is not None and served.turn.peer not in silent:
                if self.link.is_done(served.keys_coming):
                    served.keys_coming, moved = None, True
                    if self.record is not None:
                        self.record.add(served.turn.peer, served.keys)
                else:
                    silent.add(served.turn.peer)
            finding = served.finding
            # Messages to one rank must go in the order in which it asked.
            if finding is not None and finding.is_done and served.turn.peer not in later:
                self._send(served, finding)
                served.finding, moved = None, True
            if served.rows_going is None:
                later.add(served.turn.peer)
        while self._served:
            rows_going = self._served[0].rows_going
            if rows_going is None or not self.link.is_done(rows_going):
                break
            self.buffers.give_back(rows_going.buffer)
            self._served.popleft()
            moved = True
        return moved

    def _find(self, waiting: Iterator[Turn]) -> bool:
        """Keeps the lane at work: for others first, and for this rank when nobody waits."""
        moved = False
        for job in [job for job in self._own if job.is_done]:
            self._own.remove(job)
            self._ended(job, "hop 0")
            moved = True
        for served in self._served:
            if self._num_finding >= MOST_FINDS:
                return moved
            is_ready = served.keys_coming is None and served.message is None
            if not is_ready:
                continue
            chunk = served.turn.chunk
            served.message = self.buffers.take(reply_bytes(chunk, self.codecs))
            served.finding = self._submit(
                partial(find_into, served.message, chunk, served.keys, self.requests, self.codecs)
            )
            moved = True
        # Only where the lane is idle: others may ask at any moment, and theirs must travel too.
        turn = None if self._num_finding else next(waiting, None)
        if turn is not None:
            self._own.append(self._submit(partial(self._find_own, turn)))
            moved = True
        return moved

    def _find_own(self, turn: Turn) -> None:
        keys = self.routed.streams[turn.peer][turn.chunk.begin : turn.chunk.end]
        for piece in turn.chunk.pieces:
            request, result = self.requests[piece.table], self.results[piece.table]
            wanted = keys[piece.at : piece.at + piece.count]
            found = find_rows(request.storage, request.table, wanted, request.columns)
            places = self.routed.places(turn.peer, piece)
            _native.place_rows(found.rows, places, result.rows)
            result.found[places] = found.found

    def _submit(self, call: Any) -> Job:
        self._num_finding += 1
        return self.lane.submit(call)

    def _ended(self, job: Job, what: str) -> None:
        self._num_finding -= 1
        self._error = self._error or job.error
        if self.link.trace is not None:
            details = {"of": what}
            self.link.trace.add("find", job.begin_ns, job.end_ns, details, thread_id=job.thread_id)

    def _send(self, served: _Served, job: Job) -> None:
        turn = served.turn
        self._ended(job, turn.what)
        if job.error is not None and served.message is not None:
            refuse_into(served.message)
        served.rows_going = self.link.send(_ROWS, served.message, turn.peer, turn.what)

    def _place(self, message: npt.NDArray[np.uint8], turn: Turn) -> None:
        try:
            place_reply(message, turn.chunk, turn.peer, self.routed, self.codecs, self.results)
        except BaseException as error:
            # The others still need this rank, so it goes on to the end.
            self._error = self._error or error
