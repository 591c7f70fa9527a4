"""The ring's own rules, in simulated time: those of `sparring.exchange.pulling` and `pushing`."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from sparring.exchange.pulling import MOST_FINDS
from sparring.exchange.pushing import gradient_bytes
from sparring.exchange.reply import reply_bytes
from sparring.exchange.routing import Turn, turns_of
from sparring.exchange.wire import KEY_BYTES, Codec
from sparring.simulation.cluster import Group, Message, Phase, Rank
from sparring.simulation.model import Compute

__all__ = ["PullPhase", "PushPhase", "Stream"]


@dataclass(frozen=True, slots=True)
class Stream:
    """What a ring exchanges.

    Args:
        group: who takes part.
        counts: ``(group.size, 1)``: keys at each hop, those of a rank's own shard first.
        codecs: of the table.
        chunk_rows: the most keys in a message.
        chunks_in_flight: the most chunks under way, each way.
        compute: seconds for each row.
    """

    group: Group
    counts: npt.NDArray[np.int64]
    codecs: Sequence[Codec]
    chunk_rows: int
    chunks_in_flight: int
    compute: Compute

    def turns(self) -> Iterator[Turn]:
        """The chunks of all hops but the first, in the order of hops."""
        return turns_of(range(1, self.group.size), self.counts, self.chunk_rows)

    def own_turns(self) -> Iterator[Turn]:
        """The chunks of a rank's own shard."""
        return turns_of([0], self.counts, self.chunk_rows)


@dataclass(slots=True)
class _Asked:
    turn: Turn
    has_sent: bool = False
    has_placed: bool = False


@dataclass(slots=True)
class _Served:
    turn: Turn
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
        self._to_ask, self._to_serve = stream.turns(), stream.turns()
        self._own = stream.own_turns()
        self._asked: deque[_Asked] = deque()
        self._served: deque[_Served] = deque()
        self._num_finding = 0

    def take_seconds(self, message: Message) -> float:
        if message.kind == "keys":
            return 0.0
        rows = self._rows_of(message)
        return rows * self.stream.compute.move_seconds_per_row

    def _rows_of(self, message: Message) -> int:
        total = int(self.stream.counts[message.hop, 0])
        return min(self.stream.chunk_rows, total - message.chunk * self.stream.chunk_rows)

    def advance(self) -> None:
        self._ask()
        self._serve()
        self._find()
        if not (self._asked or self._served or self._num_finding):
            self.end()

    def _ask(self) -> None:
        for asked in self._asked:
            key = ("rows", asked.turn.hop, asked.turn.chunk.number)
            asked.has_placed = asked.has_placed or key in self.come
        while self._asked and self._asked[0].has_sent and self._asked[0].has_placed:
            self._asked.popleft()
        while len(self._asked) < self.stream.chunks_in_flight:
            turn = next(self._to_ask, None)
            if turn is None:
                return
            asked = _Asked(turn)
            self._asked.append(asked)
            message = Message(self.number, "keys", turn.hop, turn.chunk.number)
            peer = self.stream.group.peer(self.rank.number, turn.hop)
            when_left = self.rank.send(message, turn.chunk.count * KEY_BYTES, peer)
            when_left(partial(self._keys_left, asked))

    def _keys_left(self, asked: _Asked) -> None:
        asked.has_sent = True
        self.advance()

    def _serve(self) -> None:
        while self._served and self._served[0].is_gone:
            self._served.popleft()
        while len(self._served) < self.stream.chunks_in_flight:
            turn = next(self._to_serve, None)
            if turn is None:
                break
            self._served.append(_Served(turn))
        later: set[int] = set()
        for served in self._served:
            if served.is_found and not served.is_sent and served.turn.hop not in later:
                served.is_sent = True
                turn = served.turn
                num_bytes = reply_bytes(turn.chunk, self.stream.codecs)
                message = Message(self.number, "rows", turn.hop, turn.chunk.number)
                peer = self.stream.group.peer(self.rank.number, -turn.hop)
                when_left = self.rank.send(message, num_bytes, peer)
                when_left(partial(self._rows_left, served))
            if not served.is_sent:
                later.add(served.turn.hop)

    def _rows_left(self, served: _Served) -> None:
        served.is_gone = True
        self.advance()

    def _find(self) -> None:
        seconds_per_row = self.stream.compute.find_seconds_per_row
        for served in self._served:
            if self._num_finding >= MOST_FINDS:
                return
            key = ("keys", served.turn.hop, served.turn.chunk.number)
            if served.is_submitted or key not in self.come:
                continue
            served.is_submitted = True
            self._num_finding += 1
            self.rank.work(served.turn.chunk.count * seconds_per_row, partial(self._found, served))
        turn = None if self._num_finding else next(self._own, None)
        if turn is not None:
            self._num_finding += 1
            self.rank.work(turn.chunk.count * seconds_per_row, partial(self._found, None))

    def _found(self, served: _Served | None) -> None:
        self._num_finding -= 1
        if served is not None:
            served.is_found = True
        self.advance()


class PushPhase(_RingPhase):
    """Gradients out, and those that come in added up in the order of hops."""

    def __init__(self, rank: Rank, number: int, stream: Stream) -> None:
        super().__init__(rank, number, stream)
        self._to_send, self._to_receive = stream.turns(), stream.turns()
        self._num_leaving = 0
        self._received: deque[Turn] = deque()
        self._num_submitted = 0
        self._num_adding = 0

    def start(self) -> None:
        own = sum(turn.chunk.count for turn in self.stream.own_turns())
        self._num_adding = 1
        self.rank.work(own * self.stream.compute.add_seconds_per_row, partial(self._added, None))
        self.advance()

    def advance(self) -> None:
        while self._num_leaving < self.stream.chunks_in_flight:
            turn = next(self._to_send, None)
            if turn is None:
                break
            self._num_leaving += 1
            when_left = self.rank.send(
                Message(self.number, "gradients", turn.hop, turn.chunk.number),
                gradient_bytes(turn.chunk, self.stream.codecs),
                self.stream.group.peer(self.rank.number, turn.hop),
                seconds=turn.chunk.count * self.stream.compute.move_seconds_per_row,
            )
            when_left(self._left)
        while len(self._received) < self.stream.chunks_in_flight:
            turn = next(self._to_receive, None)
            if turn is None:
                break
            self._received.append(turn)
        while self._num_submitted < len(self._received):
            turn = self._received[self._num_submitted]
            if ("gradients", turn.hop, turn.chunk.number) not in self.come:
                break
            self._num_submitted += 1
            self._num_adding += 1
            self.rank.work(
                turn.chunk.count * self.stream.compute.add_seconds_per_row,
                partial(self._added, turn),
            )
        if not (self._num_leaving or self._received or self._num_adding):
            self.end()

    def _left(self) -> None:
        self._num_leaving -= 1
        self.advance()

    def _added(self, turn: Turn | None) -> None:
        self._num_adding -= 1
        if turn is not None:
            assert self._received.popleft() is turn
            self._num_submitted -= 1
        self.advance()
