"""Encodes the examples of a batch as bytes, one value per example, and back.

ids of all features          int64, in the order of features
number of ids per feature    uint32 each
numbers, weight              float32 each
padding to 8 bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring_train.columns import Column, ColumnBatch, Schema

__all__ = ["RowCodec"]

_WORD = 8


class RowCodec:
    """Encodes examples.

    Args:
        schema: columns of the examples. Labels are not encoded.
        has_weights: whether examples have weights.
    """

    def __init__(self, schema: Schema, *, has_weights: bool) -> None:
        self._features = [each.name for each in schema.features]
        self._is_matrix = schema.is_matrix
        self._num_numbers, self._has_weights = len(schema.numbers), has_weights
        tail = len(self._features) + self._num_numbers + has_weights
        self._tail_words = -(-tail * 4 // _WORD)

    def encode(self, batch: ColumnBatch) -> list[bytes]:
        """Returns the bytes of each example."""
        columns = [batch.ids[name] for name in self._features]
        counts = np.stack([each.counts for each in columns], axis=1)
        num_ids = counts.sum(axis=1)
        ends = np.cumsum(num_ids + self._tail_words)
        begins = ends - num_ids - self._tail_words
        words = np.zeros(ends[-1] if len(ends) else 0, np.int64)
        places = begins[:, None] + np.cumsum(counts, axis=1) - counts
        for column, first, count in zip(columns, places.T, counts.T, strict=True):
            words[_ranges(first, count)] = column.ids
        tail = [counts.astype("<u4"), batch.numbers.astype("<f4").view("<u4")]
        if self._has_weights:
            assert batch.weights is not None
            tail.append(batch.weights.astype("<f4").view("<u4")[:, None])
        values = np.concatenate(tail, axis=1)
        halves = words.view("<u4")
        halves[(2 * (begins + num_ids))[:, None] + np.arange(values.shape[1])] = values
        content = words.tobytes()
        bounds = zip((begins * _WORD).tolist(), (ends * _WORD).tolist(), strict=True)
        return [content[begin:end] for begin, end in bounds]

    def decode(self, rows: Sequence[bytes]) -> ColumnBatch:
        """Returns the examples without labels."""
        words = np.frombuffer(b"".join(rows), "<i8")
        lengths = np.array([len(each) // _WORD for each in rows], np.int64)
        begins = np.cumsum(lengths) - lengths
        tails = begins + lengths - self._tail_words
        halves = words.view("<u4")

        def tail(first: int, count: int) -> npt.NDArray[Any]:
            found: npt.NDArray[Any] = halves[(2 * tails + first)[:, None] + np.arange(count)]
            return found

        num_features = len(self._features)
        counts = tail(0, num_features).astype(np.int64)
        places = begins[:, None] + np.cumsum(counts, axis=1) - counts
        ids = {}
        for at, name in enumerate(self._features):
            count = counts[:, at]
            found = words[_ranges(places[:, at], count)]
            is_single = self._is_matrix or bool((count == 1).all())
            ids[name] = Column(found, None if is_single else count)
        numbers = tail(num_features, self._num_numbers).view("<f4")
        weights = None
        if self._has_weights:
            weights = tail(num_features + self._num_numbers, 1).view("<f4")[:, 0]
        return ColumnBatch(ids, np.ascontiguousarray(numbers), None, weights)


def _ranges(begins: npt.NDArray[Any], counts: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the concatenated ranges of `counts` numbers from `begins`."""
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    found: npt.NDArray[Any] = np.repeat(begins, counts) + within
    return found
