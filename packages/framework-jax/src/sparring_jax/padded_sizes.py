"""Padded sizes. `jax.jit` compiles once per shape, and the number of keys differs between batches.

A size is increased by an eighth and rounded up to 1, 1.25, 1.5 or 1.75 times a power of two. It never
shrinks for batches of the same kind, so after a few steps the shapes no longer change.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["PaddedSizes", "round_up"]

_SMALLEST = 8


def round_up(size: int) -> int:
    """Rounds up to one of 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, …"""
    if size <= _SMALLEST:
        return _SMALLEST
    quarter = 1 << (size - 1).bit_length() - 3
    return -(-size // quarter) * quarter


class PaddedSizes:
    """The padded size of each kind of array, large enough for all arrays so far."""

    def __init__(self) -> None:
        self._sizes: dict[Hashable, int] = {}

    def of(self, kind: Hashable, size: int) -> int:
        """Returns the padded size for an array of this kind with `size` elements."""
        if size > self._sizes.get(kind, -1):
            self._sizes[kind] = round_up(size + size // 8)
        return self._sizes[kind]
