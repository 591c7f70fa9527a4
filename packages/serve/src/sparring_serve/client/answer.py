"""Answers to a pull."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

__all__ = ["LookupReply", "ReplyVersion", "RowStatus"]


class RowStatus(IntEnum):
    """How a row of an answer came about."""

    FRESH = 0
    """A replica answered: the row of the key."""
    ABSENT = 1
    """A replica answered: the key has no row, and reads as `missing` says."""
    STALE = 2
    """No replica sent the row: the row that this client saw last; `Answer.stale_seconds` has its age."""
    INITIAL = 3
    """No replica sent the row: the initial value of the key."""
    FAILED = 4
    """No replica sent the row: NaN."""


@dataclass(frozen=True, slots=True)
class ReplyVersion:
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
class LookupReply:
    """Rows of a pull, in the order of its ids, by table.

    Args:
        rows: ``(n, dim)`` float32. A key without a row has its initial value, or zeros where the pull
            asked for that; an id that no replica answered has what `status` says.
        found: ``(n,)`` bool: whether the key has a row; of a stale row, whether it had one.
        status: ``(n,)`` uint8: a `RowStatus`. Other than FRESH and ABSENT only if no replica of the
            shard answered, or if the backend behind the server failed, and `ClientConfig.on_failure` is
            not ``raise``.
        versions: of the rows that were answered, the oldest first; more than one only with the
            consistency `newest`, over several shards or calls, while servers refresh. None where
            nothing was answered.
        age_seconds: of the oldest row, stale ones included.
        stale_seconds: ``(n,)`` float64 for each table that has stale rows: how long ago the version of
            each was published; NaN for other rows.
    """

    rows: Mapping[str, npt.NDArray[np.float32]]
    found: Mapping[str, npt.NDArray[np.bool_]]
    status: Mapping[str, npt.NDArray[np.uint8]]
    versions: tuple[ReplyVersion, ...]
    age_seconds: float
    stale_seconds: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    @property
    def version(self) -> ReplyVersion | None:
        """The oldest version of the rows; None where nothing was answered."""
        return self.versions[0] if self.versions else None

    @property
    def answered(self) -> Mapping[str, npt.NDArray[np.bool_]]:
        """``(n,)`` bool: whether a replica answered with the row."""
        return {table: each <= RowStatus.ABSENT for table, each in self.status.items()}

    @property
    def is_complete(self) -> bool:
        """Whether replicas answered all ids."""
        return all(bool(each.all()) for each in self.answered.values())
