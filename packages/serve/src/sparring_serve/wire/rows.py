"""Rows, ids and found bits as bytes, little-endian."""

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
]

assert sys.byteorder == "little", "sparring serves from little-endian machines only"

Rows = npt.NDArray[np.float32]

_STORED = {RowDtype.FLOAT32: "fp32", RowDtype.FLOAT16: "fp16", RowDtype.INT8: "int8"}
"""Rows are sent as serving snapshots store them."""


def as_bytes(array: npt.NDArray[Any]) -> Buffer:
    """The bytes of an array, without a copy if it is contiguous."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else b""


def read_ids(content: Buffer) -> npt.NDArray[np.int64]:
    """``(n,)`` ids: a view.

    Raises:
        MessageError: no multiple of 8 bytes.
    """
    if len(content) % 8:
        raise MessageError(f"ids: {len(content):,} bytes are no int64; send 8 bytes an id")
    return np.frombuffer(content, np.int64)


def row_bytes(dim: int, dtype: int) -> int:
    """Bytes of a row on the wire."""
    if dtype == RowDtype.FLOAT32:
        return 4 * dim
    return 2 * dim if dtype == RowDtype.FLOAT16 else dim + 4


def pack_found(found: npt.NDArray[np.bool_]) -> bytes:
    """``(n,)`` → ceil(n / 8) bytes, the first in the lowest bit."""
    return np.packbits(found, bitorder="little").tobytes()


def read_found(content: Buffer, count: int) -> npt.NDArray[np.bool_]:
    """The inverse of `pack_found`.

    Raises:
        MessageError: too few or too many bytes.
    """
    if len(content) != -(-count // 8):
        raise MessageError(
            f"found bits of {count:,} ids: {len(content):,} bytes, expected {-(-count // 8):,}; "
            "client and server may be of versions that do not fit"
        )
    bits = np.frombuffer(content, np.uint8)
    return np.unpackbits(bits, count=count, bitorder="little").view(np.bool_)


def encode_rows(rows: Rows, dtype: int) -> Buffer:
    """Rows as they are sent.

    Args:
        rows: ``(n, dim)`` float32.
        dtype: a `RowDtype`. float16 overflows to infinity; int8 is affine for each row, as
            FBGEMM's: q = (element - bias) / scale, bias the least element, both as float16.
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
    """``(n,)``: of each row the least or greatest; by halves, which is much faster than ``axis=1``."""
    while (width := rows.shape[1]) > 1:
        half = width // 2
        # Of an odd width the middle is in both parts.
        rows = least_or_most(rows[:, : width - half], rows[:, half:])
    found: npt.NDArray[np.float32] = rows[:, 0]
    return found


def read_rows(content: Buffer, dim: int, dtype: int, out: Rows) -> None:
    """Fills ``(n, dim)`` float32 with rows that came.

    Raises:
        MessageError: too few or too many bytes.
    """
    count = len(out)
    expected = count * row_bytes(dim, dtype)
    if len(content) != expected:
        raise MessageError(
            f"{count:,} rows of dim {dim} as {RowDtype(dtype).name.lower()}: {len(content):,} bytes, "
            f"expected {expected:,}; client and server may be of versions that do not fit"
        )
    widen_rows(content, _STORED[RowDtype(dtype)], out)
