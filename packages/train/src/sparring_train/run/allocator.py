"""Settings of the C library's memory allocator for training."""

from __future__ import annotations

import ctypes
import os
import platform

__all__ = ["keep_freed_memory"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt` in glibc."""
_LIMIT_BYTES = 1 << 30
_LIMIT_OF_OLD_RELEASES = 32 << 20
"""Highest threshold of mmap that older releases of glibc accept."""


def keep_freed_memory() -> bool:
    """Makes glibc reuse the memory of freed arrays instead of returning it to the system.

    Each step allocates arrays of the same sizes. By default, glibc returns arrays of more than 128 KiB
    to the system, and the next step has a page fault for each 4 KiB. See `mallopt(3)`.

    Returns:
        Whether the settings were changed. They are not if another C library is in use, or if environment
        variables of glibc set them.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    if {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & os.environ.keys():
        return False
    library = ctypes.CDLL(None)
    is_kept = library.mallopt(_M_MMAP_THRESHOLD, _LIMIT_BYTES) == 1
    if not is_kept:
        is_kept = library.mallopt(_M_MMAP_THRESHOLD, _LIMIT_OF_OLD_RELEASES) == 1
    return is_kept and bool(library.mallopt(_M_TRIM_THRESHOLD, _LIMIT_BYTES) == 1)
