"""Items that each user has seen, which recommendations leave out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

__all__ = ["SeenItems", "find_positions", "hash_arrays", "join_jagged"]

Ids = npt.NDArray[np.int64]
Jagged = tuple[Ids, Ids]


class SeenItems:
    """Pairs of users and items in memory: 4 bytes per pair, and 16 bytes per user.

    Args:
        pairs: blocks of users ``(n,)`` and items ``(n,)``. Other items than `items` are ignored.
        items: ``(i,)`` keys, sorted.

    Attributes:
        digest: hash of all pairs, for the plan.
    """

    def __init__(self, pairs: Iterable[tuple[Ids, Ids]], items: Ids) -> None:
        users, places = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
        for some_users, some_items in pairs:
            position, is_known = find_positions(items, some_items)
            users.append(some_users[is_known])
            places.append(position[is_known].astype(np.int32))
        joined, all_places = np.concatenate(users), np.concatenate(places)
        order = np.lexsort((all_places, joined))
        self._users, counts = np.unique(joined, return_counts=True)
        self._places = all_places[order]
        self._offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        self.digest = hash_arrays(self._users, self._offsets, self._places)

    def renumber(self, items: Ids, kept: Ids) -> None:
        """Changes positions in `items` to positions in `kept`, which contains some of the items. Other
        items become -1."""
        position, is_kept = find_positions(kept, items)
        self._places = np.where(is_kept, position, -1).astype(np.int32)[self._places]

    def of(self, users: Ids) -> Jagged:
        """Returns the positions of the items that users ``(u,)`` have seen, and offsets ``(u + 1,)``."""
        at, is_known = find_positions(self._users, users)
        begins = np.where(is_known, self._offsets[at], 0)
        counts = np.where(is_known, self._offsets[np.minimum(at + 1, len(self._users))] - begins, 0)
        offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1] - begins, counts)
        return self._places[places].astype(np.int64), offsets


def hash_arrays(*arrays: npt.NDArray[Any]) -> str:
    """Returns the XXH3-128 of the elements of arrays."""
    hashed = xxhash.xxh3_128()
    for each in arrays:
        hashed.update(np.ascontiguousarray(each).data)
    return hashed.hexdigest()


def find_positions(sorted_keys: Ids, keys: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
    """Returns the position of each key in sorted keys, and whether they contain it."""
    if not len(sorted_keys):
        return np.zeros(len(keys), np.int64), np.zeros(len(keys), np.bool_)
    position = np.minimum(np.searchsorted(sorted_keys, keys), len(sorted_keys) - 1)
    return position, sorted_keys[position] == keys


def join_jagged(parts: Sequence[Jagged]) -> Jagged:
    """Concatenates the values of each row. All parts have the same number of rows."""
    rows = [np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) for _, offsets in parts]
    row, values = np.concatenate(rows), np.concatenate([each for each, _ in parts])
    order = np.argsort(row, kind="stable")
    counts = np.bincount(row, minlength=len(parts[0][1]) - 1)
    return values[order], np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
