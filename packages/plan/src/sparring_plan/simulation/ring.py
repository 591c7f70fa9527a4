"""The ring's own rules, in simulated time: those of `exchange.pull` and `exchange.push` of core."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from sparring import (
    KEY_BYTES,
    MOST_FINDS,
    ChunkTransfer,
    Codec,
    chunk_transfers,
    gradient_bytes,
    reply_bytes,
)
from sparring_plan.simulation.cluster import Group, Message, Phase, Rank
from sparring_plan.simulation.model import Compute

__all__ = ["PullPhase", "PushPhase", "Stream"]


@dataclass(frozen=True, slots=True)
class Stream:
    """Exchange of a ring, of one rank.

    Args:
        group: who takes part.
        asked: ``(group.size, tables)``: keys that the rank asks for at each hop, those of its own shard
            first.
        served: ``(group.size, tables)``: keys that it is asked for at each hop.
        codecs: of each table.
        chunk_rows: the most keys in a message.
        chunks_in_flight: the most chunks under way, each way.
        compute: seconds for each row, of each table; of one for all tables alike.
    """

    group: Group
    asked: npt.NDArray[np.int64]
    served: npt.NDArray[np.int64]
    codecs: Sequence[Codec]
    chunk_rows: int
    chunks_in_flight: int
    compute: Sequence[Compute]

    def asked_transfers(self) -> Iterator[ChunkTransfer]:
        """The chunks that the rank asks for, or sends, in the order of hops."""
        return chunk_transfers(range(1, self.group.size), self.asked, self.chunk_rows)

    def served_transfers(self) -> Iterator[ChunkTransfer]:
        """The chunks that others ask it for, or send to it, in the order of hops."""
        return chunk_transfers(range(1, self.group.size), self.served, self.chunk_rows)

    def own_transfers(self) -> Iterator[ChunkTransfer]:
        """The chunks of a rank's own shard."""
        return chunk_transfers([0], self.asked, self.chunk_rows)

    def find_seconds(self, planned: ChunkTransfer) -> float:
        """Time of the lane to find the rows of a chunk."""
        return sum(
            part.count * self.compute[part.table].find_seconds_per_row
            for part in planned.chunk.slices
        )

    def add_seconds(self, planned: ChunkTransfer) -> float:
        """Time of the lane to add the gradients of a chunk up."""
        return sum(
            part.count * self.compute[part.table].add_seconds_per_row
            for part in planned.chunk.slices
        )

    def move_seconds(self, planned: ChunkTransfer) -> float:
        """Time of the driving thread to write the rows of a chunk, or to place them."""
        return sum(
            part.count * self.compute[part.table].move_seconds_per_row
            for part in planned.chunk.slices
        )


@dataclass(slots=True)
class _Asked:
    planned: ChunkTransfer
    has_sent: bool = False
    has_placed: bool = False


@dataclass(slots=True)
class _Served:
    planned: ChunkTransfer
    is_submitted: bool = False
    is_found: bool = False
    is_sent: bool = False
    is_gone: bool = False


class _RingPhase(Phase):
    def __init__(self, rank: Rank, number: int, stream: Stream) -> None:
        super().__init__(rank, number)
        self.stream = stream
        self.come: set[tuple[str, int, int]] = set()
        self._is_over = False

    def start(self) -> None:
        self.advance()

    def arrived(self, message: Message) -> None:
        self.come.add((message.kind, message.hop, message.chunk))
        self.advance()

    @abstractmethod
    def advance(self) -> None:
        """Moves on what can move, and ends the phase where nothing is left."""

    def end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self.rank.next_phase()


