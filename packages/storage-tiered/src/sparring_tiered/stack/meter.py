"""Counters of the operations of one tier."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sparring.contracts import TierCounters

__all__ = ["TierMeter"]


class TierMeter:
    """Adds to the counters of one tier, from any thread."""

    def __init__(self, backend: str) -> None:
        self.counters = TierCounters(backend)
        self._lock = threading.Lock()

    def found(self, hits: int, misses: int, *, read_bytes: int, seconds: float) -> None:
        """Records a find of `hits + misses` keys."""
        counters = self.counters
        with self._lock:
            counters.hits += hits
            counters.misses += misses
            counters.read_bytes += read_bytes
            counters.read_seconds += seconds

    def filtered(self, skips: int, false_positives: int) -> None:
        """Records `skips` keys that the filter excluded, and keys that it passed but the tier did not
        have."""
        with self._lock:
            self.counters.bloom_skips += skips
            self.counters.bloom_false_positives += false_positives

    def waited(self, seconds: float) -> None:
        """Records the time that a call waited for a background write."""
        with self._lock:
            self.counters.wait_seconds += seconds

    def wrote(self, written_bytes: int, seconds: float) -> None:
        """Records a write that native code or a device made in the tier."""
        self.counters.written_bytes += written_bytes
        self.counters.write_seconds += seconds

    @contextmanager
    def writing(self, written_bytes: int) -> Iterator[None]:
        """Records a write and its time. A write that raises counts as failed, without bytes."""
        start = time.perf_counter()
        try:
            yield
        except Exception:
            self.counters.write_failures += 1
            raise
        else:
            self.counters.written_bytes += written_bytes
        finally:
            self.counters.write_seconds += time.perf_counter() - start
