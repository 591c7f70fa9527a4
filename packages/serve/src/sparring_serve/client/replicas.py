"""Order in which the replicas of a shard are called, and pauses between attempts."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence

from sparring_serve.client.circuit_breaker import CircuitBreaker

__all__ = ["LeaderOrder", "ReplicaOrder", "pauses"]

_FIRST_RETRY_SECONDS, _LONGEST_RETRY_SECONDS = 0.01, 0.1


def pauses() -> Iterator[float]:
    """Yields the seconds before each further attempt of a call: 10 ms, doubling up to 100 ms.

    Each pause is shortened by a random part of up to a half, so that clients do not retry in
    lockstep.
    """
    seconds = _FIRST_RETRY_SECONDS
    while True:
        yield seconds * random.uniform(0.5, 1.0)
        seconds = min(2 * seconds, _LONGEST_RETRY_SECONDS)


_FIRST_PAUSE_SECONDS = 0.25
_LONGEST_PAUSE_SECONDS = 5.0


class ReplicaOrder:
    """Order in which a client calls replicas.

    A client starts with a random replica, its home, and keeps using it, so that versions do not
    alternate. A replica that failed is called last for a while: 0.25 s, doubling up to 5 s.

    Args:
        seed: Seed of the choice, for tests.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._home = random.Random(seed).randrange(1 << 30)
        self._lock = threading.Lock()
        self._failed: dict[str, tuple[float, float]] = {}
        self.breaker = CircuitBreaker()

    def of(self, replicas: Sequence[str], now: float) -> list[str]:
        """Returns all `replicas` in the order in which to call them."""
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
        # Avoid the lock in the usual case.
        if address in self._failed:
            with self._lock:
                self._failed.pop(address, None)


class LeaderOrder(ReplicaOrder):
    """Order that begins with the replica that replied last, because only the leader replies."""

    def __init__(self) -> None:
        super().__init__()
        self._leaders: set[str] = set()

    def of(self, replicas: Sequence[str], now: float) -> list[str]:
        return sorted(super().of(replicas, now), key=lambda each: each not in self._leaders)

    def note_failure(self, address: str, now: float) -> None:
        super().note_failure(address, now)
        self._leaders.discard(address)

    def note_success(self, address: str) -> None:
        super().note_success(address)
        self._leaders.add(address)
