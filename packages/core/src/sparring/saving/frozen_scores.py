"""Scores as they were at one moment, with the keys that they belong to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from sparring.storage.contract import Columns, Keys, Scores, Storage

__all__ = ["FrozenScores", "split_by_group"]

_SCAN_ROWS = 65_536

Groups = npt.NDArray[np.uint16]
Positions = npt.NDArray[np.int64]


def split_by_group(groups: Groups, wanted: range) -> dict[int, Positions]:
    """Which positions belong to which of the `wanted` groups; only those that have any.

    Args:
        groups: ``(n,)``, the group of each position.
    """
    order = np.argsort(groups, kind="stable")
    borders = np.searchsorted(groups[order], np.arange(wanted.start, wanted.stop + 1))
    return {
        wanted[place]: order[borders[place] : borders[place + 1]]
        for place in np.flatnonzero(np.diff(borders)).tolist()
    }


class FrozenScores:
    """Keys and scores of a whole storage, copied at once: 16 bytes a row.

    They are put in order by the thread that asks, group by group, so that a step waits for no more
    than the copy.

    Args:
        storage: that has scores.
        groups_of: the group of each key.
        num_groups: of all keys.
    """

    def __init__(
        self, storage: Storage, groups_of: Callable[[Keys], Groups], num_groups: int
    ) -> None:
        self._groups_of = groups_of
        self._copied = [
            (chunk.keys, chunk.scores) for chunk in storage.scan(_SCAN_ROWS, Columns(0, 1))
        ]
        self._parts: list[list[tuple[Keys, Scores]]] = [[] for _ in range(num_groups)]
        self._sorted: dict[int, tuple[Keys, Scores]] = {}

    def keys(self, group: int) -> Keys:
        """All keys of a group, ascending."""
        return self._group(group)[0]

    def of(self, keys: Keys) -> Scores:
        """``(n,)``: the score of each key; 0 where it had no row."""
        scores = np.zeros(len(keys), np.uint64)
        for group, places in split_by_group(self._groups_of(keys), range(len(self._parts))).items():
            known, its_scores = self._group(group)
            if not len(known):
                continue
            found = np.minimum(np.searchsorted(known, keys[places]), len(known) - 1)
            is_known = known[found] == keys[places]
            scores[places[is_known]] = its_scores[found[is_known]]
        return scores

    def _group(self, group: int) -> tuple[Keys, Scores]:
        while self._copied:
            keys, scores = self._copied.pop()
            every = range(len(self._parts))
            for each, places in split_by_group(self._groups_of(keys), every).items():
                self._parts[each].append((keys[places], scores[places]))
        if group not in self._sorted:
            parts = self._parts[group]
            keys = np.concatenate([np.empty(0, np.int64), *(each for each, _ in parts)])
            scores = np.concatenate([np.empty(0, np.uint64), *(each for _, each in parts)])
            order = np.argsort(keys)
            self._sorted[group] = keys[order], scores[order]
            self._parts[group] = []
        return self._sorted[group]
