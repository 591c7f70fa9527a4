"""How the rows and gradients of one table are laid out in a message.

A piece is what a chunk holds of one table. It begins on a multiple of 8 bytes.

    rows        ┌───────────────────┬─────────────┬─────────┐
                │ n rows            │ n found, u8 │ padding │
                └───────────────────┴─────────────┴─────────┘
    gradients   ┌───────────────────┬─────────────┬─────────┐
                │ n keys, int64     │ n gradients │ padding │
                └───────────────────┴─────────────┴─────────┘

``native/exchange/wire.h`` draws rows of fewer bits, and proves how far they are from what was sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native, kernels
from sparring.exchange.options import WireDtype
from sparring.storage.contract import Rows

__all__ = ["KEY_BYTES", "Codec", "padded"]

KEY_BYTES = 8

_BITS = {
    WireDtype.FLOAT32: 32,
    WireDtype.BFLOAT16: 16,
    WireDtype.FLOAT16: 16,
    WireDtype.INT8: 8,
}

Bytes = npt.NDArray[np.uint8]


def padded(num_bytes: int) -> int:
    """`num_bytes` up to the next multiple of 8."""
    return -(-num_bytes // 8) * 8


@dataclass(frozen=True, slots=True)
class Codec:
    """Rows as arrays, and as bytes on the wire.

    Args:
        dtype: of the arrays.
        width: elements of a row.
        wire_dtype: what was asked for; numbers that have as few bits stay as they are.
    """

    dtype: np.dtype[Any]
    width: int
    wire_dtype: WireDtype

    @property
    def effective(self) -> WireDtype:
        """What the numbers of this table travel as."""
        bits = _BITS.get(self.wire_dtype)
        if bits is None or bits >= self.dtype.itemsize * 8:
            return WireDtype.EXACT
        return self.wire_dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on the wire."""
        effective = self.effective
        if effective is WireDtype.EXACT:
            return self.width * self.dtype.itemsize
        if effective is WireDtype.INT8:
            return 4 + self.width
        return self.width * _BITS[effective] // 8

    def view(self, wire: Bytes, count: int) -> Rows | None:
        """The rows in a message as an array, or None where they must be decoded.

        Args:
            wire: ``(count * row_bytes,)``.
        """
        if self.effective is not WireDtype.EXACT:
            return None
        return wire.view(self.dtype).reshape(count, self.width)

    def encode(self, rows: Rows, wire: Bytes) -> None:
        """Writes ``(n, width)`` rows into a message."""
        effective = self.effective
        if effective is WireDtype.EXACT:
            wire[...] = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
            return
        narrow = _as_float32(rows)
        if effective is WireDtype.FLOAT32:
            wire[...] = narrow.reshape(-1).view(np.uint8)
        else:
            _native.wire_encode(effective.value, narrow, wire)

    def decode(self, wire: Bytes, count: int) -> Rows:
        """``(count, width)`` rows of `dtype`: a view of the message where that is possible."""
        seen = self.view(wire, count)
        if seen is not None:
            return seen
        if self.effective is WireDtype.FLOAT32:
            narrow = wire.view(np.float32).reshape(count, self.width)
        else:
            narrow = np.empty((count, self.width), np.float32)
            _native.wire_decode(self.effective.value, wire, narrow)
        if self.dtype.itemsize >= 4:
            return narrow.astype(self.dtype, copy=False)
        rows = np.empty((count, self.width), self.dtype)
        kernels.encode(narrow, rows)
        return rows


def _as_float32(rows: Rows) -> npt.NDArray[np.float32]:
    if rows.dtype.itemsize == 2:
        return kernels.decode(rows)
    if rows.dtype == np.float32:
        return np.ascontiguousarray(rows)
    limit = np.finfo(np.float32).max
    # Finite numbers stay finite; infinity and NaN stay what they are.
    held = np.where(np.isfinite(rows), np.clip(rows, -limit, limit), rows)
    narrow: npt.NDArray[np.float32] = held.astype(np.float32)
    return narrow
