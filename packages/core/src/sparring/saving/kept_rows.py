"""Old rows that a running save still needs, and the memory that they take together."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.storage.contract import Keys, Rows

__all__ = ["Kept", "KeptBudget"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What rows were before a step wrote to them."""

    keys: Keys
    """``(n,)``"""
    rows: Rows
    """``(n, width)``; undefined where `found` is False."""
    found: npt.NDArray[np.bool_]
    """``(n,)``: False where the key had no row."""

    @property
    def num_bytes(self) -> int:
        return self.keys.nbytes + self.rows.nbytes + self.found.nbytes


class KeptBudget:
    """How many bytes of old rows all tables of a save may hold together.

    A step that finds the budget used up waits until the saver has written some. So the most that
    is held is the budget and the rows of one step.

    Args:
        limit_bytes: from which on steps wait.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.most_bytes = 0
        self.num_rows = 0
        self.wait_seconds = 0.0
        self._used_bytes = 0
        self._is_over = False
        self._changed = threading.Condition()

    def take(self, kept: Kept) -> None:
        """Counts rows that were kept."""
        with self._changed:
            self._used_bytes += kept.num_bytes
            self.num_rows += len(kept.keys)
            self.most_bytes = max(self.most_bytes, self._used_bytes)

    @property
    def is_half_used(self) -> bool:
        """Whether it is time to write old rows of tables whose turn has not come."""
        return 2 * self._used_bytes >= self.limit_bytes

    @property
    def is_urgent(self) -> bool:
        """Whether steps may soon have to wait, or nobody needs the save to be slow."""
        return 4 * self._used_bytes >= 3 * self.limit_bytes or self._is_over

    def give_back(self, num_bytes: int) -> None:
        """Rows of so many bytes were let go."""
        if num_bytes:
            with self._changed:
                self._used_bytes -= num_bytes
                self._changed.notify_all()

    def end(self) -> None:
        """Nobody waits any more: the save is over."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_for_room(self, seconds: float) -> bool:
        """Returns when a step may keep more rows; False if that did not come about in time."""
        with self._changed:
            if self._used_bytes < self.limit_bytes or self._is_over:
                return True
            begin = time.perf_counter()
            has_room = self._changed.wait_for(
                lambda: self._used_bytes < self.limit_bytes or self._is_over, seconds
            )
            self.wait_seconds += time.perf_counter() - begin
            return has_room
