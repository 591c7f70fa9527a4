"""CSV files as a data set. Every rank reads all rows, and trains on its part of each batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.errors import DataError
from sparring_train.columns import ColumnBatch, Schema
from sparring_train.config.sections.table import TableData
from sparring_train.data.dataset import LabelRange, OpenRequest
from sparring_train.data.split import Part
from sparring_train.data.table.decode import Decoder
from sparring_train.data.table.history import read_histories
from sparring_train.data.table.labels import LabelRangeCollector
from sparring_train.data.table.split import make_split
from sparring_train.data.table.stream import (
    BLOCK_ROWS,
    ROWS_SHUFFLED,
    BlockReader,
    blocks,
    join_pieces,
    start_threads,
)
from sparring_train.data.table.strings import StringWriter
from sparring_train.data.table.text.rows import CsvRows

__all__ = ["CsvDataset"]

_EVALUATION_BATCH_SIZE = 8192
_PURPOSES: dict[Part, str] = {
    "train": "to train on",
    "test": "for the test",
    "validation": "for validation",
}


class CsvDataset:
    """Rows of CSV files. The files are read in advance only if the range of labels is needed. Without
    this, the number of rows is not known before the end of an epoch.

    Args:
        data: the section of the configuration.
        request: properties of the run.
        files: the files, which contain all required columns.
        columns: columns of the examples.
        strings: receives the strings of the rows that are read, if given.
        pinned: see `PinnedDataset.pinned`.

    Raises:
        DataError: a file cannot be read.
    """

    def __init__(
        self,
        data: TableData,
        request: OpenRequest,
        files: CsvRows,
        columns: Sequence[str],
        strings: StringWriter | None = None,
        pinned: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._data, self._request, self._files = data, request, files
        self.pinned = pinned
        label = request.label if data.label is not None else None
        columns_of_run = data.columns.with_origins(files.origins)
        self.schema: Schema = replace(columns_of_run, label=label)
        self._seed = request.seed % 2**64
        self._split = make_split(data, self._seed, files.read)
        self._histories = read_histories(data, files.read)
        self._columns = tuple(dict.fromkeys((*columns, *self._split.columns)))
        self._num_skipped = 0
        self._strings = strings
        self._was_read: set[Part] = set()
        self.steps_per_epoch: int | None = None
        self.label_range: LabelRange | None = self._label_range()

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        """Yields batches of training rows, the same on all ranks."""
        return self._read(self._data.batch_size, epoch, "train")

    def test_batches(self) -> Iterator[ColumnBatch]:
        """Yields batches of test rows in the order of the files, the same on all ranks."""
        return self._read(_EVALUATION_BATCH_SIZE, 0, "test")

    def validation_batches(self) -> Iterator[ColumnBatch]:
        """Yields batches of validation rows in the order of the files, the same on all ranks."""
        return self._read(_EVALUATION_BATCH_SIZE, 0, "validation")

    def extra(self) -> Mapping[str, Any]:
        """Returns ``rows_skipped`` if bad rows are skipped. It is 0 except on the first rank, because all
        ranks read the same rows."""
        self._flush()
        if self._data.bad_rows == "refuse":
            return {}
        return {"rows_skipped": self._num_skipped if self._request.rank == 0 else 0}

    def _flush(self) -> None:
        if self._strings is not None:
            self._strings.flush()

    def _read(self, size: int, epoch: int, part: Part) -> Iterator[ColumnBatch]:
        def order(number: int, count: int) -> npt.NDArray[np.int64]:
            # Like one lane of Parquet files.
            random = np.random.PCG64([self._seed, epoch, 0, number])
            return np.random.Generator(random).permutation(count)

        is_shuffled = self._data.shuffle and part == "train"
        stream = blocks(
            self._files.read(self._columns),
            Decoder(self._data, self.schema.label, self._strings, self._histories),
            self._split,
            part=part,
            block_rows=ROWS_SHUFFLED if is_shuffled else BLOCK_ROWS,
            order=order if is_shuffled else None,
        )
        is_first = part not in self._was_read
        self._was_read.add(part)
        num_rows = 0
        with start_threads() as threads:
            taker = BlockReader(stream, threads)
            while pieces := taker.take(size):
                batch, is_good = join_pieces(pieces)
                num_rows += len(batch)
                if is_good is not None:
                    self._num_skipped += int((~is_good).sum()) if is_first else 0
                    batch = batch.take(is_good)
                yield batch
        self._flush()
        if not num_rows:
            raise DataError(
                f"reading {self._data.path}: found no row {_PURPOSES[part]}, expected at least one; "
                "choose another data.split or data.validation, or files with more rows",
                path=self._data.path,
            )
        if is_first and part == "train":
            self._num_skipped += self._files.num_broken

    def _label_range(self) -> LabelRange | None:
        seen = LabelRangeCollector(self._data, self.schema.label)
        if seen.columns:
            names = tuple(dict.fromkeys((*self._split.columns, *seen.columns)))
            num_rows = 0
            for rows in self._files.read(names):
                is_train = self._split.is_in("train", rows)
                num_rows += int(is_train.sum())
                seen.add(rows, is_train)
            self.steps_per_epoch = -(-num_rows // self._data.batch_size)
        return seen.range
