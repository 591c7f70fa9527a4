"""Selects, shuffles and splits a stream of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow

from sparring_train.columns import Column, ColumnBatch
from sparring_train.data.split import Part
from sparring_train.data.table.decode import Decoder, RawRows
from sparring_train.data.table.split import Split

__all__ = [
    "BLOCK_ROWS",
    "ROWS_SHUFFLED",
    "Block",
    "BlockReader",
    "Order",
    "Piece",
    "blocks",
    "join_pieces",
    "start_threads",
]

Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]
Order = Callable[[int, int], Ids]
"""(number of a block, number of its rows) → permutation of the rows."""

ROWS_SHUFFLED = 1 << 20
"""Number of rows over all lanes, among which rows are shuffled. Reading ahead holds twice as many."""
BLOCK_ROWS = 1 << 16
"""Number of rows that are read at a time."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in memory. The features that have one id per row form a matrix, so that a step copies the
    ids of all of them at once."""

    features: tuple[str, ...]
    """All features, in the order of a batch."""
    names: tuple[str, ...]
    """Features of the matrix."""
    ids: Ids
    """``(len(names), b)``"""
    rest: ColumnBatch
    """The other columns."""
    is_good: Bools | None
    """``(b,)``; bad rows count as rows of a step, but are left out of its batch. None: all are good."""
    ends: Mapping[str, Ids]
    """Feature with `Column.lengths` → ``(b + 1,)``, number of ids before each row, and of all rows."""
    num_rows: int

    def __len__(self) -> int:
        return self.num_rows


class Piece(NamedTuple):
    """Rows of a block, from `begin` to `end`."""

    block: Block
    begin: int
    end: int

    def matrix(self, names: tuple[str, ...]) -> Ids:
        """Returns the ids of features of the block's matrix."""
        block = self.block
        ids = block.ids[:, self.begin : self.end]
        if names == block.names:
            return ids
        return ids[[block.names.index(name) for name in names]]

    def column(self, name: str) -> Column:
        """Returns a feature, without a copy."""
        block, begin, end = self
        if name in block.names:
            return Column(block.ids[block.names.index(name), begin:end])
        column, ends = block.rest.ids[name], block.ends[name]
        assert column.lengths is not None
        return Column(column.ids[ends[begin] : ends[end]], column.lengths[begin:end])


def join_pieces(pieces: Sequence[Piece]) -> tuple[ColumnBatch, Bools | None]:
    """Returns the rows of pieces, in order, and a mask of the good ones; None if all are good. Copies
    each row at most once."""
    first = pieces[0].block
    names = first.names
    if any(each.block.names != names for each in pieces):
        # A column may lack ids in some blocks only.
        names = tuple(name for name in names if all(name in each.block.names for each in pieces))
    ids = dict(zip(names, _join([each.matrix(names) for each in pieces], axis=1), strict=True))

    def column(name: str) -> Column:
        if name in ids:
            return Column(ids[name])
        parts = [each.column(name) for each in pieces]
        return Column(
            np.concatenate([each.ids for each in parts]),
            np.concatenate([each.counts for each in parts]),
        )

    def floats(get: Callable[[ColumnBatch], npt.NDArray[np.float32] | None]) -> Any:
        if get(first.rest) is None:
            return None
        return _join([get(block.rest)[begin:end] for block, begin, end in pieces])  # type: ignore[index]

    batch = ColumnBatch(
        {name: column(name) for name in first.features},
        floats(lambda rest: rest.numbers),
        floats(lambda rest: rest.labels),
        floats(lambda rest: rest.weights),
    )
    if all(each.block.is_good is None for each in pieces):
        return batch, None
    is_good = np.concatenate(
        [
            np.ones(end - begin, np.bool_) if block.is_good is None else block.is_good[begin:end]
            for block, begin, end in pieces
        ]
    )
    return batch, None if is_good.all() else is_good


def _join(parts: list[npt.NDArray[Any]], axis: int = 0) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)


