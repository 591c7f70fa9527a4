"""Memory of messages, used again: fresh memory costs a page fault for every 4 KiB."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["Buffers"]

Bytes = npt.NDArray[np.uint8]

_SMALLEST = 1 << 12


def _fresh(num_bytes: int) -> Bytes:
    return np.empty(num_bytes, np.uint8)


class Buffers:
    """Lends buffers to one thread. Keeps at most `most_bytes` of those that came back.

    Args:
        most_bytes: of buffers that nobody uses.
        make: makes one of so many bytes.
    """

    def __init__(self, most_bytes: int = 256 << 20, make: Callable[[int], Bytes] = _fresh) -> None:
        self._most_bytes = most_bytes
        self._make = make
        self._kept_bytes = 0
        # Rounded size -> buffers of that size.
        self._kept: dict[int, list[Bytes]] = {}

    def take(self, num_bytes: int) -> Bytes:
        """A buffer of `num_bytes`, holding anything; its memory begins on a multiple of 16."""
        size = max(_SMALLEST, 1 << (max(1, num_bytes) - 1).bit_length())
        kept = self._kept.get(size)
        if kept:
            self._kept_bytes -= size
            return kept.pop()[:num_bytes]
        return self._make(size)[:num_bytes]

    def give_back(self, buffer: Bytes) -> None:
        """Takes back what `take` gave; nobody may use it any more."""
        whole = buffer.base
        assert isinstance(whole, np.ndarray)
        if self._kept_bytes + whole.nbytes > self._most_bytes:
            return
        self._kept_bytes += whole.nbytes
        self._kept.setdefault(whole.nbytes, []).append(whole)
