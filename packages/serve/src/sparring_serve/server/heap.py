"""Keeps some freed memory in the process, so that ordinary calls do not cause page faults each time."""

from __future__ import annotations

import ctypes

__all__ = ["keep_freed_memory"]

# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


def keep_freed_memory() -> bool:
    """Configures glibc to serve blocks below 2 MiB from few heaps, and to keep 16 MiB of each.

    Larger blocks return to the system when they are freed: the heaps would otherwise keep several times
    the bytes of the largest calls, and exceed `server.max_bytes_in_flight`.

    For processes that only serve. Returns whether the allocator supports it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, 2 << 20), (_M_TRIM_THRESHOLD, 16 << 20), (_M_ARENA_MAX, 2))
    done = [mallopt(name, value) for name, value in settings]
    return all(done)
