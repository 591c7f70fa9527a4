"""Keeps some freed memory in the process, so that ordinary calls do not cause page faults each time."""

from __future__ import annotations

import ctypes
import threading
import time

__all__ = ["keep_freed_memory"]

# Constants of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_HEAP_BYTES = 16 << 20
_MAX_FREE_BYTES = 64 << 20
_TRIM_INTERVAL_SECONDS = 5.0


class _MallInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


def keep_freed_memory() -> bool:
    """Configures glibc to serve blocks below 2 MiB from few heaps, and to keep 16 MiB of each.

    Larger blocks return to the system when they are freed: the heaps would otherwise keep several times
    the bytes of the largest calls, and exceed `server.max_bytes_in_flight`. glibc returns only the end of
    a heap, so one block in use keeps all free memory before it, for example after 100,000 calls that were
    cancelled at once. A thread returns such memory.

    For processes that only serve. Returns whether the allocator supports it.
    """
    try:
        library = ctypes.CDLL(None)
        mallopt, mallinfo, trim = library.mallopt, library.mallinfo2, library.malloc_trim
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_THRESHOLD, 2 << 20), (_M_TRIM_THRESHOLD, _HEAP_BYTES), (_M_ARENA_MAX, 2))
    done = [mallopt(name, value) for name, value in settings]
    mallinfo.restype = _MallInfo

    def return_memory() -> None:
        while True:
            time.sleep(_TRIM_INTERVAL_SECONDS)
            if mallinfo().fordblks > _MAX_FREE_BYTES:
                trim(ctypes.c_size_t(_HEAP_BYTES))

    threading.Thread(target=return_memory, name="sparring-serve-memory", daemon=True).start()
    return all(done)
