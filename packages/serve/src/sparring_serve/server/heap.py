"""Keeps freed memory in the process, so that answers of a megabyte do not fault their pages each time."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

# Of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> bool:
    """Tells glibc to serve large blocks from its heap and to keep up to 256 MiB of it; few heaps.

    For a process that does nothing but serve. Returns whether there is such a malloc.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, 64 << 20), (_M_TRIM_THRESHOLD, 256 << 20), (_M_ARENA_MAX, 2))
    done = [mallopt(name, value) for name, value in settings]
    return all(done)
