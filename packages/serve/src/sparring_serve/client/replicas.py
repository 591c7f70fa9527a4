"""Which replica of a shard is asked first, which are left for later because they failed, and pauses."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence

from sparring_serve.client.circuit_breaker import CircuitBreaker

__all__ = ["ReplicaOrder", "pauses"]

_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.01, 0.1


def pauses() -> Iterator[float]:
    """Seconds before each further attempt of a call: 10 ms, then twice as long each time, at most 100 ms.

    Each is shortened by a random part of up to a half, so that clients do not repeat calls together.
    """
    seconds = _FIRST_RETRY_SECONDS
    while True:
        yield seconds * random.uniform(0.5, 1.0)
        seconds = min(2 * seconds, _LONGEST_RETRY_SECONDS)


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
        self.breaker = CircuitBreaker()

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
