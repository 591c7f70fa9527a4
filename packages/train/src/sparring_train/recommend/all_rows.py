"""Predictions for all rows of files, and neighbors of all keys of a table, in parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow

from sparring import Snapshot
from sparring.errors import InvalidArgumentError
from sparring_train.config.run import RunConfig
from sparring_train.hookspecs import OpenedModel
from sparring_train.recommend.row_blocks import RowBlocks
from sparring_train.run.snapshot_rows import embeddings

__all__ = ["NeighborJob", "PredictionJob"]

_BLOCK = 8192
"""Number of examples that are predicted at a time."""


class PredictionJob:
    """A `PartJob` whose parts contain the ids of a block of rows and their predictions.

    Args:
        snapshot: snapshot of the run.
        config: configuration of the run.
        model: model of the run, opened with one thread, because the bits of predictions may depend on
            their number.
        path: Parquet files with the features and numbers of the run.
        part_rows: number of rows per part.

    Raises:
        DataError: a file cannot be read, a column is missing, or has another type than in the run.
        InvalidArgumentError: the model ranks items.
    """

    def __init__(
        self, snapshot: Snapshot, config: RunConfig, model: OpenedModel, path: str, part_rows: int
    ) -> None:
        if config.model.loss == "ranking":
            raise InvalidArgumentError(
                f"{snapshot.url}: its model ranks items and predicts no numbers; run sparring recommend "
                "for the best items"
            )
        schema = config.data.columns
        self._features = [each.name for each in schema.features]
        self._rows = RowBlocks(config, path, [*self._features, *schema.numbers])
        self._model, self.part_rows = model, part_rows
        self.num_rows = len(self._rows)
        self.plan: Mapping[str, Any] = {
            "format": 1,
            "kind": "predict",
            "snapshot": snapshot.manifest_hash,
            "step": snapshot.step,
            "rows": self.num_rows,
            "part_rows": part_rows,
            "files": self._rows.files,
            "arrow": pyarrow.__version__,
        }

    def compute(self, part: int) -> pyarrow.Table:
        """See `PartJob.compute`. Not thread-safe."""
        begin = part * self.part_rows
        batch, arrays = self._rows.read(begin, min(begin + self.part_rows, self.num_rows))
        predicted = [
            np.asarray(self._model.predict(batch.take(slice(at, at + _BLOCK))), np.float32)
            for at in range(0, len(batch), _BLOCK)
        ]
        given = {name: arrays[name] for name in self._features}
        return pyarrow.table({**given, "prediction": np.concatenate(predicted)})


class NeighborJob:
    """A `PartJob` whose parts contain the nearest keys of a block of keys, in order of the keys.

    Args:
        snapshot: any snapshot.
        table: name of the table.
        k: number of neighbors of each key, without the key itself.
        metric: see `sparring_packed.top_k`.
        part_rows: number of keys per part.

    Raises:
        InvalidArgumentError: there is no such table, or the metric is unknown.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        table: str,
        k: int,
        metric: Literal["dot", "cosine", "l2"],
        part_rows: int,
    ) -> None:
        chunks = list(embeddings(snapshot, table))
        keys = np.concatenate([np.empty(0, np.int64), *(each for each, _ in chunks)])
        order = np.argsort(keys)
        self._keys = keys[order]
        rows: list[npt.NDArray[Any]] = [each.astype(np.float32) for _, each in chunks]
        self._vectors = np.concatenate(rows)[order] if rows else np.empty((0, 1), np.float32)
        self._metric, self._k, self.part_rows = metric, k, part_rows
        self.num_rows = len(keys)
        self.plan: Mapping[str, Any] = {
            "format": 1,
            "kind": "neighbors",
            "snapshot": snapshot.manifest_hash,
            "step": snapshot.step,
            "table": table,
            "k": k,
            "metric": metric,
            "rows": self.num_rows,
            "part_rows": part_rows,
            "arrow": pyarrow.__version__,
        }

    def compute(self, part: int) -> pyarrow.Table:
        """See `PartJob.compute`."""
        from sparring_packed import top_k

        mine = slice(part * self.part_rows, (part + 1) * self.part_rows)
        asked = self._keys[mine]
        itself = (asked, np.arange(len(asked) + 1))
        found = top_k(
            [(self._keys, self._vectors)],
            self._vectors[mine],
            self._k,
            exclude=itself,
            metric=self._metric,
        )
        offsets = np.concatenate(([0], np.cumsum(found.counts))).astype(np.int32)
        is_filled = np.arange(found.keys.shape[1]) < found.counts[:, None]
        neighbors, scores = (
            pyarrow.ListArray.from_arrays(offsets, pyarrow.array(each[is_filled]))
            for each in (found.keys, found.scores)
        )
        return pyarrow.table({"key": asked, "neighbors": neighbors, "score": scores})
