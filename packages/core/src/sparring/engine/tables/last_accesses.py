"""Last access of each key of one table on this rank, which determines the rows that expire.

    pending    keys of the current step
    recent     keys and steps of writes since the last merge
    keys       unique and ascending; `steps` contains the last access of each

Only the step is stored per key, 16 bytes per key. `times` contains pairs of a step and the time at
which rank 0 had applied it, for a TTL in days. The time of an access is the first of these
times that is not before it, so no row expires early.
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
"""Sweeps per `after_steps`: a row stays at most an eighth of the TTL too long."""

_STEPS_BETWEEN_CHECKS = 100
"""Interval of sweeps for a TTL in days; ranks agree on the time at each sweep."""

_TIMES = 64
"""Number of times that are kept per `after_days`."""

_MIN_MERGED = 65_536

Steps = npt.NDArray[np.int64]


class LastAccesses:
    """Last access of each key of one table. Used by one thread at a time."""

    def __init__(self, expiry: Expiry) -> None:
        self.expiry = expiry
        self.is_complete = False
        """Whether the last access of every row is known. Rows of an earlier process may be unknown."""
        self.keys: Keys = np.empty(0, np.int64)
        self.steps: Steps = np.empty(0, np.int64)
        self.times: list[tuple[int, float]] = []
        self._pending: list[Keys] = []
        self._recent: list[tuple[Keys, int | Steps]] = []
        self._num_recent = 0

    def before_write(self, keys: Keys) -> None:
        """Does nothing, because `after_write` records the access."""

    def after_write(self, keys: Keys, evicted: EvictedRows | None, *, is_erased: bool) -> None:
        """Records the keys of a write. The caller may reuse the arrays."""
        self._pending.append(keys.copy())

    def rows_cleared(self, table: str) -> None:
        """Does nothing; keys without rows expire after their TTL."""

    def seal(self, step: int) -> None:
        """Records pending keys as accessed in `step`."""
        for keys in self._pending:
            self._recent.append((keys, step))
            self._num_recent += len(keys)
        self._pending = []
        if self._num_recent > max(_MIN_MERGED, len(self.keys) // 2):
            self.merge()

    def adopt(self, chunks: Iterable[Keys], step: int) -> None:
        """Records keys without a known access as accessed in `step`; `chunks` contain the keys of all
        rows."""
        self.merge()
        unknown = [keys[~np.isin(keys, self.keys)] for keys in chunks]
        self._recent.extend((keys, step) for keys in unknown)
        self.merge()
        self.is_complete = True

    def merge(self) -> None:
        """Merges recent accesses into `keys` and `steps`."""
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
        """Whether a sweep is due after `step`; the same on all ranks."""
        most = self.expiry.after_steps
        if most is not None and step % max(1, most // _SWEEPS) == 0:
            return True
        return self.expiry.after_days is not None and step % _STEPS_BETWEEN_CHECKS == 0

    def take_expired(self, step: int, now: float) -> Keys:
        """Removes the keys that have expired, and returns them.

        Args:
            step: last applied step.
            now: time of rank 0, in seconds.
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
        """Forgets keys that were recorded since the last `seal`, because their rows were removed."""
        self._pending = []

    def forget(self) -> None:
        """Forgets all accesses, because all rows are replaced."""
        self._pending, self._recent, self._num_recent = [], [], 0
        self.keys, self.steps = self.keys[:0], self.steps[:0]
        self.times = []  # a load may set an earlier step
        self.is_complete = False

    def replace(self, keys: Keys, steps: Steps, times: Iterable[tuple[int, float]]) -> None:
        """Replaces all known accesses with the given ones, which include all rows. Keys may repeat."""
        self.forget()
        self._recent = [(keys, steps)]
        self.times = list(times)
        self.merge()
        self.is_complete = True
