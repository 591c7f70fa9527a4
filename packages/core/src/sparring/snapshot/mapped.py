"""Memory that the system has back as soon as nobody uses it."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["returned_memory"]


def returned_memory(count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """``(count,)``, zeros: for the large buffers of work that is done now and then.

    An allocator keeps what such work has freed, for each of the threads that it ran on; after a few
    saves that would be several times what one of them needs.
    """
    if not count:
        return np.empty(0, dtype)
    return np.frombuffer(mmap.mmap(-1, count * dtype.itemsize), dtype)
