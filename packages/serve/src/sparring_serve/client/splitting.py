"""Splits a lookup into calls: by shard, and where a reply would exceed a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring_serve.tables.shard_ranges import ShardReplicas

__all__ = ["CallLimits", "Part", "ShardCall", "TableKeys", "split_keys"]

Keys = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TableKeys:
    """Distinct keys of one table, and the bytes per row in replies."""

    table: str
    keys: Keys
    row_bytes: int


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of one call."""

    max_bytes: int
    max_ids: int


@dataclass(frozen=True, slots=True)
class Part:
    """Keys of one table in one call, and the positions of their rows in the result."""

    number: int
    """Index of the table in the lookup."""
    keys: Keys
    positions: slice | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ShardCall:
    """One call to one shard."""

    shard: int
    parts: tuple[Part, ...]


def split_keys(
    tables: Sequence[TableKeys], shards: ShardReplicas, limits: CallLimits
) -> list[ShardCall]:
    """Splits a lookup into calls. Each key is requested once, from the shard that has it."""
    by_shard: dict[int, list[tuple[int, Keys, npt.NDArray[np.int64] | None]]] = {}
    for number, each in enumerate(tables):
        if shards.num_shards == 1:
            by_shard.setdefault(0, []).append((number, each.keys, None))
            continue
        owners = shards.shard_of(each.keys)
        order = np.argsort(owners, kind="stable")
        ordered = owners[order]
        for shard in np.unique(ordered).tolist():
            begin, end = np.searchsorted(ordered, [shard, shard + 1])
            positions = order[begin:end]
            by_shard.setdefault(shard, []).append((number, each.keys[positions], positions))
    return [
        ShardCall(shard, parts)
        for shard, wanted in sorted(by_shard.items())
        for parts in _packed(tables, wanted, limits)
    ]


def _packed(
    tables: Sequence[TableKeys],
    wanted: Sequence[tuple[int, Keys, npt.NDArray[np.int64] | None]],
    limits: CallLimits,
) -> Iterator[tuple[Part, ...]]:
    """Groups keys into calls within the limits."""
    parts: list[Part] = []
    bytes_left, ids_left = limits.max_bytes, limits.max_ids
    for number, keys, positions in wanted:
        row_bytes = tables[number].row_bytes
        at = 0
        # A table without keys still has an entry in the reply.
        while at < len(keys) or (at == 0 and len(keys) == 0):
            count = min(len(keys) - at, ids_left, bytes_left // row_bytes)
            if count <= 0 < len(keys):
                if not parts:
                    count = 1  # a row beyond the limit is sent in a separate call
                else:
                    yield tuple(parts)
                    parts, bytes_left, ids_left = [], limits.max_bytes, limits.max_ids
                    continue
            where = slice(at, at + count)
            parts.append(
                Part(number, keys[where], where if positions is None else positions[where])
            )
            bytes_left -= count * row_bytes
            ids_left -= count
            at += count
            if len(keys) == 0:
                break
    if parts:
        yield tuple(parts)
