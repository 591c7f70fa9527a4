"""Parquet files, or a table of a lakehouse, as a data set. Each rank reads its own row groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from sparring.errors import DataError
from sparring_train.columns import Column, ColumnBatch, Schema
from sparring_train.config.sections.table import TableData
from sparring_train.data.dataset import LabelRange, OpenRequest
from sparring_train.data.file_identities import DATA_FILES
from sparring_train.data.split import Part
from sparring_train.data.table.decode import Decoder, RawRows
from sparring_train.data.table.history import read_histories
from sparring_train.data.table.labels import LabelRangeCollector
from sparring_train.data.table.lanes import Lanes, Share, assign_lanes, deal_row_groups
from sparring_train.data.table.row_groups import RowGroup, TableRows
from sparring_train.data.table.split import make_split
from sparring_train.data.table.stream import (
    BLOCK_ROWS,
    ROWS_SHUFFLED,
    Block,
    BlockReader,
    Piece,
    blocks,
    join_pieces,
    start_threads,
)
from sparring_train.data.table.strings import StringWriter

__all__ = ["ParquetDataset"]

_EVALUATION_BATCH_SIZE = 8192

Counts = npt.NDArray[np.int64]


class ParquetDataset:
    """Row groups of Parquet files or of a table. A step has the same rows for every number of ranks,
    unless `data.read` is ``own``.

    Args:
        data: the section of the configuration.
        request: properties of the run.
        files: the rows, with all required columns.
        columns: columns of the examples.
        strings: receives the strings of the rows that are read, if given.
        pinned: see `PinnedDataset.pinned`.

    Raises:
        DataError: a file cannot be read, or a part of the split has no row.
    """

    def __init__(
        self,
        data: TableData,
        request: OpenRequest,
        files: TableRows,
        columns: Sequence[str],
        strings: StringWriter | None = None,
        pinned: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._data, self._request, self._files = data, request, files
        self.pinned = pinned
        label = request.label if data.label is not None else None
        origins = files.types.origins(data.categorical)
        origins.update(
            (name, "integer") for name, kind in data.types.items() if kind == "hexadecimal"
        )
        columns_of_run = data.columns.with_origins(origins)
        self.schema: Schema = replace(columns_of_run, label=label)
        self._seed = request.seed % 2**64

        def read(names: Sequence[str]) -> Iterator[RawRows]:
            return files.read(files.groups, names, BLOCK_ROWS)

        self._split = make_split(data, self._seed, read)
        self._histories = read_histories(data, read)
        self._columns = tuple(dict.fromkeys((*columns, *self._split.columns)))
        self._num_skipped = 0
        self._strings = strings
        self._was_read: set[Part] = set()
        self._rows = np.array([group.num_rows for group in files.groups])
        self._select_rows, self.label_range = self._survey()
        train, test, validation = (int(counts.sum()) for counts in self._select_rows.values())
        if not train or not test or (data.has_validation and not validation):
            kept = f" and {validation:,} for validation" if data.has_validation else ""
            raise DataError(
                f"{data.path}: found {train:,} rows for training, {test:,} for the test{kept}; choose "
                "another data.split" + (" or data.validation" if kept else ""),
                path=data.path,
            )
        self.steps_per_epoch: int | None = -(-train // data.batch_size)

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        """Yields this rank's part of the training rows of each step."""
        groups = np.arange(len(self._rows))
        if not self._data.shuffle:
            return self._read([groups], epoch, "train")
        order = self._random(epoch).permutation(groups)
        return self._read(deal_row_groups(order, self._num_lanes), epoch, "train")

    def test_batches(self) -> Iterator[ColumnBatch]:
        """Yields this rank's part of the test rows, always in the same order."""
        return self._in_order("test")

    def validation_batches(self) -> Iterator[ColumnBatch]:
        """Yields this rank's part of the validation rows, always in the same order."""
        return self._in_order("validation")

    def _in_order(self, part: Part) -> Iterator[ColumnBatch]:
        groups = np.arange(len(self._rows))
        return self._read(deal_row_groups(groups, self._num_lanes), 0, part)

    def extra(self) -> Mapping[str, Any]:
        """Returns ``rows_skipped``, the number of bad rows on this rank, if bad rows are skipped. Also
        returns ``read`` if steps depend on the number of ranks, and the version of a table."""
        self._flush()
        found = {name: each for name, each in self.pinned.items() if name != DATA_FILES}
        if self._data.bad_rows == "skip":
            found["rows_skipped"] = self._num_skipped
        if self._data.read == "own":
            found["read"] = "own row groups: steps depend on the number of ranks"
        return found

    @property
    def _num_lanes(self) -> int:
        lanes = self._request.world_size if self._data.read == "own" else self._data.lanes
        return min(lanes, len(self._rows))

    def _random(self, *where: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self._seed, *where]))

    def _flush(self) -> None:
        if self._strings is not None:
            self._strings.flush()

    def _read(self, groups: Sequence[Counts], epoch: int, part: Part) -> Iterator[ColumnBatch]:
        """Yields this rank's part of each step. A step takes rows from all lanes of row groups."""
        counts = self._select_rows[part]
        size = self._data.batch_size if part == "train" else _EVALUATION_BATCH_SIZE
        lanes = Lanes(np.array([counts[each].sum() for each in groups]), size)
        mine = assign_lanes(lanes.rows, self._request.rank, self._request.world_size)
        # Counts each bad row once, although every epoch reads it.
        is_first = part not in self._was_read
        self._was_read.add(part)
        with start_threads() as threads:
            takers = [
                BlockReader(
                    self._blocks(groups[each.lane], epoch, each.lane, len(groups), part), threads
                )
                for each in mine
            ]
            for begin, end in lanes.steps():
                begins, ends = begin.tolist(), end.tolist()
                pieces = [
                    piece
                    for taker, each in zip(takers, mine, strict=True)
                    for piece in _part(taker, each, begins[each.lane], ends[each.lane])
                ]
                batch, is_good = join_pieces(pieces) if pieces else (self._empty, None)
                if is_good is not None:
                    self._num_skipped += int((~is_good).sum()) if is_first else 0
                    batch = batch.take(is_good)
                yield replace(batch, total=sum(ends) - sum(begins))
        self._flush()

    def _blocks(
        self, groups: Counts, epoch: int, lane: int, num_lanes: int, part: Part
    ) -> Iterator[Block]:
        is_shuffled = self._data.shuffle and part == "train"
        block_rows = max(ROWS_SHUFFLED // num_lanes, 1)
        read_rows = min(block_rows, BLOCK_ROWS)
        chosen = [self._files.groups[each] for each in groups]

        def order(number: int, count: int) -> Counts:
            return self._random(epoch, lane, number).permutation(count)

        return blocks(
            self._files.read(chosen, self._columns, read_rows),
            Decoder(self._data, self.schema.label, self._strings, self._histories),
            self._split,
            part=part,
            block_rows=block_rows if is_shuffled else read_rows,
            order=order if is_shuffled else None,
        )

    def _survey(self) -> tuple[dict[Part, Counts], LabelRange | None]:
        """Returns the rows of each part in each row group, and the range of numeric labels."""
        names = self._split.columns
        seen = LabelRangeCollector(self._data, self.schema.label)
        counts: dict[Part, Counts] = {
            part: np.zeros(len(self._rows), np.int64) for part in get_args(Part)
        }
        for at, group in enumerate(self._files.groups):
            if names or seen.columns:
                rows = self._files.read([group], (*names, *seen.columns), BLOCK_ROWS)
            else:
                rows = _numbered(self._files, group)
            for each in rows:
                masks = self._split.masks(each)
                for part, of_part in counts.items():
                    of_part[at] += np.count_nonzero(masks[part])
                seen.add(each, masks["train"])
        return counts, seen.range

    @property
    def _empty(self) -> ColumnBatch:
        none = np.empty(0, np.float32)
        return ColumnBatch(
            {each.name: Column(np.empty(0, np.int64)) for each in self.schema.features},
            np.empty((0, len(self.schema.numbers)), np.float32),
            None if self.schema.label is None else none,
            none if self.schema.has_weights else None,
        )


def _numbered(files: TableRows, group: RowGroup) -> Iterator[RawRows]:
    """Yields the rows of a group without columns, in blocks, because their number is not trusted."""
    name, key = files.name_of(group), files.key_of(group)
    for begin in range(0, group.num_rows, BLOCK_ROWS):
        count = min(BLOCK_ROWS, group.num_rows - begin)
        yield RawRows(
            name,
            group.first_row + begin,
            group.position + begin,
            count,
            key=key,
            index=group.index + begin,
        )


def _part(taker: BlockReader, share: Share, begin: int, end: int) -> list[Piece]:
    """Returns this rank's share of a lane's rows of a step. The shares of other ranks are read, too."""
    first, last = share.part(begin, end)
    if (first, last) == (begin, end):
        return taker.take(end - begin)
    pieces, at = [], begin
    for block, low, high in taker.take(end - begin):
        # Position of the block's first row in the lane.
        offset = at - low
        at += high - low
        own = Piece(block, max(first - offset, low), min(last - offset, high))
        if own.end > own.begin:
            pieces.append(own)
    return pieces
