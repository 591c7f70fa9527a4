"""`TierMeter`: counts the work of one tier of a stack."""

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
        """The tier was asked for `hits + misses` keys."""
        counters = self.counters
        with self._lock:
            counters.hits += hits
            counters.misses += misses
            counters.read_bytes += read_bytes
            counters.read_seconds += seconds

    def filtered(self, skips: int, false_positives: int) -> None:
        """The filter ruled out `skips` keys, and let pass some that were not there."""
        with self._lock:
            self.counters.bloom_skips += skips
            self.counters.bloom_false_positives += false_positives

    def waited(self, seconds: float) -> None:
        """A call waited for a background write."""
        with self._lock:
            self.counters.wait_seconds += seconds

    def wrote(self, written_bytes: int, seconds: float) -> None:
        """The tier has changed rows by itself."""
        self.counters.written_bytes += written_bytes
        self.counters.write_seconds += seconds

    @contextmanager
    def writing(self, written_bytes: int) -> Iterator[None]:
        """Times a write; one that raises counts as failed and writes no bytes."""
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
