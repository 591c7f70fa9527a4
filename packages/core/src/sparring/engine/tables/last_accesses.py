"""Last visits of the keys of one table on this rank: which rows have expired.

    pending    keys of the step under way
    recent     keys and steps of writes since the last merge
    keys       ascending, each once; steps has the last visit of each

Only steps are kept with keys, 16 bytes a key. Days are those of `times`: pairs of a step and the time at
which rank 0 had taken it. A visit counts as made at the first of these times that is not before it, so no
row expires early.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import EvictedRows, Keys
from sparring.contracts.tables.expiry import Expiry

__all__ = ["LastAccesses"]

_SECONDS_PER_DAY = 86_400.0

_SWEEPS = 8
"""Sweeps within `after_steps`: a row stays for an eighth of that longer at most."""

_STEPS_BETWEEN_CHECKS = 100
"""At the clock, which ranks agree on."""

_TIMES = 64
"""Times that are kept within `after_days`."""

_MIN_MERGED = 65_536

Steps = npt.NDArray[np.int64]


class LastAccesses:
    """Last visits of one table's keys. Used by one thread at a time."""

    def __init__(self, expiry: Expiry) -> None:
        self.expiry = expiry
        self.is_complete = False
        """Whether every row has a visit; otherwise rows of an earlier process may have none."""
        self.keys: Keys = np.empty(0, np.int64)
        self.steps: Steps = np.empty(0, np.int64)
        self.times: list[tuple[int, float]] = []
        self._pending: list[Keys] = []
        self._recent: list[tuple[Keys, int | Steps]] = []
        self._num_recent = 0

    def before_write(self, keys: Keys) -> None:
        """Nothing is visited before the write."""

    def after_write(self, keys: Keys, evicted: EvictedRows | None, *, is_erased: bool) -> None:
        """Notes keys of a write; arrays may be used again by the caller."""
        self._pending.append(keys.copy())

    def rows_cleared(self, table: str) -> None:
        """Keeps the visits: keys without rows expire in time."""

    def seal(self, step: int) -> None:
        """Counts pending keys as visited in `step`."""
        for keys in self._pending:
            self._recent.append((keys, step))
            self._num_recent += len(keys)
        self._pending = []
        if self._num_recent > max(_MIN_MERGED, len(self.keys) // 2):
            self.merge()

    def adopt(self, chunks: Iterable[Keys], step: int) -> None:
        """Counts keys that no visit is known of as visited in `step`; `chunks` are those of all rows."""
        self.merge()
        unknown = [keys[~np.isin(keys, self.keys)] for keys in chunks]
        self._recent.extend((keys, step) for keys in unknown)
        self.merge()
        self.is_complete = True

    def merge(self) -> None:
        """Brings recent visits into `keys` and `steps`."""
        if not self._recent:
            return
        keys = np.concatenate([self.keys, *(keys for keys, _ in self._recent)])
        steps = np.concatenate(
            [self.steps, *(np.broadcast_to(step, len(keys)) for keys, step in self._recent)]
        )
        self._recent, self._num_recent = [], 0
        order = np.lexsort((steps, keys))
        keys, steps = keys[order], steps[order]
        is_last = np.append(keys[1:] != keys[:-1], True) if len(keys) else np.empty(0, np.bool_)
        self.keys, self.steps = keys[is_last], steps[is_last]

    def is_due(self, step: int) -> bool:
        """Whether to look for expired rows after `step`: the same on all ranks."""
        most = self.expiry.after_steps
        if most is not None and step % max(1, most // _SWEEPS) == 0:
            return True
        return self.expiry.after_days is not None and step % _STEPS_BETWEEN_CHECKS == 0

    def take_expired(self, step: int, now: float) -> Keys:
        """Forgets the keys that have expired, and returns them.

        Args:
            step: that was taken last.
            now: the time, as rank 0 says.
        """
        most, days = self.expiry.after_steps, self.expiry.after_days
        oldest = -1 if most is None else step - most
        if days is not None:
            seconds = days * _SECONDS_PER_DAY
            if not self.times or now - self.times[-1][1] >= seconds / _TIMES:
                self.times.append((step, now))
            past = now - seconds
            before = [each for each, time in self.times if time <= past]
            if before:
                oldest = max(oldest, before[-1])
                self.times = self.times[len(before) - 1 :]
        if oldest < 0:
            return np.empty(0, np.int64)
        self.merge()
        is_expired = self.steps <= oldest
        expired: Keys = self.keys[is_expired]
        self.keys, self.steps = self.keys[~is_expired], self.steps[~is_expired]
        return expired

    def drop_pending(self) -> None:
        """Forgets keys that were noted since the last `seal`, as those of rows that were removed."""
        self._pending = []

    def forget(self) -> None:
        """Forgets all visits: other rows come."""
        self._pending, self._recent, self._num_recent = [], [], 0
        self.keys, self.steps = self.keys[:0], self.steps[:0]
        self.times = []  # steps may be counted from an earlier one again
        self.is_complete = False

    def replace(self, keys: Keys, steps: Steps, times: Iterable[tuple[int, float]]) -> None:
        """Puts the visits of all rows in place of those that are known; a key may be repeated."""
        self.forget()
        self._recent = [(keys, steps)]
        self.times = list(times)
        self.merge()
        self.is_complete = True
