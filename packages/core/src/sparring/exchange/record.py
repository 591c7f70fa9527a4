"""What is kept of a pull, so that its rows can be refreshed after a step has changed some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.exchange.routing import Routed
from sparring.storage.contract import Keys

__all__ = ["ChangedKeys", "PullRecord", "Stale"]

Places = npt.NDArray[np.int64]


@dataclass(slots=True)
class ChangedKeys:
    """Keys of a table that may read otherwise than before; rather too many than too few."""

    parts: list[Keys] = field(default_factory=list)
    """Of each step; a key may be in several."""
    are_all: bool = False
    """Whatever the key: it may."""

    def places_in(self, keys: Keys) -> Places:
        """Where in `keys` those are that have changed, in order."""
        if self.are_all:
            return np.arange(len(keys))
        changed = np.concatenate([*self.parts, np.empty(0, np.int64)])
        if not len(changed) or not len(keys):
            return np.empty(0, np.int64)
        # The changed ones come first, so theirs are the first places among the unique ones.
        _, inverse = _native.dedup(np.concatenate([changed, keys]))
        num_changed = int(inverse[: len(changed)].max()) + 1
        return np.flatnonzero(inverse[len(changed) :] < num_changed)


@dataclass(frozen=True, slots=True)
class Stale:
    """What of a pull this rank, as the owner, has to send again."""

    counts: npt.NDArray[np.int64]
    """``(world_size, tables)``: rows of each table for each rank, itself left out."""
    places: list[Places]
    """For each rank: places in what it asked for of each table, one table after the other."""
    keys: list[Keys]
    """For each rank: the keys at these places."""


class PullRecord:
    """The two sides of a pull on several ranks: what was asked for, and what was served."""

    def __init__(self) -> None:
        self._routed: Routed | None = None
        self._served_counts = np.empty((0, 0), np.int64)
        self._served: dict[int, list[Keys]] = {}

    def begin(self, routed: Routed, served_counts: npt.NDArray[np.int64]) -> None:
        """A pull begins.

        Args:
            routed: what this rank asks for.
            served_counts: ``(world_size, tables)``: what each rank asks of this one.
        """
        self._routed = routed
        self._served_counts = served_counts
        self._served = {}

    def add(self, peer: int, keys: Keys) -> None:
        """A rank asked for `keys`, the next of its stream."""
        self._served.setdefault(peer, []).append(keys)

    @property
    def routed(self) -> Routed:
        """What this rank asked for."""
        assert self._routed is not None  # a pull that ended well has begun
        return self._routed

    def stale(self, changed: Sequence[ChangedKeys], rank: int) -> Stale:
        """What was served and has changed since.

        Args:
            changed: of each table.
            rank: this one.
        """
        counts = np.zeros_like(self._served_counts)
        places: list[Places] = []
        keys: list[Keys] = []
        for peer, asked in enumerate(self._served_counts):
            nothing = np.empty(0, np.int64)
            stream = np.concatenate([nothing, *self._served.get(peer, [])])
            of_tables, their_keys = [nothing], [nothing]
            begin = 0
            for table, count in enumerate(asked.tolist()):
                wanted = stream[begin : begin + count]
                begin += count
                if peer == rank:
                    continue
                found = changed[table].places_in(wanted)
                counts[peer, table] = len(found)
                of_tables.append(found)
                their_keys.append(wanted[found])
            places.append(np.concatenate(of_tables))
            keys.append(np.concatenate(their_keys))
        return Stale(counts, places, keys)
