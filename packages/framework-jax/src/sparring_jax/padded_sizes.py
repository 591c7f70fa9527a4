"""Padded sizes: `jax.jit` compiles for each shape, and no two batches have equally many keys.

A size gets an eighth more and is rounded up to 1, 1.25, 1.5 or 1.75 times a power of two. It never
shrinks for batches of the same kind: after a few steps the shapes are the same for good.
"""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["PaddedSizes", "round_up"]

_SMALLEST = 8


def round_up(size: int) -> int:
    """The next of 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, …"""
    if size <= _SMALLEST:
        return _SMALLEST
    quarter = 1 << (size - 1).bit_length() - 3
    return -(-size // quarter) * quarter


class PaddedSizes:
    """The size of each kind of array, which is enough for all that there were so far."""

    def __init__(self) -> None:
        self._sizes: dict[Hashable, int] = {}

    def of(self, kind: Hashable, size: int) -> int:
        """Size to pad an array of this kind to, which has `size` elements."""
        if size > self._sizes.get(kind, -1):
            self._sizes[kind] = round_up(size + size // 8)
        return self._sizes[kind]
