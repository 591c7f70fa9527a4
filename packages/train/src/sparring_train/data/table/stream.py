"""Selects, shuffles and splits a stream of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
]

Order = Callable[[int, int], npt.NDArray[np.int64]]
"""(number of a block, number of its rows) → permutation of the rows."""

ROWS_SHUFFLED = 1 << 20
"""Number of rows in memory over all lanes, among which rows are shuffled."""
BLOCK_ROWS = 1 << 16
"""Number of rows that are read at a time."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows in memory."""

    batch: ColumnBatch
    is_good: npt.NDArray[np.bool_]
    """``(b,)``; bad rows count as rows of a step, but are left out of its batch."""
    ends: Mapping[str, npt.NDArray[np.int64]]
    """Feature with `Column.lengths` → ``(b + 1,)``, number of ids before each row, and of all rows."""

    def __len__(self) -> int:
        return len(self.batch)

    def column(self, name: str, begin: int, end: int) -> Column:
        """Returns a feature of the rows from `begin` to `end`, without a copy."""
        column = self.batch.ids[name]
        if column.lengths is None:
            return Column(column.ids[begin:end])
        ends = self.ends[name]
        return Column(column.ids[ends[begin] : ends[end]], column.lengths[begin:end])


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of a block, from `begin` to `end`."""

    block: Block
    begin: int
    end: int


def join_pieces(pieces: Sequence[Piece]) -> tuple[ColumnBatch, npt.NDArray[np.bool_]]:
    """Returns the rows of pieces, in order, and which of them are good. Copies each row at most once."""
    first = pieces[0].block.batch

    def joined(get: Callable[[Block], Any]) -> Any:
        parts = [get(each.block)[each.begin : each.end] for each in pieces]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def column(name: str) -> Column:
        if all(each.block.batch.ids[name].lengths is None for each in pieces):
            return Column(joined(lambda block: block.batch.ids[name].ids))
        parts = [each.block.column(name, each.begin, each.end) for each in pieces]
        return Column(
            np.concatenate([each.ids for each in parts]),
            np.concatenate([each.counts for each in parts]),
        )

    batch = ColumnBatch(
        {name: column(name) for name in first.ids},
        joined(lambda block: block.batch.numbers),
        None if first.labels is None else joined(lambda block: block.batch.labels),
        None if first.weights is None else joined(lambda block: block.batch.weights),
    )
    return batch, joined(lambda block: block.is_good)


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
    chosen: list[npt.NDArray[np.bool_]] = []
    good: list[npt.NDArray[np.bool_]] = []
    number = held = 0

    def block() -> Block:
        places = np.flatnonzero(np.concatenate(chosen))
        if order is not None:
            places = places[order(number, len(places))]
        batch = ColumnBatch.joined(batches).take(places)
        ends = {
            name: np.append(0, np.cumsum(column.lengths))
            for name, column in batch.ids.items()
            if column.lengths is not None
        }
        return Block(batch, np.concatenate(good)[places], ends)

    for each in rows:
        batch, is_good = decoder.decode(each)
        batches.append(batch)
        chosen.append(split.is_in(part, each))
        good.append(np.ones(len(batch), np.bool_) if is_good is None else is_good)
        held += len(batch)
        if held >= block_rows:
            yield block()
            batches, chosen, good, held = [], [], [], 0
            number += 1
    if batches:
        yield block()


class BlockReader:
    """Reads a stream of blocks, any number of rows at a time."""

    def __init__(self, stream: Iterator[Block]) -> None:
        self._stream = stream
        self._block: Block | None = None
        self._at = 0

    def take(self, count: int) -> Iterator[Piece]:
        """Yields the next `count` rows, in pieces; fewer at the end of the stream."""
        while count:
            if self._block is None or self._at == len(self._block):
                self._block = next(self._stream, None)
                self._at = 0
                if self._block is None:
                    return
                continue
            end = min(self._at + count, len(self._block))
            yield Piece(self._block, self._at, end)
            count -= end - self._at
            self._at = end
