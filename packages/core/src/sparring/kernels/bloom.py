"""Bloom filters for sets of keys.

A filter has no false negatives, and at most the configured rate of false positives. It uses about 10
bits per key at a rate of 1 %, and a query reads one cache line. ``native/kernels/blocked_bloom.h``
describes the data structure, ``docs/format/bloom.md`` the file format.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.storage.results import Keys
from sparring.errors import InvalidArgumentError

__all__ = ["BloomFilter", "GrowingBloomFilter", "growing_filter_bytes"]

_GROWTH = 4
"""Factor by which each part of a growing filter has more planned keys than the previous one."""

_SAMPLE_KEYS = 4_096
"""Size of the filter with which bytes per key are measured; its rounding error is below 1 %."""


class BloomFilter:
    """A blocked Bloom filter of fixed size.

    One thread at a time may call `add`. Other threads may call `contains` at the same time, which finds
    all keys whose `add` has returned.

    Args:
        planned_keys: number of distinct keys up to which the filter meets the rate; with more keys,
            the rate increases.
        false_positive_rate: 1e-6 to 0.5.
        seed: seed of the hash. Filters with the same seed and size are comparable bit by bit.

    Raises:
        InvalidArgumentError: a value is out of range.
        MemoryError: there is not enough memory.
    """

    def __init__(
        self, planned_keys: int, *, false_positive_rate: float = 0.01, seed: int = 0
    ) -> None:
        self._native = _native.BlockedBloom(false_positive_rate, planned_keys, seed % 2**64)

    def add(self, keys: Keys) -> None:
        """Adds keys.

        Args:
            keys: ``(n,)`` int64; they may repeat.

        Raises:
            InvalidArgumentError: `keys` has another shape or dtype.
        """
        self._native.add(keys)

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Returns whether each key may have been added, ``(n,)``.

        Args:
            keys: ``(n,)`` int64.

        Raises:
            InvalidArgumentError: `keys` has another shape or dtype.
        """
        return self._native.contains(keys)

    def clear(self) -> None:
        """Removes all keys."""
        self._native.clear()

    def to_bytes(self) -> bytes:
        """Returns the filter in the format of ``docs/format/bloom.md``."""
        return self._native.save()

    @classmethod
    def from_bytes(cls, saved: bytes) -> BloomFilter:
        """Creates a filter from the result of `to_bytes`.

        Args:
            saved: the complete result.

        Raises:
            InvalidArgumentError: the bytes are damaged, or are not a Bloom filter.
        """
        if not isinstance(saved, bytes):
            raise InvalidArgumentError(
                f"Bloom filter: saved must be bytes, found {type(saved).__name__}; pass the result of "
                "to_bytes"
            )
        loaded: Any = cls.__new__(cls)
        loaded._native = _native.BlockedBloom.load(saved)
        filled: BloomFilter = loaded
        return filled

    @property
    def planned_keys(self) -> int:
        """Number of distinct keys up to which the filter meets its rate."""
        return self._native.planned_keys

    @property
    def num_added(self) -> int:
        """Number of keys added, including repeats."""
        return self._native.num_added

    @property
    def memory_bytes(self) -> int:
        """Size of the filter in bytes."""
        return self._native.memory_bytes


