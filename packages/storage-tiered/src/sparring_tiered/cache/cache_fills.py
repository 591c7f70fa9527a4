"""Decides which rows that were read from the backend may enter the cache.

Reads of the backend overlap with each other, with notes, and with the trainer's writes, and the backend
does not report how new a row is. Two rules prevent finds from returning older rows than before:

1.  A read that began before a note was applied, and ends after it, does not cache the keys that the note
    may contain. Its rows may be older than the note, and the follower may have finished re-reading the
    keys of the note. It also removes these keys from the cache, because another read may have cached an
    older row before this one began, which the follower has not replaced yet.
2.  If two reads of one key overlap, it is unknown which row is newer, and callers may have received
    both. The read that ends last therefore removes the key from the cache. The next find reads it from
    the backend, whose row is at least as new as both.

As a result, a find never returns an older row than any find that ended before it began. There is one
exception: a key that was erased and written again may be reported as missing until the next note, if the
filter of existing keys was rebuilt in between.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.adapter import BloomFilter
from sparring.contracts import Columns, Keys, Rows, Storage

__all__ = ["CacheFills"]

_Mask = npt.NDArray[np.bool_]

_PROBE = Columns(0, 1)
_MIN_KEPT = 65_536
_PART_KEYS = 65_536
_NONE: Keys = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Event:
    """An event that affects the reads that began before it."""

    number: int
    is_read: bool
    """Whether another read ended; otherwise a note was applied."""
    has: Callable[[Keys], _Mask]


class CacheFills:
    """Writes rows to one cache. Any thread may call any method.

    Args:
        cache: Cache that only this object writes to.
    """

    def __init__(self, cache: Storage) -> None:
        self._cache = cache
        self._lock = threading.Lock()  # guards writes to the cache and the attributes below
        self._number = 0
        self._reading: dict[int, int] = {}
        """Number of events before a read → number of reads in progress that began at that point."""
        self._events: deque[_Event] = deque()
        self._kept: list[Keys] = []
        """Keys that entered the cache. Keys may repeat, and some are no longer in the cache."""
        self.num_dropped = 0
        """Rows that were read but not cached."""

    def begin(self) -> int:
        """Begins a read of the backend. A call of `end` or `abandon` with the result must follow."""
        with self._lock:
            self._reading[self._number] = self._reading.get(self._number, 0) + 1
            return self._number

    def end(
        self,
        begun: int,
        keys: Keys,
        rows: Rows,
        found: _Mask,
        hits: Keys | None = None,
        *,
        is_new: bool = True,
    ) -> None:
        """Ends a read, and caches its rows as far as the rules allow.

        Args:
            begun: Result of `begin`.
            keys: ``(n,)`` keys that were read.
            rows: ``(n, width)`` rows of the keys.
            found: ``(n,)``, True for keys with a row.
            hits: Keys that the same find read from the cache, for the cache's policy; None if the cache
                does not support `touch`.
            is_new: Whether the keys were not in the cache when the read began.
        """
        with self._lock:
            try:
                self._fill(begun, keys, rows, found, hits, is_new)
            finally:
                self._end_read(begun)
                ascending = np.sort(keys)
                self._add_event(True, lambda asked: _are_in(asked, ascending))

    def abandon(self, begun: int) -> None:
        """Ends a read that failed."""
        with self._lock:
            self._end_read(begun)

    def take_note(self, changed: BloomFilter | None, erased: Keys) -> None:
        """Applies a note to the reads in progress, and removes erased keys from the cache.

        Args:
            changed: Keys that the note may contain; None for all keys.
            erased: Erased keys, which are among the changed ones.
        """
        with self._lock:
            self._add_event(
                False,
                (lambda keys: np.ones(len(keys), np.bool_))
                if changed is None
                else changed.contains,
            )
            if len(erased):
                self._cache.erase(erased)

    def erase(self, keys: Keys) -> None:
        """Removes keys from the cache."""
        with self._lock:
            self._cache.erase(keys)

    def list_cached(self, changed: BloomFilter | None) -> Keys:
        """Returns the distinct cached keys that a note may contain; with None, all cached keys.

        Uses the recorded keys, because a scan of the cache takes several times as long.
        """
        with self._lock:
            kept = self._kept[0] if len(self._kept) == 1 else np.concatenate([_NONE, *self._kept])
            is_worn = len(kept) > 2 * self._cache.size + _MIN_KEPT
            self._kept = [kept]
        if is_worn:
            kept = np.concatenate(
                [_NONE, *(each.keys for each in self._cache.scan(columns=_PROBE))]
            )
            with self._lock:  # keys that were cached during the scan are in later parts
                self._kept[0] = kept
        if changed is not None:
            # In parts that fit into the CPU cache, which is twice as fast.
            parts = np.split(kept, range(_PART_KEYS, len(kept), _PART_KEYS))
            kept = np.concatenate([part[changed.contains(part)] for part in parts])
        asked = np.unique(kept)
        if not len(asked):
            return asked
        found = np.empty(len(asked), np.bool_)
        room = np.empty((len(asked), 1), self._cache.table.numpy_dtype)
        self._cache.find_into(asked, _PROBE, room, found)
        return asked[found]

    @property
    def memory_bytes(self) -> int:
        return sum(each.nbytes for each in self._kept)

    def _fill(
        self, begun: int, keys: Keys, rows: Rows, found: _Mask, hits: Keys | None, is_new: bool
    ) -> None:
        is_fresh = np.ones(len(keys), np.bool_)
        is_alone = np.ones(len(keys), np.bool_)
        for event in self._events:
            if event.number > begun:
                has = event.has(keys)
                if event.is_read:
                    is_alone &= ~has
                else:
                    is_fresh &= ~has
        taken = is_fresh & is_alone & found
        leaving = keys[~taken]
        if len(leaving):
            self._cache.erase(leaving)
        if hits is not None and len(hits):
            self._cache.touch(hits)
        if taken.any():
            is_all = bool(taken.all())
            kept = keys if is_all else keys[taken]
            if is_new:
                self._kept.append(kept)
            self._cache.upsert(kept, rows if is_all else rows[taken])
        self.num_dropped += int(np.count_nonzero(found & ~taken))

    def _end_read(self, begun: int) -> None:
        self._reading[begun] -= 1
        if not self._reading[begun]:
            del self._reading[begun]
        oldest = min(self._reading, default=self._number)
        while self._events and self._events[0].number <= oldest:
            self._events.popleft()

    def _add_event(self, is_read: bool, has: Callable[[Keys], _Mask]) -> None:
        if self._reading:
            self._number += 1
            self._events.append(_Event(self._number, is_read, has))


def _are_in(keys: Keys, ascending: Keys) -> _Mask:
    places = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    found: _Mask = ascending[places] == keys
    return found
