"""Keys of several tables, grouped by the rank that owns them, and split into chunks.

The keys for one rank form a stream: the keys of the first table, then of the second, … A chunk is a
range of a stream with at most `chunk_rows` keys; a table slice is the part of a chunk that belongs to
one table.

    stream   │ table 0          │ table 1 │ table 2                       │
    chunks   │ chunk 0     │ chunk 1     │ chunk 2     │ chunk 3     │ 4 │

Therefore many small tables need no more messages than one large table with as many keys. Sender and
receiver of a stream know its number of keys per table, so both split it in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.device.kernels import ArrayKernels, DeviceArray
from sparring.contracts.storage.results import Keys
from sparring.kernels.cpu import HOST

__all__ = [
    "Chunk",
    "HopTransfers",
    "TableSlice",
    "hop_transfers",
    "RoutedKeys",
    "ChunkTransfer",
    "split_into_chunks",
    "route",
    "chunk_transfers",
    "whole_stream",
]

Counts = npt.NDArray[np.int64]


class TableSlice(NamedTuple):
    """A range of one table's keys in a stream."""

    table: int
    """Index of the table in the list of tables of this exchange."""
    begin: int
    """First key of the slice, as an index into the table's keys in this stream."""
    end: int
    at: int
    """Number of keys before the slice in its chunk."""

    @property
    def num_keys(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Chunk:
    """A range of a stream."""

    number: int
    begin: int
    end: int
    slices: tuple[TableSlice, ...]

    @property
    def count(self) -> int:
        return self.end - self.begin


def split_into_chunks(counts: Counts, chunk_rows: int) -> Iterator[Chunk]:
    """Yields the chunks of a stream.

    Args:
        counts: ``(tables,)``: number of keys of each table in the stream.
        chunk_rows: maximum number of keys per chunk.
    """
    ends = np.cumsum(counts).tolist()
    total = ends[-1] if ends else 0
    table = 0
    for number, begin in enumerate(range(0, total, chunk_rows)):
        end = min(begin + chunk_rows, total)
        slices = []
        at = begin
        while at < end:
            while ends[table] <= at:
                table += 1
            first = ends[table - 1] if table else 0
            stop = min(end, ends[table])
            slices.append(TableSlice(table, at - first, stop - first, at - begin))
            at = stop
        yield Chunk(number, begin, end, tuple(slices))


def whole_stream(counts: Counts) -> Chunk | None:
    """Returns a whole stream as one chunk, or None if it is empty."""
    return next(split_into_chunks(counts, max(1, int(counts.sum()))), None)


@dataclass(frozen=True, slots=True)
class ChunkTransfer:
    """A chunk that is exchanged with one rank."""

    hop: int
    peer: int
    chunk: Chunk

    @property
    def label(self) -> str:
        """Label for traces."""
        return f"hop {self.hop} chunk {self.chunk.number}"


def chunk_transfers(
    peers: Sequence[int], counts: Counts, chunk_rows: int
) -> Iterator[ChunkTransfer]:
    """Yields the chunks of several streams, one stream after the other.

    Args:
        peers: the rank with which chunks are exchanged at hop 1, hop 2, …
        counts: ``(world_size, tables)``: number of keys per rank and table.
        chunk_rows: maximum number of keys per chunk.
    """
    for hop, peer in enumerate(peers, start=1):
        for chunk in split_into_chunks(counts[peer], chunk_rows):
            yield ChunkTransfer(hop, peer, chunk)


class RoutedKeys:
    """Keys of several tables, grouped by owner. They are in the memory of the kernels' device.

    Args:
        orders: for each table, the original positions ``(u,)`` of its grouped keys.
        offsets: for each table, world_size + 1 numbers: the keys of owner r are
            ``offsets[r]`` to ``offsets[r + 1]``.
        keys: for each table, its keys ``(u,)``, sorted by owner; empty if `streams` are given.
        world_size: number of owners.
        streams: keys of all tables for each owner, in host memory; None: computed from `keys`.
    """

    def __init__(
        self,
        orders: list[DeviceArray],
        offsets: list[list[int]],
        keys: list[DeviceArray],
        world_size: int,
        streams: list[Keys] | None = None,
    ) -> None:
        self.orders, self.offsets, self.keys = orders, offsets, keys
        self.ends = np.array(offsets, np.int64).reshape(len(offsets), world_size + 1)
        """`offsets` as an array ``(tables, world_size + 1)``."""
        self.counts: Counts = np.ascontiguousarray(np.diff(self.ends).T)
        """``(world_size, tables)``: number of keys per owner and table."""
        self._streams = streams

    @cached_property
    def streams(self) -> list[Keys]:
        """Keys of all tables for each owner, in host memory."""
        if self._streams is not None:
            return self._streams
        nothing, streams = np.empty(0, np.int64), []
        for owner in range(len(self.counts)):
            parts = [
                keys[at[owner] : at[owner + 1]]
                for keys, at in zip(self.keys, self.offsets, strict=True)
            ]
            streams.append(np.concatenate([nothing, *parts]))
        return streams

    def range_of(self, owner: int, part: TableSlice) -> slice:
        """Returns the range of a slice's keys among the grouped keys of its table."""
        first = self.offsets[part.table][owner]
        return slice(first + part.begin, first + part.end)

    def positions(self, owner: int, part: TableSlice) -> DeviceArray:
        """Returns the positions of a slice's keys among the original keys of its table."""
        return self.orders[part.table][self.range_of(owner, part)]


def route(
    kernels: ArrayKernels,
    keys: Sequence[DeviceArray],
    owners: Sequence[DeviceArray],
    world_size: int,
) -> RoutedKeys:
    """Groups the keys of each table by owner.

    On the CPU it is one native call. A GPU is synchronized once per table, because the host needs the
    counts.

    Args:
        kernels: kernels of the device of keys and owners.
        keys: for each table, unique keys ``(u,)``.
        owners: for each table, the rank of each partition: ``(4096,)`` int32.
        world_size: number of ranks.
    """
    if kernels is HOST:
        orders, ends, streams = _native.route_tables(keys, owners, world_size)
        return RoutedKeys(orders, ends.tolist(), [], world_size, streams)
    take, to_host = kernels.arrays.take, kernels.arrays.to_host
    routes = [
        kernels.route(each, ranks, world_size) for each, ranks in zip(keys, owners, strict=True)
    ]
    grouped = [take(each, route.order) for each, route in zip(keys, routes, strict=True)]
    offsets = [np.asarray(to_host(route.offsets)).tolist() for route in routes]
    return RoutedKeys([route.order for route in routes], offsets, grouped, world_size)


@dataclass(frozen=True, slots=True)
class HopTransfers:
    """A chunk to send and a chunk to receive at the same time; one of them may be None."""

    hop: int
    number: int
    outgoing: Chunk | None
    """Chunk that this rank sends. In a pull it goes to the requester, in a push to the owner."""
    incoming: Chunk | None
    """Chunk that this rank receives. In a pull it comes from the owner, in a push from the
    requester."""

    @property
    def label(self) -> str:
        """Label for traces."""
        return f"hop {self.hop} chunk {self.number}"


def hop_transfers(
    outgoing: Sequence[Counts], incoming: Sequence[Counts], chunk_rows: int
) -> list[HopTransfers]:
    """Returns all transfers, ordered by hop and number.

    A hop has as many transfers as the direction with more chunks requires. Sender and receiver use
    the same hop and number for a message, and all ranks process transfers in the same order.
    Therefore there is no deadlock: the first incomplete transfer is always being processed by both.

    Args:
        outgoing: for hop 1, 2, …: the number of outgoing rows ``(tables,)``.
        incoming: for hop 1, 2, …: the number of incoming rows ``(tables,)``.
        chunk_rows: maximum number of rows per chunk.
    """
    transfers = []
    for hop, (out, into) in enumerate(zip(outgoing, incoming, strict=True), start=1):
        going, coming = (
            list(split_into_chunks(out, chunk_rows)),
            list(split_into_chunks(into, chunk_rows)),
        )
        for number in range(max(len(going), len(coming))):
            transfers.append(
                HopTransfers(
                    hop,
                    number,
                    going[number] if number < len(going) else None,
                    coming[number] if number < len(coming) else None,
                )
            )
    return transfers