def blocks(
    rows: Iterator[RawRows],
    decoder: Decoder,
    split: Split,
    *,
    part: Part,
    block_rows: int,
    order: Order | None,
) -> Iterator[Block]:
    """Yields the rows of one part of a stream, in blocks.

    Args:
        rows: the stream.
        decoder: converts rows to batches.
        split: assigns rows to parts.
        part: the part to yield.
        block_rows: minimum number of rows of all parts that a block is selected from.
        order: permutation of the rows of a block; None keeps the order of the stream.
    """
    batches: list[ColumnBatch] = []
    chosen: list[Bools] = []
    good: list[Bools | None] = []
    number = held = 0

    def block() -> Block:
        places = np.flatnonzero(np.concatenate(chosen))
        if order is not None:
            places = places[order(number, len(places))]
        is_good = None
        if any(each is not None for each in good):
            masks = zip(good, batches, strict=True)
            is_good = np.concatenate(
                [np.ones(len(of), np.bool_) if each is None else each for each, of in masks]
            )[places]
        joined = ColumnBatch.joined(batches)
        for kept in (batches, chosen, good):
            kept.clear()
        return _take(joined, places, is_good)

    def add(each: RawRows) -> int:
        batch, is_good = decoder.decode(each)
        batches.append(batch)
        chosen.append(split.is_in(part, each))
        good.append(is_good)
        return len(batch)

    # While a lane waits for its next turn, no variable refers to the rows of its last block.
    for num_added in map(add, rows):
        held += num_added
        if held >= block_rows:
            yield block()
            held = 0
            number += 1
    if batches:
        yield block()


def _take(batch: ColumnBatch, places: Ids, is_good: Bools | None) -> Block:
    features = tuple(batch.ids)
    lists = {name: each for name, each in batch.ids.items() if each.lengths is not None}
    names = tuple(name for name in features if name not in lists)
    ids = np.empty((len(names), len(places)), np.int64)
    for name, row in zip(names, ids, strict=True):
        # All places are valid, so the mode does not matter, but with "raise" NumPy copies twice.
        np.take(batch.ids[name].ids, places, out=row, mode="clip")
    rest = replace(batch, ids=lists).take(places)
    ends = {
        name: np.append(0, np.cumsum(column.lengths))
        for name, column in rest.ids.items()
        if column.lengths is not None
    }
    return Block(features, names, ids, rest, is_good, ends, len(places))


@contextmanager
def start_threads() -> Iterator[Executor]:
    """Starts threads that read blocks ahead, as many as pyarrow uses. They end after the blocks that they
    are reading at the end of the context."""
    threads = ThreadPoolExecutor(pyarrow.cpu_count(), "sparring-read")
    try:
        yield threads
    finally:
        # The garbage collector ends an abandoned reading, at any place of any thread. It must not wait
        # there, because a thread that reads may need a lock that this place holds.
        threads.shutdown(wait=False, cancel_futures=True)


class BlockReader:
    """Reads a stream of blocks, any number of rows at a time. One of `threads` reads the next block
    ahead."""

    def __init__(self, stream: Iterator[Block], threads: Executor) -> None:
        self._stream, self._threads = stream, threads
        self._coming = self._read_ahead()
        self._block: Block | None = None
        self._at = 0

    def take(self, count: int) -> list[Piece]:
        """Returns the next `count` rows, in pieces; fewer at the end of the stream.

        Raises:
            DataError: the block of these rows cannot be read.
        """
        block, at = self._block, self._at
        if block is not None and at + count <= block.num_rows:  # in most steps
            self._at += count
            return [Piece(block, at, at + count)]
        pieces = []
        while count:
            if self._block is None or self._at == len(self._block):
                self._block, self._at = self._coming.result(), 0
                if self._block is None:
                    break
                self._coming = self._read_ahead()
                continue
            end = min(self._at + count, len(self._block))
            pieces.append(Piece(self._block, self._at, end))
            count -= end - self._at
            self._at = end
        return pieces

    def _read_ahead(self) -> Future[Block | None]:
        return self._threads.submit(lambda: next(self._stream, None))
