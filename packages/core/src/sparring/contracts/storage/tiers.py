"""Storages with several tiers, and the counters of each tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, runtime_checkable

from sparring.contracts.storage.storage import Storage

__all__ = ["SupportsTiers", "TierCounters"]


@dataclass(slots=True)
class TierCounters:
    """Counters of one tier since its storage was opened.

    A key that is found in a hotter tier counts as neither hit nor miss in the colder ones.
    """

    backend: str
    """Name of the tier's backend."""
    rows: int = 0
    """Number of rows in the tier now; a row may be in several tiers."""
    hits: int = 0
    """Keys that `find` read from this tier, including rows that are being written to it."""
    misses: int = 0
    """Keys that were looked up in this tier and not found."""
    bloom_skips: int = 0
    """Keys that were not looked up in this tier because its Bloom filter excluded them."""
    bloom_false_positives: int = 0
    """Keys that the filter did not exclude and that were not found. If rows are in memory, the filter
    may be skipped."""
    promotions: int = 0
    """Rows that were copied from this tier to the first one, including rows that a write
    replaces at the same time."""
    evictions: int = 0
    """Rows that were evicted from this tier."""
    write_failures: int = 0
    """Writes to this tier that raised; they are repeated later."""
    read_bytes: int = 0
    """Bytes of the rows that were read from this tier."""
    written_bytes: int = 0
    """Bytes of the rows that were written to this tier."""
    read_seconds: float = 0.0
    """Time spent in find, summed over threads. If native code reads rows in place, it includes the
    time that the code works on them."""
    write_seconds: float = 0.0
    """Time spent in upsert, update and erase, in the background or within steps."""
    wait_seconds: float = 0.0
    """Time that calls waited for background writes to this tier."""

    def as_dict(self) -> dict[str, int | float | str]:
        """Returns the counters as a dict that can be written as JSON."""
        return asdict(self)


@runtime_checkable
class SupportsTiers(Protocol):
    """A storage that stores rows in several storages, hottest first."""

    @property
    def tiers(self) -> Sequence[Storage]:
        """The storages, hottest first."""

    @property
    def known_size(self) -> int | None:
        """Number of rows (`Storage.size`); None if counting them would require a scan of tiers."""

    def tier_counters(self, is_counted: Callable[[Storage], bool] = ...) -> list[TierCounters]:
        """Returns the counters of each tier since the storage was opened, hottest first.

        Args:
            is_counted: whether to count the rows of a tier; for the others, `rows` is the last known
                number. By default, the rows of all tiers are counted.
        """
