"""Storages that keep rows in several tiers, and the counters of each tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

from sparring.contracts.storage.storage import Storage

__all__ = ["SupportsTiers", "TierCounters"]


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


@runtime_checkable
class SupportsTiers(Protocol):
    """Keeps rows in several storages, the hottest first."""

    @property
    def tiers(self) -> Sequence[Storage]:
        """The storages, hottest first."""

    @property
    def known_size(self) -> int | None:
        """As `Storage.size`; None if tiers would have to be scanned for it."""

    def tier_counters(self, is_counted: Callable[[Storage], bool] = ...) -> list[TierCounters]:
        """Returns counters of each tier since the storage was opened, hottest first.

        Args:
            is_counted: which tiers are asked for their number of rows; for the others `rows` is the last
                known number. By default all are asked.
        """