class GrowingBloomFilter:
    """A Bloom filter that meets its rate for any number of keys.

    It consists of parts. When the newest part is full, a larger one is added; a key is in the set if any
    part contains it. The rates of the parts are a half, a quarter, … of the total rate, so that their
    sum does not exceed it (Almeida et al., "Scalable Bloom filters", Information Processing Letters
    101(6), 2007). Growing does not require the old keys, so it does not cause pauses.

    Args:
        planned_keys: number of keys of the first part.
        false_positive_rate: total rate, 2e-6 to 0.5.

    Raises:
        InvalidArgumentError: a value is out of range.
        MemoryError: there is not enough memory.
    """

    def __init__(self, planned_keys: int = 65_536, *, false_positive_rate: float = 0.01) -> None:
        self.planned_keys = planned_keys
        self.false_positive_rate = false_positive_rate
        self._parts = [self._part(planned_keys, 0)]

    def add(self, keys: Keys) -> None:
        """Adds keys. Keys that are already in the set use no space.

        Args:
            keys: ``(n,)`` int64, distinct.
        """
        new = keys
        # The newest part is the largest, and contains most of the known keys.
        for part in reversed(self._parts):
            new = new[~part.contains(new)]
            if not len(new):
                return
        newest = self._parts[-1]
        if newest.num_added + len(new) > newest.planned_keys:
            planned = max(_GROWTH * newest.planned_keys, len(new))
            newest = self._part(planned, len(self._parts))
            newest.add(new)
            # Replaced in one assignment, because of concurrent readers.
            self._parts = [*self._parts, newest]
        else:
            newest.add(new)

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Returns whether each key may have been added, ``(n,)``.

        Args:
            keys: ``(n,)`` int64.
        """
        first, *others = self._parts
        found = first.contains(keys)
        for part in others:
            found |= part.contains(keys)
        return found

    def to_parts(self) -> list[bytes]:
        """Returns `BloomFilter.to_bytes` of each part, for `from_parts`."""
        return [part.to_bytes() for part in self._parts]

    @classmethod
    def from_parts(
        cls, planned_keys: int, false_positive_rate: float, parts: Sequence[bytes]
    ) -> GrowingBloomFilter:
        """Creates a filter from saved parts, with the same content and false positives.

        Args:
            planned_keys: the argument of the saved filter.
            false_positive_rate: the argument of the saved filter.
            parts: the result of `to_parts`.

        Raises:
            InvalidArgumentError: a part is damaged, or there are no parts.
        """
        if not parts:
            raise InvalidArgumentError(
                "Bloom filter: parts must contain at least one filter, found none; pass the result of "
                "to_parts"
            )
        made = cls(1_024, false_positive_rate=false_positive_rate)
        made.planned_keys = planned_keys
        made._parts = [BloomFilter.from_bytes(bytes(part)) for part in parts]
        return made

    @property
    def native_parts(self) -> list[_native.BlockedBloom]:
        """The native filters of all parts, for native code."""
        return [part._native for part in self._parts]

    def clear(self) -> None:
        """Removes all keys, and frees the memory of all parts except the first."""
        self._parts = [self._part(self.planned_keys, 0)]

    @property
    def num_parts(self) -> int:
        """Number of parts that `contains` reads."""
        return len(self._parts)

    @property
    def num_added(self) -> int:
        """Number of distinct keys added, except keys that were false positives at that time."""
        return sum(part.num_added for part in self._parts)

    @property
    def memory_bytes(self) -> int:
        """Size of all parts in bytes."""
        return sum(part.memory_bytes for part in self._parts)

    def _part(self, planned_keys: int, place: int) -> BloomFilter:
        rate = _rate_of_part(self.false_positive_rate, place)
        return BloomFilter(planned_keys, false_positive_rate=rate, seed=place)


def growing_filter_bytes(
    planned_keys: int, num_keys: int, false_positive_rate: float = 0.01
) -> int:
    """Returns the size in bytes of a `GrowingBloomFilter` after `num_keys` keys were added one by one.

    Args:
        planned_keys: the argument of `GrowingBloomFilter`.
        num_keys: number of keys added.
        false_positive_rate: the argument of `GrowingBloomFilter`.
    """
    total = 0.0
    place = 0
    while True:
        total += planned_keys * _bytes_per_key(_rate_of_part(false_positive_rate, place))
        num_keys -= planned_keys
        if num_keys <= 0:
            return int(total)
        planned_keys *= _GROWTH
        place += 1


@cache
def _bytes_per_key(rate: float) -> float:
    """Returns bytes per planned key. The size of a filter is proportional to its planned keys."""
    return float(BloomFilter(_SAMPLE_KEYS, false_positive_rate=rate).memory_bytes / _SAMPLE_KEYS)


def _rate_of_part(rate: float, place: int) -> float:
    # 1e-6 is the minimum rate of a part; a filter with 15 parts would exceed any memory.
    of_part: float = max(rate / 2 ** (place + 1), 1e-6)
    return of_part
