"""Examples of a run from Ray Datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow

from sparring.errors import DataError
from sparring_ray.ray_import import import_ray
from sparring_ray.section import RayData
from sparring_train import ColumnBatch, Decoder, OpenRequest, RawRows, Schema

__all__ = ["RayDataset"]

_EVALUATION_BATCH_SIZE = 8192


class RayDataset:
    """Examples of this worker, from the shard of `ray.train.get_dataset_shard`.

    Ray gives each worker the same number of training rows, and leaves out the remaining ones, of which
    there are fewer than workers. Each worker reads all test rows, and evaluates its part of each batch.

    Args:
        section: the section of the configuration.
        request: properties of the run.

    Raises:
        DataError: the process is not a worker of `sparring_ray.train`.
    """

    label_range = None
    steps_per_epoch = None

    def __init__(self, section: RayData, request: OpenRequest) -> None:
        self._data, self._request = section, request
        label = request.label if section.label is not None else None
        self.schema: Schema = replace(section.columns, label=label)
        self._num_skipped = 0
        self._shards = {
            name: _find_shard(name) for name in (section.train, section.test) if name is not None
        }

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        """Yields this worker's part of each step."""
        num_workers = self._request.world_size
        shuffled = self._data.shuffle_rows
        given = self._read(
            self._data.train,
            batch_size=max(self._data.batch_size // num_workers, 1),
            local_shuffle_buffer_size=shuffled or None,
            local_shuffle_seed=(self._request.seed + epoch) % 2**32 if shuffled else None,
        )
        for rows, batch in given:
            self._num_skipped += len(rows) - len(batch) if epoch == 0 else 0
            yield replace(batch, total=len(rows) * num_workers)

    def test_batches(self) -> Iterator[ColumnBatch]:
        """Yields this worker's part of the test rows, always in the same order."""
        if self._data.test is None:
            return
        for rows, batch in self._read(self._data.test, batch_size=_EVALUATION_BATCH_SIZE):
            part = batch.part(self._request.rank, self._request.world_size)
            yield replace(part, total=len(rows))

    def validation_batches(self) -> Iterator[ColumnBatch]:
        """Yields nothing, because this kind of data has no validation examples."""
        return iter(())

    def extra(self) -> Mapping[str, Any]:
        """Returns ``rows_skipped``, the number of bad rows of this worker, if bad rows are skipped."""
        return {"rows_skipped": self._num_skipped} if self._data.bad_rows == "skip" else {}

    def _read(self, name: str, **options: Any) -> Iterator[tuple[RawRows, ColumnBatch]]:
        decoder = Decoder(self._data, self.schema.label)
        at = 0
        for table in self._shards[name].iter_batches(batch_format="pyarrow", **options):
            columns = {each: _as_array(table, each, name) for each in self._columns}
            rows = RawRows(f"Dataset {name!r}", at + 1, at, table.num_rows, columns)
            at += table.num_rows
            batch, is_good = decoder.decode(rows)
            yield rows, batch if is_good is None else batch.take(is_good)

    @property
    def _columns(self) -> tuple[str, ...]:
        data = self._data
        label = data.label if self.schema.label is not None else None
        given = (*data.categorical, *data.numeric, label, data.weight)
        return tuple(name for name in given if name is not None)


def _find_shard(name: str) -> Any:
    try:
        return import_ray("ray.train").get_dataset_shard(name)
    except RuntimeError as error:
        raise DataError(
            f"data.kind: ray reads Dataset {name!r} in a worker of sparring_ray.train, and this process "
            "is none; call sparring_ray.train, or use data.kind: table"
        ) from error


def _as_array(table: Any, column: str, dataset: str) -> Any:
    if column not in table.column_names:
        raise DataError(
            f"Dataset {dataset!r}: column {column!r} is missing, found {', '.join(table.column_names)}; "
            "fix the columns of the configuration or of the Dataset",
            column=column,
        )
    array = table.column(column).combine_chunks()
    return array if isinstance(array, pyarrow.Array) else pyarrow.concat_arrays(array.chunks)
