"""Rows that were pulled ahead, again: those alone that a step has changed since.

The owner knows what has changed, and it remembers who asked for what. So nobody asks: for each rank it
sends one message with places in what that rank had asked for, and one with the rows of now.

    owner:  changed keys ∩ keys asked for by rank p  ──►  places │ rows  ──►  rank p puts them there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring.exchange.counters import MessageKind
from sparring.exchange.link import Link, Transfer
from sparring.exchange.record import ChangedKeys, PullRecord, Stale
from sparring.exchange.reply import find_into, find_rows, place_reply, refuse_into, reply_bytes
from sparring.exchange.requests import Pulled, PullRequest
from sparring.exchange.routing import Routed, whole_stream
from sparring.exchange.wire import Codec
from sparring.storage.contract import Rows

__all__ = ["Refreshed", "refresh", "refresh_own"]

Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class Refreshed:
    """Rows that have changed since a pull."""

    places: npt.NDArray[np.int64]
    """``(c,)``: where they stand among the keys of the pull."""
    rows: Rows
    """``(c, width of columns)`` of the table's dtype; zeros where `found` is False."""
    found: npt.NDArray[np.bool_]


def refresh_own(request: PullRequest, changed: ChangedKeys) -> Refreshed:
    """In a world of one."""
    places = changed.places_in(request.keys)
    found = find_rows(request.storage, request.table, request.keys[places], request.columns)
    return Refreshed(places, found.rows, found.found)


def refresh(
    link: Link,
    requests: Sequence[PullRequest],
    codecs: Sequence[Codec],
    record: PullRecord,
    *,
    changed: Sequence[ChangedKeys],
    stale: Stale,
    coming: Counts,
) -> list[Refreshed]:
    """Rows of all owners that have changed.

    Args:
        link: sends and receives.
        requests: those of the pull, with the storages of now.
        codecs: how each table's rows travel.
        record: of the pull.
        changed: of each table, the keys of this rank's shard.
        stale: what this rank sends.
        coming: ``(world_size, tables)``: rows of each table that each rank sends.

    Raises:
        PeerFailure: a rank is gone or silent, or could not read its rows.
        SparringError: this rank's own storage failed; other ranks were told.
    """
    rank, world_size = link.collective.rank, link.collective.world_size
    routed = record.routed
    own = [_own_places(routed, table, rank, each) for table, each in enumerate(changed)]
    counts = coming.copy()
    counts[rank] = [len(each) for each in own]
    compact = _compact(counts)
    results = [
        Refreshed(
            np.empty(total, np.int64),
            np.empty((total, each.columns.end - each.columns.begin), each.table.numpy_dtype),
            np.empty(total, np.bool_),
        )
        for each, total in zip(requests, counts.sum(axis=0).tolist(), strict=True)
    ]
    peers = [(rank + hop) % world_size for hop in range(1, world_size)]
    arriving = {
        owner: _receive(link, owner, counts[owner], codecs)
        for owner in peers
        if counts[owner].any()
    }
    error: BaseException | None = None
    going: list[Transfer] = []
    for peer in reversed(peers):
        chunk = whole_stream(stale.counts[peer])
        if chunk is None:
            continue
        going.append(link.send(MessageKind.KEYS, stale.places[peer], peer, "changed"))
        message = np.empty(reply_bytes(chunk, codecs), np.uint8)
        try:
            with link.span("find", peer):
                find_into(message, chunk, stale.keys[peer], requests, codecs)
        except BaseException as failure:
            error = error or failure
            refuse_into(message)
        going.append(link.send(MessageKind.ROWS, message, peer, "changed"))
    for request, result, places, offsets in zip(
        requests, results, own, compact.offsets, strict=True
    ):
        try:
            found = find_rows(request.storage, request.table, request.keys[places], request.columns)
        except BaseException as failure:
            error = error or failure
            continue
        there = slice(int(offsets[rank]), int(offsets[rank + 1]))
        result.places[there], result.rows[there] = places, found.rows
        result.found[there] = found.found
    pulled = [Pulled(each.rows, each.found) for each in results]
    for owner, (places_coming, rows_coming) in arriving.items():
        link.wait(places_coming)
        link.wait(rows_coming)
        chunk = whole_stream(counts[owner])
        assert chunk is not None
        try:
            place_reply(rows_coming.buffer, chunk, owner, compact, codecs, pulled)
        except BaseException as failure:
            error = error or failure
        for piece in chunk.pieces:
            first = int(routed.offsets[piece.table][owner])
            theirs = places_coming.buffer[piece.at : piece.at + piece.count]
            there_at = compact.places(owner, piece)
            results[piece.table].places[there_at] = routed.orders[piece.table][first + theirs]
    for transfer in going:
        link.wait(transfer)
    if error is not None:
        raise error
    return results


def _receive(
    link: Link, owner: int, counts: Counts, codecs: Sequence[Codec]
) -> tuple[Transfer, Transfer]:
    chunk = whole_stream(counts)
    assert chunk is not None
    places = np.empty(chunk.count, np.int64)
    rows = np.empty(reply_bytes(chunk, codecs), np.uint8)
    return (
        link.receive(MessageKind.KEYS, places, owner, "changed"),
        link.receive(MessageKind.ROWS, rows, owner, "changed"),
    )


def _own_places(
    routed: Routed, table: int, rank: int, changed: ChangedKeys
) -> npt.NDArray[np.int64]:
    offsets = routed.offsets[table]
    # Of this rank's own keys of all tables, which lie in its stream one table after the other.
    mine = routed.orders[table][int(offsets[rank]) : int(offsets[rank + 1])]
    begin = int(routed.counts[rank, :table].sum())
    keys = routed.streams[rank][begin : begin + len(mine)]
    return mine[changed.places_in(keys)]


def _compact(counts: Counts) -> Routed:
    """Where rows of each owner lie in arrays that hold nothing else."""
    orders = [np.arange(total) for total in counts.sum(axis=0).tolist()]
    offsets = [np.concatenate([[0], np.cumsum(column)]) for column in counts.T]
    return Routed(orders, offsets, counts, [])
