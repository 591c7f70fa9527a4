"""Bloom filters over keys: which keys may be in a set.

The answer "no" is certain, and "yes" is wrong for at most the configured share of the keys that
are not in the set. A filter takes some 10 bits a key at a rate of 1 %, and the question costs one
cache line. ``native/kernels/blocked_bloom.h`` draws it; ``docs/format/bloom.md`` has its bytes.
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
"""Ratio of the planned keys of the next part of a growing filter to those of the last."""

_SAMPLE_KEYS = 4_096
"""Of a filter whose bytes a key are asked for: enough that rounding is less than 1 %."""


class BloomFilter:
    """A blocked Bloom filter of a fixed size.

    One thread at a time may `add`; others may ask meanwhile, and are answered for keys whose `add`
    has returned.

    Args:
        planned_keys: how many distinct keys keep to the rate; beyond them it grows.
        false_positive_rate: 1e-6 to 0.5.
        seed: filters of one seed and size can be compared bit by bit.

    Raises:
        InvalidArgumentError: a value out of range.
        MemoryError: there is no memory for it.
    """

    def __init__(
        self, planned_keys: int, *, false_positive_rate: float = 0.01, seed: int = 0
    ) -> None:
        self._native = _native.BlockedBloom(false_positive_rate, planned_keys, seed % 2**64)

    def add(self, keys: Keys) -> None:
        """Adds keys ``(n,)`` int64; repeats do no harm.

        Raises:
            InvalidArgumentError: `keys` has another shape or dtype.
        """
        self._native.add(keys)

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Whether each of the keys ``(n,)`` int64 may have been added.

        Raises:
            InvalidArgumentError: `keys` has another shape or dtype.
        """
        return self._native.contains(keys)

    def clear(self) -> None:
        """Takes all keys out."""
        self._native.clear()

    def to_bytes(self) -> bytes:
        """All of it, as ``docs/format/bloom.md`` lays it out."""
        return self._native.save()

    @classmethod
    def from_bytes(cls, saved: bytes) -> BloomFilter:
        """Restores a filter from the bytes of `to_bytes`.

        Raises:
            InvalidArgumentError: the bytes are damaged, or no Bloom filter.
        """
        if not isinstance(saved, bytes):
            raise InvalidArgumentError(
                f"saved bytes of a Bloom filter must be bytes, found {type(saved).__name__}"
            )
        loaded: Any = cls.__new__(cls)
        loaded._native = _native.BlockedBloom.load(saved)
        filled: BloomFilter = loaded
        return filled

    @property
    def planned_keys(self) -> int:
        return self._native.planned_keys

    @property
    def num_added(self) -> int:
        """Keys that were added, each time that they were."""
        return self._native.num_added

    @property
    def memory_bytes(self) -> int:
        return self._native.memory_bytes


class GrowingBloomFilter:
    """A Bloom filter that keeps to its rate however many keys come.

    When the newest filter is full a larger one is begun, and a key is in the set if it is in any.
    The rates of the parts are a half, a quarter, … of the whole, so they never add up to more
    (Almeida et al., "Scalable Bloom filters", Information Processing Letters 101(6), 2007). No key
    has to be seen again, so nothing pauses.

    Args:
        planned_keys: how many keys the first part is for.
        false_positive_rate: of the whole, 2e-6 to 0.5.

    Raises:
        InvalidArgumentError: a value out of range.
        MemoryError: there is no memory for it.
    """

    def __init__(self, planned_keys: int = 65_536, *, false_positive_rate: float = 0.01) -> None:
        self.planned_keys = planned_keys
        self.false_positive_rate = false_positive_rate
        self._parts = [self._part(planned_keys, 0)]

    def add(self, keys: Keys) -> None:
        """Adds keys ``(n,)`` int64 that are distinct within the call; known ones cost no room."""
        new = keys
        # The newest part is the largest: most keys that are known are in it.
        for part in reversed(self._parts):
            new = new[~part.contains(new)]
            if not len(new):
                return
        newest = self._parts[-1]
        if newest.num_added + len(new) > newest.planned_keys:
            planned = max(_GROWTH * newest.planned_keys, len(new))
            newest = self._part(planned, len(self._parts))
            newest.add(new)
            # In one step, for concurrent readers.
            self._parts = [*self._parts, newest]
        else:
            newest.add(new)

    def contains(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Whether each of the keys ``(n,)`` int64 may have been added."""
        first, *others = self._parts
        found = first.contains(keys)
        for part in others:
            found |= part.contains(keys)
        return found

    def to_parts(self) -> list[bytes]:
        """Each filter of it as `BloomFilter.to_bytes` gives it; for `from_parts`."""
        return [part.to_bytes() for part in self._parts]

    @classmethod
    def from_parts(
        cls, planned_keys: int, false_positive_rate: float, parts: Sequence[bytes]
    ) -> GrowingBloomFilter:
        """Restores a filter: it contains what the saved one contained, the false positives too, and
        goes on with `add` as that one does.

        Args:
            planned_keys: number of planned keys of the saved filter.
            false_positive_rate: rate of the saved filter.
            parts: of `to_parts`.

        Raises:
            InvalidArgumentError: a part is damaged, or there is none.
        """
        if not parts:
            raise InvalidArgumentError("saved parts of a Bloom filter: found none, must be some")
        made = cls(1_024, false_positive_rate=false_positive_rate)
        made.planned_keys = planned_keys
        made._parts = [BloomFilter.from_bytes(bytes(part)) for part in parts]
        return made

    @property
    def native_parts(self) -> list[_native.BlockedBloom]:
        """For native code: the filters, of which any may contain a key."""
        return [part._native for part in self._parts]

    def clear(self) -> None:
        """Takes all keys out, and gives back the memory of all but the first part."""
        self._parts = [self._part(self.planned_keys, 0)]

    @property
    def num_parts(self) -> int:
        """Filters that a question goes to."""
        return len(self._parts)

    @property
    def num_added(self) -> int:
        """Distinct keys that were added, but for those taken for members before."""
        return sum(part.num_added for part in self._parts)

    @property
    def memory_bytes(self) -> int:
        return sum(part.memory_bytes for part in self._parts)

    def _part(self, planned_keys: int, place: int) -> BloomFilter:
        rate = _rate_of_part(self.false_positive_rate, place)
        return BloomFilter(planned_keys, false_positive_rate=rate, seed=place)


def growing_filter_bytes(
    planned_keys: int, num_keys: int, false_positive_rate: float = 0.01
) -> int:
    """Memory of a growing filter that `num_keys` keys were added to one by one.

    Args:
        planned_keys: the argument of `GrowingBloomFilter`.
        false_positive_rate: the argument of `GrowingBloomFilter`.
        num_keys: how many were added.
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
    """Of the keys that a filter is for, whose size is proportional to their number."""
    return float(BloomFilter(_SAMPLE_KEYS, false_positive_rate=rate).memory_bytes / _SAMPLE_KEYS)


def _rate_of_part(rate: float, place: int) -> float:
    # The smallest rate that a part may have; growing 15 times is beyond any memory.
    of_part: float = max(rate / 2 ** (place + 1), 1e-6)
    return of_part
