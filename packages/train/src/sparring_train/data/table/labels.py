"""Range of numeric labels."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from sparring_train.columns import Label
from sparring_train.config.sections.table import TableData
from sparring_train.data.dataset import LabelRange
from sparring_train.data.table.decode import Decoder, RawRows, select_columns

__all__ = ["LabelRangeCollector"]


class LabelRangeCollector:
    """Collects mean, minimum and maximum of numeric labels. Does nothing for labels of 0 and 1."""

    def __init__(self, data: TableData, label: Label | None) -> None:
        is_number = label == "number" and data.label is not None
        self.columns = (data.label,) if is_number and data.label is not None else ()
        self._decoder = Decoder(select_columns(data, label=data.label), label)
        self._sum, self._count, self._least, self._most = 0.0, 0, math.inf, -math.inf

    def add(self, rows: RawRows, chosen: npt.NDArray[np.bool_]) -> None:
        """Adds the labels of the chosen rows.

        Raises:
            DataError: a label is not a number, and bad rows are not skipped.
        """
        if not self.columns:
            return
        batch, is_good = self._decoder.decode(rows)
        assert batch.labels is not None
        labels = batch.labels[chosen if is_good is None else chosen & is_good].astype(np.float64)
        if len(labels):
            self._sum += float(labels.sum())
            self._count += len(labels)
            self._least = min(self._least, float(labels.min()))
            self._most = max(self._most, float(labels.max()))

    @property
    def range(self) -> LabelRange | None:
        if not self._count:
            return None
        return LabelRange(self._sum / self._count, self._least, self._most)
