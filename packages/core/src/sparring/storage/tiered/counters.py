"""What is counted of each tier of a stack."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from sparring.forking import Forkable

if TYPE_CHECKING:
    from sparring.ranks import Ranks

__all__ = ["TierCounters", "TierMeter", "sum_over_ranks"]


@dataclass(slots=True)
class TierCounters:
    """One tier since its storage was opened. Keys that never reach a tier count as neither hit
    nor miss there."""

    backend: str
    """Whose storage it is."""
    rows: int = 0
    """Rows in it now; a row may lie in several tiers."""
    hits: int = 0
    """Keys that `find` had from this tier, those on their way to it included."""
    misses: int = 0
    """Keys that this tier was asked for and did not have."""
    bloom_skips: int = 0
    """Keys that the tier was not asked for, as its Bloom filter ruled them out."""
    bloom_false_positives: int = 0
    """Keys that the filter did not rule out and the tier did not have. Where rows lie in memory, it
    may not have been asked for them."""
    promotions: int = 0
    """Rows that were read here and came into the first tier, those written meanwhile included."""
    evictions: int = 0
    """Rows that left this tier to make room."""
    write_failures: int = 0
    """Attempts to write to this tier that raised; what was to be written waited."""
    read_bytes: int = 0
    """Bytes of rows that were read from it."""
    written_bytes: int = 0
    """Bytes of rows that were written to it."""
    read_seconds: float = 0.0
    """Time spent in its find, summed over threads. Rows that native code reads where they lie count
    with what it does with them."""
    write_seconds: float = 0.0
    """Time spent in its upsert, update and erase, beside steps or within them."""
    wait_seconds: float = 0.0
    """Time that calls waited for a write to this tier which went on beside them."""

    def as_dict(self) -> dict[str, int | float | str]:
        """For JSON."""
        return asdict(self)


def sum_over_ranks(tiers: list[TierCounters], ranks: Ranks) -> list[TierCounters]:
    """The counters of one table's tiers on all ranks together; every rank calls it."""
    names = [each.name for each in fields(TierCounters) if each.name != "backend"]
    mine = np.array([[getattr(tier, name) for name in names] for tier in tiers], np.float64)
    sums = ranks.sum(mine.reshape(-1)).reshape(mine.shape).tolist()
    return [
        TierCounters(
            tier.backend,
            **{
                name: type(getattr(tier, name))(value)
                for name, value in zip(names, values, strict=True)
            },
        )
        for tier, values in zip(tiers, sums, strict=True)
    ]


class TierMeter(Forkable):
    """Adds to the counters of one tier, from any thread."""

    def __init__(self, backend: str) -> None:
        super().__init__()
        self.counters = TierCounters(backend)
        self.begin_anew()

    def begin_anew(self) -> None:
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
        """A call waited for a write that went on beside it."""
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
