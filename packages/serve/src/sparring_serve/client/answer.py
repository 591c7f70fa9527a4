"""Answers to a pull."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Answer", "AnsweredVersion"]


@dataclass(frozen=True, slots=True)
class AnsweredVersion:
    """The version of rows.

    Args:
        run: that trained it, or empty.
        step: of training.
        hash: of its manifest.
    """

    run: str
    step: int
    hash: str


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of a pull, in the order of its ids, by table.

    Args:
        rows: ``(n, dim)`` float32. A key without a row has its initial value, or zeros where the pull
            asked for that; an id that no replica answered has NaN.
        found: ``(n,)`` bool: whether the key has a row.
        answered: ``(n,)`` bool: False only where no replica of its shard answered, and the client
            flags that.
        versions: of the rows, the oldest first; more than one only with the consistency `newest`, over
            several shards or calls, while servers refresh. None where nothing was answered.
        age_seconds: of the oldest.
    """

    rows: Mapping[str, npt.NDArray[np.float32]]
    found: Mapping[str, npt.NDArray[np.bool_]]
    answered: Mapping[str, npt.NDArray[np.bool_]]
    versions: tuple[AnsweredVersion, ...]
    age_seconds: float

    @property
    def version(self) -> AnsweredVersion | None:
        """The oldest version of the rows; None where nothing was answered."""
        return self.versions[0] if self.versions else None

    @property
    def is_complete(self) -> bool:
        """Whether all ids were answered."""
        return all(bool(each.all()) for each in self.answered.values())