class PullPhase(_RingPhase):
    """Keys out, rows found while others travel, rows in."""

    def __init__(self, rank: Rank, number: int, stream: Stream) -> None:
        super().__init__(rank, number, stream)
        self._to_ask, self._to_serve = stream.asked_transfers(), stream.served_transfers()
        self._own = stream.own_transfers()
        self._asked: deque[_Asked] = deque()
        self._served: deque[_Served] = deque()
        self._num_finding = 0
        self._place_seconds: dict[tuple[int, int], float] = {}

    def take_seconds(self, message: Message) -> float:
        if message.kind == "keys":
            return 0.0
        return self._place_seconds[message.hop, message.chunk]

    def advance(self) -> None:
        self._ask()
        self._serve()
        self._find()
        if not (self._asked or self._served or self._num_finding):
            self.end()

    def _ask(self) -> None:
        for asked in self._asked:
            key = ("rows", asked.planned.hop, asked.planned.chunk.number)
            asked.has_placed = asked.has_placed or key in self.come
        while self._asked and self._asked[0].has_sent and self._asked[0].has_placed:
            self._asked.popleft()
        while len(self._asked) < self.stream.chunks_in_flight:
            planned = next(self._to_ask, None)
            if planned is None:
                return
            asked = _Asked(planned)
            self._asked.append(asked)
            place = planned.hop, planned.chunk.number
            self._place_seconds[place] = self.stream.move_seconds(planned)
            message = Message(self.number, "keys", planned.hop, planned.chunk.number)
            peer = self.stream.group.peer(self.rank.number, planned.hop)
            when_left = self.rank.send(message, planned.chunk.count * KEY_BYTES, peer)
            when_left(partial(self._keys_left, asked))

    def _keys_left(self, asked: _Asked) -> None:
        asked.has_sent = True
        self.advance()

    def _serve(self) -> None:
        while self._served and self._served[0].is_gone:
            self._served.popleft()
        while len(self._served) < self.stream.chunks_in_flight:
            planned = next(self._to_serve, None)
            if planned is None:
                break
            self._served.append(_Served(planned))
        later: set[int] = set()
        for served in self._served:
            if served.is_found and not served.is_sent and served.planned.hop not in later:
                served.is_sent = True
                planned = served.planned
                num_bytes = reply_bytes(planned.chunk, self.stream.codecs)
                message = Message(self.number, "rows", planned.hop, planned.chunk.number)
                peer = self.stream.group.peer(self.rank.number, -planned.hop)
                when_left = self.rank.send(message, num_bytes, peer)
                when_left(partial(self._rows_left, served))
            if not served.is_sent:
                later.add(served.planned.hop)

    def _rows_left(self, served: _Served) -> None:
        served.is_gone = True
        self.advance()

    def _find(self) -> None:
        for served in self._served:
            if self._num_finding >= MOST_FINDS:
                return
            key = ("keys", served.planned.hop, served.planned.chunk.number)
            if served.is_submitted or key not in self.come:
                continue
            served.is_submitted = True
            self._num_finding += 1
            seconds = self.stream.find_seconds(served.planned)
            self.rank.work(seconds, partial(self._found, served))
        planned = None if self._num_finding else next(self._own, None)
        if planned is not None:
            self._num_finding += 1
            self.rank.work(self.stream.find_seconds(planned), partial(self._found, None))

    def _found(self, served: _Served | None) -> None:
        self._num_finding -= 1
        if served is not None:
            served.is_found = True
        self.advance()


class PushPhase(_RingPhase):
    """Gradients out, and those that come in added up in the order of hops."""

    def __init__(self, rank: Rank, number: int, stream: Stream) -> None:
        super().__init__(rank, number, stream)
        self._to_send, self._to_receive = stream.asked_transfers(), stream.served_transfers()
        self._num_leaving = 0
        self._received: deque[ChunkTransfer] = deque()
        self._num_submitted = 0
        self._num_adding = 0

    def start(self) -> None:
        own = sum(map(self.stream.add_seconds, self.stream.own_transfers()))
        self._num_adding = 1
        self.rank.work(own, partial(self._added, None))
        self.advance()

    def advance(self) -> None:
        while self._num_leaving < self.stream.chunks_in_flight:
            planned = next(self._to_send, None)
            if planned is None:
                break
            self._num_leaving += 1
            when_left = self.rank.send(
                Message(self.number, "gradients", planned.hop, planned.chunk.number),
                gradient_bytes(planned.chunk, self.stream.codecs),
                self.stream.group.peer(self.rank.number, planned.hop),
                seconds=self.stream.move_seconds(planned),
            )
            when_left(self._left)
        while len(self._received) < self.stream.chunks_in_flight:
            planned = next(self._to_receive, None)
            if planned is None:
                break
            self._received.append(planned)
        while self._num_submitted < len(self._received):
            planned = self._received[self._num_submitted]
            if ("gradients", planned.hop, planned.chunk.number) not in self.come:
                break
            self._num_submitted += 1
            self._num_adding += 1
            self.rank.work(self.stream.add_seconds(planned), partial(self._added, planned))
        if not (self._num_leaving or self._received or self._num_adding):
            self.end()

    def _left(self) -> None:
        self._num_leaving -= 1
        self.advance()

    def _added(self, planned: ChunkTransfer | None) -> None:
        self._num_adding -= 1
        if planned is not None:
            assert self._received.popleft() is planned
            self._num_submitted -= 1
        self.advance()
