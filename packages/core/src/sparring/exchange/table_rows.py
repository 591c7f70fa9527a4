"""Rows of all tables of a pull: found for other ranks and for this one, and copied to the results.

If the rows of all tables are in memory and are not converted for the wire, each message takes one native
call, and this rank's own rows are found directly into the results. Otherwise each table takes several
calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.ranks.exchange_options import WireDtype
from sparring.contracts.storage.results import Keys
from sparring.contracts.storage.storage import Storage
from sparring.exchange.messages import (
    FAILED,
    Codec,
    PullRequest,
    PullResult,
    align_bytes,
    find_rows,
    make_storage_failure,
)
from sparring.exchange.routing import Chunk, RoutedKeys
from sparring.storage.native import NativeStorage

__all__ = ["TableRows"]

Bytes = npt.NDArray[np.uint8]


class TableRows:
    """Rows of the tables of a pull.

    Args:
        requests: requests of the exchange.
        codecs: codecs of the requests.
        routed: positions of the keys of each owner in the results.
        results: results to be filled, one per request.
    """

    def __init__(
        self,
        requests: Sequence[PullRequest],
        codecs: Sequence[Codec],
        routed: RoutedKeys,
        results: Sequence[PullResult],
    ) -> None:
        self._requests, self._codecs = requests, codecs
        self._routed, self._results = routed, results
        self._native = self._make_native()

    def _make_native(self) -> Any | None:
        handles, columns = [], []
        for request, codec in zip(self._requests, self._codecs, strict=True):
            handle = _find_handle(request.storage)
            is_missing = handle is None and request.storage is not None
            if codec.effective is not WireDtype.EXACT or is_missing:
                return None
            handles.append(handle)
            size = codec.dtype.itemsize
            columns.append((request.columns.begin * size, request.columns.end * size))
        return _native.PulledTables(
            handles,
            columns,
            [each.rows for each in self._results],
            [each.found for each in self._results],
            self._routed.orders,
            self._routed.ends,
        )

    def find(self, message: Bytes, chunk: Chunk, keys: Keys) -> None:
        """Finds the rows that another rank requested, and writes the reply.

        Args:
            message: ``(reply_bytes,)``, completely written.
            chunk: the requested chunk.
            keys: ``(n,)`` keys of the chunk.
        """
        if self._native is not None:
            self._native.find(chunk.slices, keys, message)
            return
        at = 0
        for part in chunk.slices:
            request, codec = self._requests[part.table], self._codecs[part.table]
            end = at + part.num_keys * codec.row_bytes
            wire = message[at:end]
            out = codec.view(wire, part.num_keys)
            wanted = keys[part.at : part.at + part.num_keys]
            result = find_rows(request.storage, request.table, wanted, request.columns, out)
            if out is None:
                codec.encode(result.rows, wire)
            message[end : end + part.num_keys] = result.found
            at += align_bytes(part.num_keys * (codec.row_bytes + 1))
            message[end + part.num_keys : at] = 0

    def find_own(self, chunk: Chunk, rank: int) -> None:
        """Finds rows that this rank owns.

        Args:
            chunk: a chunk of this rank's own keys.
            rank: this rank.
        """
        keys = self._routed.streams[rank][chunk.begin : chunk.end]
        if self._native is not None:
            self._native.find_own(chunk.slices, keys, rank)
            return
        for part in chunk.slices:
            request, result = self._requests[part.table], self._results[part.table]
            wanted = keys[part.at : part.at + part.num_keys]
            found = find_rows(request.storage, request.table, wanted, request.columns)
            positions = self._routed.positions(rank, part)
            _native.place_rows(found.rows, positions, result.rows)
            result.found[positions] = found.found

    def place(self, message: Bytes, chunk: Chunk, owner: int) -> None:
        """Copies the rows of a reply to the positions of their keys in the results.

        Args:
            message: the reply.
            chunk: the chunk that this rank requested.
            owner: rank that sent the reply.

        Raises:
            PeerFailure: the owner's storage failed; the owner raises the error of the storage.
        """
        if self._native is not None:
            if not self._native.place(chunk.slices, owner, message):
                raise make_storage_failure(owner)
            return
        at = 0
        for part in chunk.slices:
            codec, result = self._codecs[part.table], self._results[part.table]
            end = at + part.num_keys * codec.row_bytes
            flags = message[end : end + part.num_keys]
            if flags[0] == FAILED:
                raise make_storage_failure(owner)
            positions = self._routed.positions(owner, part)
            _native.place_rows(codec.decode(message[at:end], part.num_keys), positions, result.rows)
            result.found[positions] = flags.view(np.bool_)
            at += align_bytes(part.num_keys * (codec.row_bytes + 1))


def _find_handle(storage: Storage | None) -> Any | None:
    """Returns the native handle of an open storage whose rows native code can find without the GIL."""
    if not isinstance(storage, NativeStorage) or storage.is_closed:
        return None
    return storage.handle_in_memory
