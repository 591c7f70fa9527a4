"""The rules of the ring in simulated time, as in `exchange.pull` and `exchange.push` of core."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from sparring.adapter import MessageSizes
from sparring_plan.simulation.cluster import Group, Message, Phase, Rank
from sparring_plan.simulation.model import Compute

__all__ = [
    "MAX_FINDS",
    "Parts",
    "PullPhase",
    "PushPhase",
    "Stream",
    "StreamPart",
    "split_row_parts",
]

MAX_FINDS = 2
"""Number of chunks that an owner finds concurrently, as in core; a test compares both."""


@dataclass(frozen=True, slots=True)
class StreamPart:
    """One message of a stream, and the work that it causes.

    Args:
        number: Number of the part in its stream.
        key_bytes, row_bytes, gradient_bytes: Size of the message to the owner, of its reply, and of
            the gradients to the owner.
        find_seconds, add_seconds: Time of the owner's lane to reply, and to add the gradients.
        move_seconds: Time of the driving thread to write or place rows.
    """

    number: int
    key_bytes: int
    row_bytes: int
    gradient_bytes: int
    find_seconds: float
    add_seconds: float
    move_seconds: float


Parts = Sequence[StreamPart]


@dataclass(frozen=True, slots=True)
class Stream:
    """Exchange of a ring, on one rank.

    Args:
        group: Participating ranks.
        asked: Per hop, the parts that the rank requests or sends; hop 0 is the rank itself.
        served: Per hop, the parts that others request from it or send to it.
        chunks_in_flight: Maximum number of parts in flight in each direction.
    """

    group: Group
    asked: Sequence[Parts]
    served: Sequence[Parts]
    chunks_in_flight: int

    def asked_parts(self) -> Iterator[_Planned]:
        """Yields parts that are sent to others, in the order of hops."""
        return _planned(self.asked)

    def served_parts(self) -> Iterator[_Planned]:
        """Yields parts that others send, in the order of hops."""
        return _planned(self.served)

    def own_parts(self) -> Parts:
        """Returns parts that the rank requests from itself."""
        return self.asked[0]


@dataclass(frozen=True, slots=True)
class _Planned:
    hop: int
    part: StreamPart


def _planned(hops: Sequence[Parts]) -> Iterator[_Planned]:
    for hop, parts in enumerate(hops[1:], start=1):
        for part in parts:
            yield _Planned(hop, part)


def split_row_parts(
    counts: npt.NDArray[np.int64],
    sizes: MessageSizes,
    compute: Sequence[Compute],
    chunk_rows: int,
) -> list[StreamPart]:
    """Returns the chunks of a stream of keys.

    Args:
        counts: ``(tables,)``: number of keys per table.
        sizes: Sizes of the messages of these tables.
        compute: Seconds per row of each table.
        chunk_rows: Maximum number of keys per message.
    """
    found = []
    for number, chunk in enumerate(sizes.chunks(counts, chunk_rows)):
        each = [(count, compute[table]) for table, count in chunk.counts]
        found.append(
            StreamPart(
                number,
                chunk.key_bytes,
                chunk.reply_bytes,
                chunk.gradient_bytes,
                sum(count * of.find_seconds_per_row for count, of in each),
                sum(count * of.add_seconds_per_row for count, of in each),
                sum(count * of.move_seconds_per_row for count, of in each),
            )
        )
    return found


@dataclass(slots=True)
class _Asked:
    planned: _Planned
    has_sent: bool = False
    has_placed: bool = False


@dataclass(slots=True)
class _Served:
    planned: _Planned
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
        """Makes all possible progress, and ends the phase if nothing is left."""

    def end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self.rank.next_phase()


class PullPhase(_RingPhase):
    """Sends keys, finds rows while others are in transit, and receives rows."""

    def __init__(self, rank: Rank, number: int, stream: Stream) -> None:
        super().__init__(rank, number, stream)
        self._to_ask, self._to_serve = stream.asked_parts(), stream.served_parts()
        self._own = iter(stream.own_parts())
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
            key = ("rows", asked.planned.hop, asked.planned.part.number)
            asked.has_placed = asked.has_placed or key in self.come
        while self._asked and self._asked[0].has_sent and self._asked[0].has_placed:
            self._asked.popleft()
        while len(self._asked) < self.stream.chunks_in_flight:
            planned = next(self._to_ask, None)
            if planned is None:
                return
            asked = _Asked(planned)
            self._asked.append(asked)
            place = planned.hop, planned.part.number
            self._place_seconds[place] = planned.part.move_seconds
            message = Message(self.number, "keys", planned.hop, planned.part.number)
            peer = self.stream.group.peer(self.rank.number, planned.hop)
            when_left = self.rank.send(message, planned.part.key_bytes, peer)
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
                num_bytes = planned.part.row_bytes
                message = Message(self.number, "rows", planned.hop, planned.part.number)
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
            if self._num_finding >= MAX_FINDS:
                return
            key = ("keys", served.planned.hop, served.planned.part.number)
            if served.is_submitted or key not in self.come:
                continue
            served.is_submitted = True
            self._num_finding += 1
            seconds = served.planned.part.find_seconds
            self.rank.work(seconds, partial(self._found, served))
        own = None if self._num_finding else next(self._own, None)
        if own is not None:
            self._num_finding += 1
            self.rank.work(own.find_seconds, partial(self._found, None))

    def _found(self, served: _Served | None) -> None:
        self._num_finding -= 1
        if served is not None:
            served.is_found = True
        self.advance()


class PushPhase(_RingPhase):
    """Sends gradients, and adds received gradients in the order of hops."""

    def __init__(self, rank: Rank, number: int, stream: Stream) -> None:
        super().__init__(rank, number, stream)
        self._to_send, self._to_receive = stream.asked_parts(), stream.served_parts()
        self._num_leaving = 0
        self._received: deque[_Planned] = deque()
        self._num_submitted = 0
        self._num_adding = 0

    def start(self) -> None:
        own = sum(part.add_seconds for part in self.stream.own_parts())
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
                Message(self.number, "gradients", planned.hop, planned.part.number),
                planned.part.gradient_bytes,
                self.stream.group.peer(self.rank.number, planned.hop),
                seconds=planned.part.move_seconds,
            )
            when_left(self._left)
        while len(self._received) < self.stream.chunks_in_flight:
            planned = next(self._to_receive, None)
            if planned is None:
                break
            self._received.append(planned)
        while self._num_submitted < len(self._received):
            planned = self._received[self._num_submitted]
            if ("gradients", planned.hop, planned.part.number) not in self.come:
                break
            self._num_submitted += 1
            self._num_adding += 1
            self.rank.work(planned.part.add_seconds, partial(self._added, planned))
        if not (self._num_leaving or self._received or self._num_adding):
            self.end()

    def _left(self) -> None:
        self._num_leaving -= 1
        self.advance()

    def _added(self, planned: _Planned | None) -> None:
        self._num_adding -= 1
        if planned is not None:
            assert self._received.popleft() is planned
            self._num_submitted -= 1
        self.advance()
