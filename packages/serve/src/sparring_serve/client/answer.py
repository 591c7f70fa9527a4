"""Replies to lookups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sparring_serve.wire.messages import DescribeReply

__all__ = ["LookupReply", "ReplyVersion", "RowStatus", "find_declarations"]


class RowStatus(IntEnum):
    """Origin of a row of a reply."""

    FRESH = 0
    """A replica returned the row of the key."""
    ABSENT = 1
    """A replica replied that the key has no row; the value is the one specified by `missing`."""
    STALE = 2
    """No replica returned the row; it is the last one that this client received.
    `LookupReply.stale_seconds` contains its age."""
    INITIAL = 3
    """No replica returned the row; it is the initial value of the key."""
    FAILED = 4
    """No replica returned the row; it is NaN."""


@dataclass(frozen=True, slots=True)
class ReplyVersion:
    """Version of rows.

    Args:
        run: Run that trained it, or empty.
        step: Training step.
        hash: Hash of its manifest.
    """

    run: str
    step: int
    hash: str


@dataclass(frozen=True, slots=True)
class LookupReply:
    """Rows of a lookup by table, in the order of its ids.

    Args:
        rows: ``(n, dim)`` float32. A key without a row has its initial value, or zeros if the lookup
            requested zeros. For an id that no replica returned, `status` describes the value.
        found: ``(n,)`` bool: whether the key has a row; for a stale row, whether it had one.
        status: ``(n,)`` uint8, a `RowStatus`. Other values than FRESH and ABSENT occur only if no
            replica of the shard replied or the backend behind the server failed, and
            `ClientConfig.on_failure` is not ``raise``.
        versions: Versions of the returned rows, oldest first. There is more than one only with the
            consistency `newest`, over several shards or calls, while servers refresh. Empty if
            nothing was returned.
        age_seconds: Age of the oldest row, including stale rows.
        stale_seconds: ``(n,)`` float64 for each table with stale rows: time since the version of each
            was published; NaN for other rows.
    """

    rows: Mapping[str, npt.NDArray[np.float32]]
    found: Mapping[str, npt.NDArray[np.bool_]]
    status: Mapping[str, npt.NDArray[np.uint8]]
    versions: tuple[ReplyVersion, ...]
    age_seconds: float
    stale_seconds: Mapping[str, npt.NDArray[np.float64]] = field(default_factory=dict)

    @property
    def version(self) -> ReplyVersion | None:
        """The oldest version of the rows; None if nothing was returned."""
        return self.versions[0] if self.versions else None

    @property
    def answered(self) -> Mapping[str, npt.NDArray[np.bool_]]:
        """``(n,)`` bool: whether a replica returned the row."""
        return {table: each <= RowStatus.ABSENT for table, each in self.status.items()}

    @property
    def is_complete(self) -> bool:
        """Whether replicas returned all rows."""
        return all(bool(each.all()) for each in self.answered.values())


def find_declarations(shards: Mapping[int, DescribeReply]) -> dict[str, dict[str, list[int]]]:
    """Returns for each table that learns: dim and update method → shards that declare it so."""
    found: dict[str, dict[str, list[int]]] = {}
    for shard, reply in shards.items():
        dims = {each.name: each.dim for each in reply.tables}
        for each in reply.parameters.tables:
            declared = f"dim {dims[each.table]}, {each.update_method}"
            found.setdefault(each.table, {}).setdefault(declared, []).append(shard + 1)
    return found
