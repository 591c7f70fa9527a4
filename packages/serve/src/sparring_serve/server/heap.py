"""Keeps freed memory in the process, so that large replies do not cause page faults each time."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> bool:
    """Configures glibc to serve large blocks from its heap, to keep up to 256 MiB of it, and to use
    few heaps.

    For processes that only serve. Returns whether the allocator supports it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, 64 << 20), (_M_TRIM_THRESHOLD, 256 << 20), (_M_ARENA_MAX, 2))
    done = [mallopt(name, value) for name, value in settings]
    return all(done)
