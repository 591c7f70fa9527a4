"""Encoding of rows, ids and found bits as little-endian bytes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring_packed import widen_rows
from sparring_serve.wire.fields import Buffer, MessageError
from sparring_serve.wire.messages import RowDtype

__all__ = [
    "as_bytes",
    "pack_found",
    "read_ids",
    "read_found",
    "read_rows",
    "row_bytes",
    "encode_rows",
    "view_rows",
]

assert sys.byteorder == "little", "sparring-serve supports only little-endian machines"

Rows = npt.NDArray[np.float32]

_STORED = {RowDtype.FLOAT32: "fp32", RowDtype.FLOAT16: "fp16", RowDtype.INT8: "int8"}
"""Rows are sent in the formats of serving snapshots."""


def as_bytes(array: npt.NDArray[Any]) -> Buffer:
    """Returns the bytes of an array, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""


def read_ids(content: Buffer) -> npt.NDArray[np.int64]:
    """Decodes ids as an ``(n,)`` view.

    Raises:
        MessageError: The size is not a multiple of 8 bytes.
    """
    if len(content) % 8:
        raise MessageError(
            f"ids: {len(content):,} bytes are not a multiple of 8; send 8 bytes per id"
        )
    return np.frombuffer(content, np.int64)


def row_bytes(dim: int, dtype: int) -> int:
    """Returns the size of an encoded row."""
    if dtype == RowDtype.FLOAT32:
        return 4 * dim
    return 2 * dim if dtype == RowDtype.FLOAT16 else dim + 4


def pack_found(found: npt.NDArray[np.bool_]) -> bytes:
    """Encodes ``(n,)`` bits in ceil(n / 8) bytes, the first in the lowest bit."""
    return np.packbits(found, bitorder="little").tobytes()


def read_found(content: Buffer, count: int) -> npt.NDArray[np.bool_]:
    """Decodes the result of `pack_found`.

    Raises:
        MessageError: The number of bytes is wrong.
    """
    if len(content) != -(-count // 8):
        raise MessageError(
            f"found bits of {count:,} ids: found {len(content):,} bytes, expected {-(-count // 8):,}; "
            "client and server may be of incompatible releases"
        )
    bits = np.frombuffer(content, np.uint8)
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)


def encode_rows(rows: Rows, dtype: int) -> Buffer:
    """Encodes rows.

    Args:
        rows: ``(n, dim)`` float32.
        dtype: A `RowDtype`. float16 overflows to infinity; int8 is affine per row, as in FBGEMM: q
            = (element - bias) / scale. The bias is the minimum of the row. Bias and scale are
            stored as float16.
    """
    if dtype == RowDtype.FLOAT32 or not rows.size:
        return as_bytes(rows)
    if dtype == RowDtype.FLOAT16:
        with np.errstate(over="ignore"):
            return as_bytes(rows.astype(np.float16))
    count, dim = rows.shape
    packed = np.empty((count, dim + 4), np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        bias = _of_rows(np.minimum, rows).astype(np.float16)
        least = bias.astype(np.float32)
        scale = ((_of_rows(np.maximum, rows) - least) / 255).astype(np.float16)
        divisor = scale.astype(np.float32)
        divisor[divisor == 0] = 1
        steps = rows - least[:, None]
        steps /= divisor[:, None]
        np.rint(steps, out=steps)
        np.clip(steps, 0, 255, out=steps)
        packed[:, :dim] = steps
    packed[:, dim:] = np.stack([scale, bias], axis=1).view(np.uint8)
    return as_bytes(packed)


def _of_rows(least_or_most: np.ufunc, rows: Rows) -> npt.NDArray[np.float32]:
    """Returns the minimum or maximum of each row, ``(n,)``; by halving, which is much faster than
    ``axis=1``."""
    while (width := rows.shape[1]) > 1:
        half = width // 2
        # If the width is odd, the middle column is in both parts.
        rows = least_or_most(rows[:, : width - half], rows[:, half:])
    found: npt.NDArray[np.float32] = rows[:, 0]
    return found


def read_rows(content: Buffer, dim: int, dtype: int, out: Rows) -> None:
    """Decodes rows into the ``(n, dim)`` float32 array `out`.

    Raises:
        MessageError: The number of bytes is wrong.
    """
    _check_size(content, len(out), dim, dtype)
    widen_rows(content, _STORED[RowDtype(dtype)], out)


def view_rows(content: Buffer, count: int, dim: int) -> Rows:
    """Returns ``(count, dim)`` float32 rows as a view of their bytes, which may not be aligned.

    Raises:
        MessageError: The number of bytes is wrong.
    """
    _check_size(content, count, dim, RowDtype.FLOAT32)
    return np.frombuffer(content, np.float32).reshape(count, dim)


def _check_size(content: Buffer, count: int, dim: int, dtype: int) -> None:
    expected = count * row_bytes(dim, dtype)
    if len(content) != expected:
        raise MessageError(
            f"{count:,} rows of dim {dim} as {RowDtype(dtype).name.lower()}: found {len(content):,} "
            f"bytes, expected {expected:,}; client and server may be of incompatible releases"
        )
