"""Which replica of a shard is asked first, and which are left for later because they failed."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence

__all__ = ["ReplicaOrder"]

_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0


class ReplicaOrder:
    """The order in which a client asks replicas.

    A client begins at a random one, its home, and stays with it, so that versions do not go back and
    forth. One that failed comes last for a while: 0.25 s, then twice as long each time, at most 5 s.

    Args:
        seed: for tests.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._home = random.Random(seed).randrange(1 << 30)
        self._lock = threading.Lock()
        self._failed: dict[str, tuple[float, float]] = {}

    def of(self, replicas: Sequence[str], now: float) -> list[str]:
        """All `replicas`, the one to ask first in front."""
        home = self._home % len(replicas)
        ordered = [*replicas[home:], *replicas[:home]]
        with self._lock:
            return sorted(ordered, key=lambda each: self._failed.get(each, (0.0, 0.0))[0] > now)

    def note_failure(self, address: str, now: float) -> None:
        with self._lock:
            _, pause = self._failed.get(address, (0.0, 0.0))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS) or _FIRST_PAUSE_SECONDS
            self._failed[address] = now + pause, pause

    def note_success(self, address: str) -> None:
        # Nearly always there is nothing to forget.
        if address in self._failed:
            with self._lock:
                self._failed.pop(address, None)
