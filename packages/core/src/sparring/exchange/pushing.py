"""One push by the ring: gradients are added up while others travel.

At hop h this rank sends to rank r+h and takes in what rank r-h sends. Sums must be the same in every
run, and float addition depends on its order. The order is that of hops: a rank's own gradients first,
then those of rank r-1, of r-2, … Nothing need be kept back for it: chunks of one rank arrive in the
order of sending, and those of a later hop are received only in `chunks_in_flight` buffers ahead.

    sent       WAITING ──► UNDER WAY ──► done
    received   WAITING ──► COMES ──► ADDED UP on the lane, in the order of the queue ──► done
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
from sparring.exchange.ahead import FindAhead
from sparring.exchange.beside import InlineLane, Job, Lane
from sparring.exchange.buffers import Buffers
from sparring.exchange.counters import MessageKind
from sparring.exchange.link import Link, Transfer
from sparring.exchange.requests import OwnedGradients, PushRequest
from sparring.exchange.routing import Chunk, Routed, Turn, turns_of
from sparring.exchange.wire import KEY_BYTES, Codec, padded
from sparring.storage.contract import Rows

__all__ = ["RingPush", "Sums", "gradient_bytes", "pack_gradients"]

_GRADIENTS = MessageKind.GRADIENTS

Bytes = npt.NDArray[np.uint8]


def gradient_bytes(chunk: Chunk, codecs: Sequence[Codec]) -> int:
    """Bytes of a message of gradients and their keys."""
    return sum(
        padded(piece.count * (KEY_BYTES + codecs[piece.table].row_bytes)) for piece in chunk.pieces
    )


def pack_gradients(
    message: Bytes,
    chunk: Chunk,
    owner: int,
    routed: Routed,
    requests: Sequence[PushRequest],
    codecs: Sequence[Codec],
) -> None:
    """Writes the message that brings a chunk of gradients to its owner.

    Args:
        message: ``(gradient_bytes,)``, all written.
    """
    stream = routed.streams[owner][chunk.begin : chunk.end]
    at = 0
    for piece in chunk.pieces:
        codec, request = codecs[piece.table], requests[piece.table]
        middle = at + piece.count * KEY_BYTES
        end = middle + piece.count * codec.row_bytes
        message[at:middle].view(np.int64)[:] = stream[piece.at : piece.at + piece.count]
        wire = message[middle:end]
        out = codec.view(wire, piece.count)
        taken = _native.gather(request.gradients, routed.places(owner, piece), out)
        if out is None:
            codec.encode(taken, wire)
        at += padded(end - at)
        message[end:at] = 0


@dataclass(slots=True)
class Sums:
    """What the gradients for this rank add up to, table by table."""

    requests: Sequence[PushRequest]
    codecs: Sequence[Codec]
    accumulators: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accumulators = [request.make_accumulator() for request in self.requests]

    def add_message(self, message: Bytes, chunk: Chunk) -> None:
        """Adds what another rank sent."""
        at = 0
        for piece in chunk.pieces:
            codec = self.codecs[piece.table]
            middle = at + piece.count * KEY_BYTES
            end = middle + piece.count * codec.row_bytes
            keys = message[at:middle].view(np.int64)
            self.accumulators[piece.table].add(keys, codec.decode(message[middle:end], piece.count))
            at += padded(end - at)

    def add_own(self, rank: int, routed: Routed) -> None:
        """Adds this rank's gradients of keys that it owns itself; they are not rounded."""
        for table, request in enumerate(self.requests):
            offsets = routed.offsets[table]
            mine = routed.orders[table][int(offsets[rank]) : int(offsets[rank + 1])]
            if len(mine):
                gradients: Rows = _native.gather(request.gradients, mine)
                self.accumulators[table].add(request.keys[mine], gradients)

    def take(self) -> list[OwnedGradients]:
        """The sums, one for each request."""
        return [OwnedGradients(*each.take()) for each in self.accumulators]


@dataclass(slots=True)
class _Received:
    turn: Turn
    coming: Transfer
    has_come: bool = False
    adding: Job | None = None


