"""Counters of each tier of a stack."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

__all__ = ["TierCounters", "TierMeter"]


@dataclass(slots=True)
class TierCounters:
    """One tier since its storage was opened. Keys that never reach a tier count as neither hit
    nor miss there."""

    backend: str
    """The name of its backend."""
    rows: int = 0
    """Rows in it now; a row may be in several tiers."""
    hits: int = 0
    """Keys that `find` had from this tier, those on their way to it included."""
    misses: int = 0
    """Keys that this tier was asked for and did not have."""
    bloom_skips: int = 0
    """Keys that the tier was not asked for, as its Bloom filter ruled them out."""
    bloom_false_positives: int = 0
    """Keys that the filter did not rule out and the tier did not have. Where rows are in memory, the
    filter may not have been asked about them."""
    promotions: int = 0
    """Rows that were read here and came into the first tier, those written meanwhile included."""
    evictions: int = 0
    """Rows that left this tier to make room."""
    write_failures: int = 0
    """Attempts to write to this tier that raised; their rows waited."""
    read_bytes: int = 0
    """Bytes of rows that were read from it."""
    written_bytes: int = 0
    """Bytes of rows that were written to it."""
    read_seconds: float = 0.0
    """Time spent in its find, summed over threads. For rows that native code reads in place, it
    includes the work on them."""
    write_seconds: float = 0.0
    """Time spent in its upsert, update and erase, in the background or within steps."""
    wait_seconds: float = 0.0
    """Time that calls waited for a background write to this tier."""

    def as_dict(self) -> dict[str, int | float | str]:
        """For JSON."""
        return asdict(self)


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
