"""Runs loops over tables on torch's intra-op threads.

These threads spin for milliseconds after each operation, in case another one follows. A separate
thread pool would compete with them for the cores (``docs/explanation/execution.md``).
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from sparring.adapter import borrow_threads

__all__ = ["borrow_intra_op_threads"]


def borrow_intra_op_threads() -> None:
    """Runs the loops of the calling thread on torch's intra-op threads from now on.

    Loops stay on the thread pool of core with torch older than 2.10, which has no C function for
    this, and while torch has fewer threads than a loop needs.
    """
    functions = _functions()
    if functions is not None:
        borrow_threads(*functions)


@cache
def _functions() -> tuple[int, int] | None:
    """Addresses of ``torch_parallel_for`` and ``torch_get_num_threads``."""
    library = ctypes.CDLL(torch._C.__file__)  # also finds symbols of the libraries it links to
    try:
        found = library.torch_parallel_for, library.torch_get_num_threads
    except AttributeError:
        return None
    loop, count = (ctypes.cast(each, ctypes.c_void_p).value for each in found)
    return None if loop is None or count is None else (loop, count)