@dataclass(slots=True)
class RingPush:
    """One push of several tables, driven to its end by `run`.

    Args:
        link: sends and receives.
        lane: where gradients are added up.
        find_lane: where the rows are found that the update will need.
        requests: one for each table.
        codecs: how each table's gradients travel.
        routed: the keys of all requests by owner.
        coming_counts: ``(world_size, tables)``: what each rank sends to this one.
        chunk_rows: the most keys in a message.
        chunks_in_flight: the most chunks under way, each way.
    """

    link: Link
    lane: Lane
    find_lane: Lane
    requests: Sequence[PushRequest]
    codecs: Sequence[Codec]
    routed: Routed
    coming_counts: npt.NDArray[np.int64]
    chunk_rows: int
    chunks_in_flight: int
    buffers: Buffers = field(default_factory=Buffers)
    _sent: deque[Transfer] = field(default_factory=deque)
    _received: deque[_Received] = field(default_factory=deque)
    _error: BaseException | None = None

    def run(self) -> list[OwnedGradients]:
        """Returns the sums for each request.

        Raises:
            PeerFailure: a rank is gone or silent.

        What this rank cannot do itself is the `error` of each result.
        """
        rank, world_size = self.link.collective.rank, self.link.collective.world_size
        owners = [(rank + hop) % world_size for hop in range(1, world_size)]
        senders = [(rank - hop) % world_size for hop in range(1, world_size)]
        to_send = turns_of(owners, self.routed.counts, self.chunk_rows)
        to_receive = turns_of(senders, self.coming_counts, self.chunk_rows)
        sums = Sums(self.requests, self.codecs)
        ahead = FindAhead(self.requests, sums.accumulators, self.find_lane)
        counts = np.concatenate([self.routed.counts, self.coming_counts])
        is_short = int(counts.sum(axis=1).max()) <= self.chunk_rows
        is_inline = isinstance(self.lane, InlineLane) and isinstance(self.find_lane, InlineLane)
        try:
            own = self.lane.submit(partial(sums.add_own, rank, self.routed))
            if is_short and is_inline:
                self._ended(own, "hop 0")
                self._run_in_order(list(to_send), list(to_receive), sums, ahead)
            else:
                self._run_as_it_comes(to_send, to_receive, sums, ahead, own)
        finally:
            self.lane.finish()
            self.find_lane.finish()
        ahead.trace(self.link.trace)
        results = sums.take()
        for place, result in enumerate(results):
            # Too late to refuse here: the others have gone on.
            result.error = self._error or ahead.error
            result.found = ahead.found(place)
        return results

    def _run_as_it_comes(
        self,
        to_send: Iterator[Turn],
        to_receive: Iterator[Turn],
        sums: Sums,
        ahead: FindAhead,
        own: Job,
    ) -> None:
        has_own = False
        while True:
            moved = self._send(to_send)
            moved |= self._receive(to_receive, sums)
            if own.is_done and not has_own:
                has_own = moved = True
                self._ended(own, "hop 0")
            if moved:
                ahead.advance()
            elif has_own and not (self._sent or self._received) and ahead.is_done:
                return
            self.link.pause(self.lane, has_progressed=moved)

    def _run_in_order(
        self, to_send: Sequence[Turn], to_receive: Sequence[Turn], sums: Sums, ahead: FindAhead
    ) -> None:
        """The same messages where there is one for each rank; see `RingPull._run_in_order`."""
        link = self.link
        coming = []
        for turn in to_receive:
            message = self.buffers.take(gradient_bytes(turn.chunk, self.codecs))
            coming.append(link.receive(_GRADIENTS, message, turn.peer, turn.what))
        going = []
        for turn in to_send:
            message = self.buffers.take(gradient_bytes(turn.chunk, self.codecs))
            pack_gradients(message, turn.chunk, turn.peer, self.routed, self.requests, self.codecs)
            going.append(link.send(_GRADIENTS, message, turn.peer, turn.what))
        ahead.advance()
        for turn, transfer in zip(to_receive, coming, strict=True):
            link.wait(transfer)
            add = partial(sums.add_message, transfer.buffer, turn.chunk)
            self._ended(self.lane.submit(add), turn.what)
            ahead.advance()
        for transfer in going:
            link.wait(transfer)
        for transfer in [*coming, *going]:
            self.buffers.give_back(transfer.buffer)

    def _send(self, waiting: Iterator[Turn]) -> bool:
        moved = False
        while self._sent and self.link.is_done(self._sent[0]):
            self.buffers.give_back(self._sent.popleft().buffer)
            moved = True
        while len(self._sent) < self.chunks_in_flight:
            turn = next(waiting, None)
            if turn is None:
                break
            message = self.buffers.take(gradient_bytes(turn.chunk, self.codecs))
            pack_gradients(message, turn.chunk, turn.peer, self.routed, self.requests, self.codecs)
            self._sent.append(self.link.send(_GRADIENTS, message, turn.peer, turn.what))
            moved = True
        return moved

    def _receive(self, waiting: Iterator[Turn], sums: Sums) -> bool:
        moved = False
        while len(self._received) < self.chunks_in_flight:
            turn = next(waiting, None)
            if turn is None:
                break
            message = self.buffers.take(gradient_bytes(turn.chunk, self.codecs))
            coming = self.link.receive(_GRADIENTS, message, turn.peer, turn.what)
            self._received.append(_Received(turn, coming))
            moved = True
        silent: set[int] = set()
        for each in self._received:
            # Of one rank's messages only the first is looked at: they come in order.
            if each.has_come or each.turn.peer in silent:
                continue
            if self.link.is_done(each.coming):
                each.has_come = moved = True
            else:
                silent.add(each.turn.peer)
        for each in self._received:
            if not each.has_come:
                break  # later ones wait: sums are taken in the order of the queue
            if each.adding is None:
                call = partial(sums.add_message, each.coming.buffer, each.turn.chunk)
                each.adding = self.lane.submit(call)
                moved = True
        while self._received and self._received[0].adding is not None:
            adding = self._received[0].adding
            if not adding.is_done:
                break
            received = self._received.popleft()
            self._ended(adding, received.turn.what)
            self.buffers.give_back(received.coming.buffer)
            moved = True
        return moved

    def _ended(self, job: Job, what: str) -> None:
        self._error = self._error or job.error
        if self.link.trace is not None:
            details = {"of": what}
            self.link.trace.add(
                "add up", job.begin_ns, job.end_ns, details, thread_id=job.thread_id
            )
