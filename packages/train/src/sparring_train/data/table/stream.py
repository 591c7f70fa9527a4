"""Selects, shuffles and splits a stream of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring_train.columns import ColumnBatch
from sparring_train.data.split import Part
from sparring_train.data.table.decode import Decoder, RawRows
from sparring_train.data.table.split import Split

__all__ = ["BLOCK_ROWS", "ROWS_SHUFFLED", "Block", "Order", "BlockReader", "blocks"]

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

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, selection: slice) -> Block:
        """Returns the selected rows."""
        return Block(self.batch.take(selection), self.is_good[selection])


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
        return Block(ColumnBatch.joined(batches).take(places), np.concatenate(good)[places])

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

    def take(self, count: int) -> Iterator[Block]:
        """Yields the next `count` rows, in pieces; fewer at the end of the stream."""
        while count:
            if self._block is None or self._at == len(self._block):
                self._block = next(self._stream, None)
                self._at = 0
                if self._block is None:
                    return
                continue
            end = min(self._at + count, len(self._block))
            yield self._block.take(slice(self._at, end))
            count -= end - self._at
            self._at = end
