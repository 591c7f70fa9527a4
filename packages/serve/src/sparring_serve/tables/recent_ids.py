"""Recently requested ids, for the warm-up of a newer version."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from sparring_serve.tables.contract import Ids

__all__ = ["RecentIds"]

_IDS_OF_A_CALL = 4096
_CALLS = 64


class RecentIds:
    """Ids of the last 64 calls per table, up to 4,096 of each call. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, deque[Ids]] = {}

    def note(self, table: str, ids: Ids) -> None:
        # Copy the ids, because they would keep the whole message in memory.
        noted = ids[:_IDS_OF_A_CALL].copy()
        with self._lock:
            self._calls.setdefault(table, deque(maxlen=_CALLS)).append(noted)

    def newest_first(self) -> dict[str, Ids]:
        """Returns the distinct ids per table; the ids of the newest call are first."""
        with self._lock:
            calls = {table: list(reversed(each)) for table, each in self._calls.items()}
        found = {}
        for table, each in calls.items():
            joined = np.concatenate(each)
            _, first = np.unique(joined, return_index=True)
            found[table] = joined[np.sort(first)]
        return found
