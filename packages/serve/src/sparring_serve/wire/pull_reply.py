"""`ReplyInPlace`: a PullReply into which a lookup writes its rows, which saves a copy of them."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring_serve.wire.fields import Space, encode, encode_pieces
from sparring_serve.wire.messages import PullReply, RowDtype, TableRows
from sparring_serve.wire.rows import pack_found, row_bytes

__all__ = ["IN_PLACE_BYTES", "ReplyInPlace"]

IN_PLACE_BYTES = 1 << 20
"""Size of a reply from which this saves time."""

_REST_BYTES = 512
"""Bytes for the fields after the tables; if they need more, the message is copied."""

_ALIGNMENT = 64

# Returns bytes whose content is not initialized; zeros would cost half as much as the copy.
_new_bytes = ctypes.pythonapi.PyBytes_FromStringAndSize
_new_bytes.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_new_bytes.restype = ctypes.py_object


class ReplyInPlace:
    """A reply whose rows have places before they are read.

    gRPC for Python sends only `bytes`. The message is built in the bytes of a `BytesIO`, which returns
    them without a copy. Padding aligns the rows of the first table, so that lookups bypass the caches.

    Args:
        tables: Name, dim and number of ids of each table.
        dtype: Data type of the rows: FLOAT32, or INT8 for rows that are stored as int8.
    """

    def __init__(self, tables: Sequence[tuple[str, int, int]], dtype: RowDtype) -> None:
        self._tables, self._dtype = tables, dtype
        self._spaces: list[tuple[Space, Space]] = []
        self._buffer = io.BytesIO()
        self._end = 0
        self.is_used = False
        """Whether `reserve_rows` was called."""

    def reserve_rows(self) -> list[npt.NDArray[Any]]:
        """Returns the places of the rows of each table, which need not be aligned: ``(n, dim)``
        float32, or ``(n, dim + 4)`` uint8."""
        spaces = [
            (Space(count * row_bytes(dim, self._dtype)), Space(-(-count // 8)))
            for _, dim, count in self._tables
        ]
        pieces = encode_pieces(
            PullReply(
                tuple(
                    TableRows(name, dim, rows, found)  # type: ignore[arg-type]
                    for (name, dim, _), (rows, found) in zip(self._tables, spaces, strict=True)
                )
            )
        )
        size = sum(map(len, pieces))
        self._buffer = io.BytesIO(_new_bytes(None, size + 2 * _ALIGNMENT + _REST_BYTES))
        view = self._buffer.getbuffer()
        padding = _padding(np.frombuffer(view, np.uint8).ctypes.data + _num_bytes_before(pieces))
        at = 0
        for piece in (padding, *pieces):
            part = view[at : at + len(piece)]
            if isinstance(piece, Space):
                piece.view = part
            else:
                part[:] = piece
            at += len(piece)
        self._end, self._spaces, self.is_used = at, spaces, True
        element = np.dtype(np.float32 if self._dtype == RowDtype.FLOAT32 else np.uint8)
        return [
            np.frombuffer(rows.view, element).reshape(
                count, row_bytes(dim, self._dtype) // element.itemsize
            )
            for (_, dim, count), (rows, _) in zip(self._tables, spaces, strict=True)
        ]

    def finish(self, found: Sequence[npt.NDArray[np.bool_]], rest: PullReply) -> bytes:
        """Returns the message. No array of `reserve_rows` may be in use.

        Args:
            found: ``(n,)`` for each table: whether the id has a row.
            rest: The fields after the tables.
        """
        for (rows, bits), of_table in zip(self._spaces, found, strict=True):
            bits.view[:] = pack_found(of_table)
            # The buffer cannot be truncated while views of it exist.
            rows.view.release()
            bits.view.release()
        self._buffer.seek(self._end)
        self._buffer.write(encode(rest))
        self._buffer.truncate()
        return self._buffer.getvalue()


def _num_bytes_before(pieces: Sequence[Any]) -> int:
    """Returns the number of bytes before the first space."""
    total = 0
    for each in pieces:
        if isinstance(each, Space):
            break
        total += len(each)
    return total


def _padding(address: int) -> bytes:
    """Returns a field that moves the byte at `address` to a multiple of `_ALIGNMENT`."""
    # A field has at least 3 bytes, because an empty one is not encoded.
    size = (-address - 3) % _ALIGNMENT + 3
    return encode(PullReply(padding=bytes(size - 2)))
