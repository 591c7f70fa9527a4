"""The header that goes before each array of a collective operation: its dtype and shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError

__all__ = ["MAX_DIMENSIONS", "empty_for", "header_of", "new_header"]

Array = npt.NDArray[Any]
Header = npt.NDArray[np.int64]

MAX_DIMENSIONS = 6
"""The most dimensions of an array in a collective operation; it keeps a header at 72 bytes."""


def new_header() -> Header:
    """Room for a header: ``(9,)`` int64, the dtype in two, the number of dimensions, the dimensions."""
    return np.zeros(3 + MAX_DIMENSIONS, np.int64)


def header_of(array: Array) -> Header:
    """Header that the receiver of `array` must have before it comes.

    Raises:
        InvalidArgumentError: more than `MAX_DIMENSIONS` dimensions.
    """
    if array.ndim > MAX_DIMENSIONS:
        raise InvalidArgumentError(
            f"collective: arrays have at most {MAX_DIMENSIONS} dimensions, found shape "
            f"{array.shape}; reshape it"
        )
    header = new_header()
    header[:2] = _dtype_code(array.dtype)
    header[2] = array.ndim
    header[3 : 3 + array.ndim] = array.shape
    return header


def empty_for(header: Header, dtype: np.dtype[Any], peer: int) -> Array:
    """Room for the array that `header` of rank `peer` announces.

    Raises:
        InvalidArgumentError: it is of another dtype than this rank's.
    """
    theirs = (int(header[0]), int(header[1]))
    if theirs != _dtype_code(dtype):
        name = b"".join(half.to_bytes(7, "little") for half in theirs)
        found = name.rstrip(b"\0").decode("ascii", "replace")
        raise InvalidArgumentError(
            f"collective: all ranks must give one dtype; this rank gave {dtype} and rank {peer} "
            f"{found!r}"
        )
    return np.empty(tuple(map(int, header[3 : 3 + int(header[2])])), dtype)


def _dtype_code(dtype: np.dtype[Any]) -> tuple[int, int]:
    """The first fourteen letters of the name, such as ``float32``, as two numbers."""
    name = dtype.name.encode("ascii")
    return int.from_bytes(name[:7], "little"), int.from_bytes(name[7:14], "little")
