"""Chunks of rows: found, laid out in a message, and taken apart again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.errors import PeerFailure
from sparring.exchange.requests import Pulled, PullRequest
from sparring.exchange.routing import Chunk, Routed
from sparring.exchange.wire import Codec, padded
from sparring.storage.contract import Columns, Keys, Rows, Storage
from sparring.table import TableConfig

__all__ = ["find_into", "find_rows", "place_reply", "refuse_into", "reply_bytes"]

Bytes = npt.NDArray[np.uint8]

_REFUSED = 2
"""In place of whether a row was found: its storage failed."""


def reply_bytes(chunk: Chunk, codecs: Sequence[Codec]) -> int:
    """Bytes of the message that answers a chunk of keys."""
    return sum(padded(piece.count * (codecs[piece.table].row_bytes + 1)) for piece in chunk.pieces)


def find_rows(
    storage: Storage | None,
    table: TableConfig,
    keys: Keys,
    columns: Columns,
    out: Rows | None = None,
) -> Pulled:
    """Rows of this rank's own shard, in `out` where that is given."""
    shape = (len(keys), columns.end - columns.begin)
    rows = np.empty(shape, table.numpy_dtype) if out is None else out
    if storage is None:
        rows[...] = 0
        return Pulled(rows, np.zeros(len(keys), np.bool_))
    found = np.empty(len(keys), np.bool_)
    if len(keys):
        # The engine's own path: keys come from `dedup`, so nothing is left to check.
        storage._check_open()
        storage._find_impl(keys, columns, rows, found)
    return Pulled(rows, found)


def find_into(
    message: Bytes,
    chunk: Chunk,
    keys: Keys,
    requests: Sequence[PullRequest],
    codecs: Sequence[Codec],
) -> None:
    """Finds the rows of a chunk and writes the message that answers it.

    Args:
        message: ``(reply_bytes,)``, all written.
        keys: ``(n,)``, those of the chunk.
    """
    at = 0
    for piece in chunk.pieces:
        request, codec = requests[piece.table], codecs[piece.table]
        end = at + piece.count * codec.row_bytes
        wire = message[at:end]
        out = codec.view(wire, piece.count)
        wanted = keys[piece.at : piece.at + piece.count]
        result = find_rows(request.storage, request.table, wanted, request.columns, out)
        if out is None:
            codec.encode(result.rows, wire)
        message[end : end + piece.count] = result.found
        at += padded(piece.count * (codec.row_bytes + 1))
        message[end + piece.count : at] = 0


def refuse_into(message: Bytes) -> None:
    """Writes the message that says that a storage failed."""
    message[...] = _REFUSED


def place_reply(
    message: Bytes,
    chunk: Chunk,
    owner: int,
    routed: Routed,
    codecs: Sequence[Codec],
    results: Sequence[Pulled],
) -> None:
    """Puts the rows of a reply where the keys stand that they were asked for by.

    Raises:
        PeerFailure: the owner's storage failed; its rank has the error itself.
    """
    at = 0
    for piece in chunk.pieces:
        codec, result = codecs[piece.table], results[piece.table]
        end = at + piece.count * codec.row_bytes
        flags = message[end : end + piece.count]
        if flags[0] == _REFUSED:
            raise PeerFailure(
                f"rank {owner} could not read the rows it was asked for: its storage failed, and "
                "the error it raised says why; mend that, then restart all ranks from the last "
                "snapshot",
                rank=owner,
                operation="find",
                is_certain=True,
            )
        places = routed.places(owner, piece)
        _native.place_rows(codec.decode(message[at:end], piece.count), places, result.rows)
        result.found[places] = flags.view(np.bool_)
        at += padded(piece.count * (codec.row_bytes + 1))
