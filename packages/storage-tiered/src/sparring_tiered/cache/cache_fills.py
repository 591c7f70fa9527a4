"""Decides which rows that were read from the backend may come into the cache.

Reads of the backend overlap with each other, with notes, and with the trainer's writes, and the
backend does not say how new a row is. Two rules keep the rows of each key from going back:

1.  A read that began before a note was taken, and ends after it, leaves out the keys that the note may
    have: they may be older than the note, and the note's own re-reading may be over. It removes them
    from the cache as well: another read may have put an older row there before this one began, which the
    note's re-reading has yet to replace.
2.  Where two reads of one key overlap, no one knows which row is newer, and both may have been seen. So
    the one that ends last removes the key from the cache. The next find reads it from the backend, which
    has a row at least as new as both.

So what a find returns is never older than what any find that ended before it began returned. One case is
left out: a key that was erased and written again may be missing once more, where the filter of existing
keys was made again in between, until the next note.
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
    """Something that concerns reads that began before it."""

    number: int
    is_read: bool
    """Another read ended; otherwise a note was taken."""
    has: Callable[[Keys], _Mask]


class CacheFills:
    """Writes to one cache. Any thread may call any method.

    Args:
        cache: is written to by this alone.
    """

    def __init__(self, cache: Storage) -> None:
        self._cache = cache
        self._lock = threading.Lock()  # guards the cache's writes and what follows
        self._number = 0
        self._reading: dict[int, int] = {}
        """Number of events before a read → reads under way that began then."""
        self._events: deque[_Event] = deque()
        self._kept: list[Keys] = []
        """Keys that came into the cache: some repeat, and some have left it since."""
        self.num_dropped = 0
        """Rows that were read and did not come into the cache."""

    def begin(self) -> int:
        """A read of the backend begins; `end` or `abandon` must follow with the result."""
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
        """A read has ended: its rows come into the cache where they may.

        Args:
            begun: result of `begin`.
            keys: ``(n,)`` that were read.
            rows: ``(n, width)``
            found: which have a row.
            hits: keys that the cache had meanwhile, which its policy is told of; None: it takes no such.
            is_new: the cache did not have the keys when the read began.
        """
        with self._lock:
            try:
                self._fill(begun, keys, rows, found, hits, is_new)
            finally:
                self._end_read(begun)
                ascending = np.sort(keys)
                self._add_event(True, lambda asked: _are_in(asked, ascending))

    def abandon(self, begun: int) -> None:
        """A read has failed."""
        with self._lock:
            self._end_read(begun)

    def take_note(self, changed: BloomFilter | None, erased: Keys) -> None:
        """A note was taken: concerns reads that are under way.

        Args:
            changed: keys that it may have; None: all.
            erased: of these, keys that leave the cache.
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
        """The keys of the cache, of those that a note may have; None: all. Each once.

        A scan of the cache takes several times as long as to ask a filter of its keys.
        """
        with self._lock:
            kept = self._kept[0] if len(self._kept) == 1 else np.concatenate([_NONE, *self._kept])
            is_worn = len(kept) > 2 * self._cache.size + _MIN_KEPT
            self._kept = [kept]
        if is_worn:
            kept = np.concatenate(
                [_NONE, *(each.keys for each in self._cache.scan(columns=_PROBE))]
            )
            with self._lock:  # keys that came meanwhile are behind it
                self._kept[0] = kept
        if changed is not None:
            # In parts that stay in the processor's cache: twice as fast.
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
