"""Keys of several tables, grouped by the rank that owns them, and cut into chunks.

What goes to one rank is a stream: the keys of the first table, then those of the second, … A chunk is
a range of a stream of at most `chunk_rows` keys, and a piece is what it holds of one table.

    stream   │ table 0          │ table 1 │ table 2                       │
    chunks   │ chunk 0     │ chunk 1     │ chunk 2     │ chunk 3     │ 4 │

So many small tables need no more messages than a large one. Both ends of a stream know how many keys
of each table it has, and cut it alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.storage.contract import Keys

__all__ = [
    "Chunk",
    "Piece",
    "Routed",
    "Turn",
    "chunks_of",
    "route",
    "turns_of",
    "whole_stream",
]

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one table's keys in a stream."""

    table: int
    """Which of the tables that are exchanged together."""
    begin: int
    """Of its keys in this stream."""
    end: int
    at: int
    """Where it begins in the chunk, in keys."""

    @property
    def count(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of a stream."""

    number: int
    begin: int
    end: int
    pieces: tuple[Piece, ...]

    @property
    def count(self) -> int:
        return self.end - self.begin


def chunks_of(counts: Counts, chunk_rows: int) -> Iterator[Chunk]:
    """The chunks of a stream.

    Args:
        counts: ``(tables,)`` keys of each table in the stream.
        chunk_rows: the most keys in a chunk.
    """
    ends = np.cumsum(counts).tolist()
    total = ends[-1] if ends else 0
    table = 0
    for number, begin in enumerate(range(0, total, chunk_rows)):
        end = min(begin + chunk_rows, total)
        pieces = []
        at = begin
        while at < end:
            while ends[table] <= at:
                table += 1
            first = ends[table - 1] if table else 0
            stop = min(end, ends[table])
            pieces.append(Piece(table, at - first, stop - first, at - begin))
            at = stop
        yield Chunk(number, begin, end, tuple(pieces))


def whole_stream(counts: Counts) -> Chunk | None:
    """A whole stream as one chunk; None where it is empty."""
    return next(chunks_of(counts, max(1, int(counts.sum()))), None)


@dataclass(frozen=True, slots=True)
class Turn:
    """A chunk that is exchanged with one rank."""

    hop: int
    peer: int
    chunk: Chunk

    @property
    def what(self) -> str:
        """For traces."""
        return f"hop {self.hop} chunk {self.chunk.number}"


def turns_of(peers: Sequence[int], counts: Counts, chunk_rows: int) -> Iterator[Turn]:
    """The chunks of several streams, one stream after the other.

    Args:
        peers: the rank at hop 1, hop 2, …
        counts: ``(world_size, tables)``
        chunk_rows: the most keys in a chunk.
    """
    for hop, peer in enumerate(peers, start=1):
        for chunk in chunks_of(counts[peer], chunk_rows):
            yield Turn(hop, peer, chunk)


@dataclass(slots=True)
class Routed:
    """Keys grouped by owner."""

    orders: list[npt.NDArray[np.int64]]
    """Of each table ``(u,)``: its keys in the order of their owners."""
    offsets: list[npt.NDArray[np.int64]]
    """Of each table ``(world_size + 1,)``: where the keys of each owner begin."""
    counts: Counts
    """``(world_size, tables)``: keys of each table at each owner."""
    streams: list[Keys]
    """The keys for each owner."""

    def places(self, owner: int, piece: Piece) -> npt.NDArray[np.int64]:
        """Where the keys of a piece stand among those of their table."""
        first = int(self.offsets[piece.table][owner])
        return self.orders[piece.table][first + piece.begin : first + piece.end]


def route(keys: Sequence[Keys], owners: npt.NDArray[np.int32], world_size: int) -> Routed:
    """Groups the keys of each table by owner.

    Args:
        keys: of each table ``(u,)``, unique.
        owners: ``(4096,)``, the rank of each partition.
    """
    orders, offsets = [], []
    for each in keys:
        order, offset = _native.route(each, owners, world_size)
        orders.append(order)
        offsets.append(offset)
    counts = (
        np.stack([np.diff(each) for each in offsets], axis=1)
        if offsets
        else (np.empty((world_size, 0), np.int64))
    )
    grouped = [each[order] for each, order in zip(keys, orders, strict=True)]
    streams = [
        np.concatenate(
            [
                np.empty(0, np.int64),
                *(
                    each[at[owner] : at[owner + 1]]
                    for each, at in zip(grouped, offsets, strict=True)
                ),
            ]
        )
        for owner in range(world_size)
    ]
    return Routed(orders, offsets, counts, streams)
