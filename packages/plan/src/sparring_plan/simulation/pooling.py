"""Messages of owner pooling. Ids and bag lengths are sent to the owner, which returns partial
pools. Later, gradients of bags are sent to the owner.

The sizes are those of ``sparring.exchange.bags``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sparring.adapter import MessageSizes
from sparring_plan.planning.inputs import TableSpec
from sparring_plan.simulation.ring import StreamPart

__all__ = ["PooledTable", "split_pull_parts", "split_push_parts"]

_STATUS_BYTES, _LENGTH_BYTES, _WEIGHT_BYTES = 8, 4, 4
_LOOKUP_BYTES = 16
"""Size of the number of a lookup, plus the maximum padding of its gradients."""


@dataclass(frozen=True, eq=False)
class PooledTable:
    """A table whose owners pool.

    Args:
        spec: Its features and their pooling.
        samples: Batch size per rank.
        shares: ``(ranks,)``: share of the rows of a column block that each rank owns.
        unique: Distinct keys of a rank's batch.
        pool_row_bytes: Bytes of one pool, or of its gradient.
        find_seconds: Time per distinct key.
        pool_seconds: Time per id.
        add_seconds: Time per id.
    """

    spec: TableSpec
    samples: int
    shares: npt.NDArray[np.float64]
    unique: float
    pool_row_bytes: int
    find_seconds: float
    pool_seconds: float
    add_seconds: float

    def num_ids(self, owner: int) -> int:
        """Returns the number of ids of a rank's batch whose rows `owner` has."""
        return round(self.samples * self.spec.ids_per_sample * float(self.shares[owner]))

    def num_bags(self, owner: int) -> int:
        """Returns the number of bags of a rank's batch with such ids, if all bags have average
        length."""
        misses = 1 - float(self.shares[owner])
        touched = sum(1 - misses**each.ids for each in self.spec.features.values())
        return round(float(self.samples * touched))

    @cached_property
    def num_lookups(self) -> int:
        """Number of lookups; features with the same pooling are looked up together."""
        return len({(each.pooling, each.weighted) for each in self.spec.features.values()})

    @cached_property
    def weighted_share(self) -> float:
        """Share of the ids that have weights."""
        weighted = sum(each.ids for each in self.spec.features.values() if each.weighted)
        return weighted / self.spec.ids_per_sample

    def bag_bytes(self, owner: int) -> int:
        ids = self.num_ids(owner)
        weights = round(ids * self.weighted_share) * _WEIGHT_BYTES
        lengths = self.num_bags(owner) * _LENGTH_BYTES
        return ids * MessageSizes.key_bytes + _padded(lengths) + _padded(weights)

    def pool_bytes(self, owner: int) -> int:
        return _padded(self.num_bags(owner) * self.pool_row_bytes)


def split_pull_parts(tables: Sequence[PooledTable], owner: int, most: int) -> list[StreamPart]:
    """Returns the messages of a pull from any rank to an owner, and their replies.

    Args:
        most: Maximum number of ids of tables that share a message. A table with more ids has its
            own message.
    """
    counts = [table.num_ids(owner) for table in tables]
    parts = []
    for number, group in enumerate(_groups(counts, most)):
        each = [tables[index] for index in group]
        find = sum(
            table.unique * table.shares[owner] * table.find_seconds
            + table.num_ids(owner) * table.pool_seconds
            for table in each
        )
        parts.append(
            StreamPart(
                number,
                sum(table.bag_bytes(owner) for table in each),
                sum(table.pool_bytes(owner) for table in each) + _STATUS_BYTES,
                0,
                float(find),
                0.0,
                0.0,
            )
        )
    return parts


def split_push_parts(tables: Sequence[PooledTable], owner: int, most: int) -> list[StreamPart]:
    """Returns the messages of a push from any rank to an owner.

    Args:
        most: Maximum number of bags of tables that share a message.
    """
    counts = [table.num_bags(owner) for table in tables]
    parts = []
    for number, group in enumerate(_groups(counts, most)):
        each = [tables[index] for index in group]
        num_bytes = sum(
            table.num_lookups * _LOOKUP_BYTES + table.pool_bytes(owner) for table in each
        )
        add = sum(table.num_ids(owner) * table.add_seconds for table in each)
        parts.append(StreamPart(number, 0, 0, num_bytes, 0.0, float(add), 0.0))
    return parts


def _groups(counts: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yields tables that share a message, like `group_tables` of the exchange."""
    group: list[int] = []
    total = 0
    for table, count in enumerate(counts):
        if not count:
            continue
        if group and total + count > most:
            yield group
            group, total = [], 0
        group.append(table)
        total += count
    if group:
        yield group


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // 8) * 8
