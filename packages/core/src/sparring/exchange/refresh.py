"""Refreshes prefetched rows: transfers only the rows that changed after they were pulled.

The owner knows the changed keys and has stored the requests. Therefore keys are not sent again: the
owner sends each rank one message with positions in its request, and one with the current rows.

    owner:  changed keys ∩ requested keys of rank p  ──►  positions │ rows  ──►  rank p copies them
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.storage.results import Keys, Rows
from sparring.exchange.messages import (
    Codec,
    PullRequest,
    PullResult,
    find_rows,
    reply_bytes,
    write_failure,
)
from sparring.exchange.messenger import MessageKind, Messenger, Transfer
from sparring.exchange.routing import RoutedKeys, whole_stream
from sparring.exchange.table_rows import TableRows

__all__ = ["ChangedKeys", "PullRecord", "RefreshResult", "StaleRows", "refresh", "refresh_own"]

Positions = npt.NDArray[np.int64]
Counts = npt.NDArray[np.int64]


@dataclass(slots=True)
class ChangedKeys:
    """Superset of the keys of a table whose rows have changed."""

    parts: list[Keys] = field(default_factory=list)
    """Keys of each step; a key may be in several."""
    are_all: bool = False
    """Whether all keys may have changed."""

    def find_changed(self, keys: Keys) -> Positions:
        """Returns the positions in `keys` of those that have changed, in ascending order."""
        if self.are_all:
            return np.arange(len(keys))
        changed = np.concatenate([*self.parts, np.empty(0, np.int64)])
        if not len(changed) or not len(keys):
            return np.empty(0, np.int64)
        # The changed keys come first, so they have the first positions among the unique keys.
        _, inverse = _native.dedup(np.concatenate([changed, keys]))
        num_changed = int(inverse[: len(changed)].max()) + 1
        return np.flatnonzero(inverse[len(changed) :] < num_changed)


@dataclass(frozen=True, slots=True)
class StaleRows:
    """Rows of a pull that this rank, as their owner, must send again."""

    counts: npt.NDArray[np.int64]
    """``(world_size, tables)``: number of rows per rank and table; 0 for this rank."""
    positions: list[Positions]
    """For each rank, the positions in its request of each table, one table after the other."""
    keys: list[Keys]
    """For each rank, the keys at these positions."""


class PullRecord:
    """Record of a pull on several ranks: the requested keys and the served keys."""

    def __init__(self) -> None:
        self._routed: RoutedKeys | None = None
        self._served_counts = np.empty((0, 0), np.int64)
        self._served: dict[int, list[Keys]] = {}

    def begin(self, routed: RoutedKeys, served_counts: npt.NDArray[np.int64]) -> None:
        """Begins the record of a pull.

        Args:
            routed: keys that this rank requests.
            served_counts: ``(world_size, tables)``: rows that each rank requests from this one.
        """
        self._routed = routed
        self._served_counts = served_counts
        self._served = {}

    def add(self, peer: int, keys: Keys) -> None:
        """Appends the next keys of a rank's request."""
        self._served.setdefault(peer, []).append(keys)

    @property
    def routed(self) -> RoutedKeys:
        """Keys that this rank requested."""
        assert self._routed is not None  # the pull has succeeded
        return self._routed

    def stale(self, changed: Sequence[ChangedKeys], rank: int) -> StaleRows:
        """Returns the served keys that have changed since the pull.

        Args:
            changed: changed keys of each table.
            rank: this rank.
        """
        counts = np.zeros_like(self._served_counts)
        positions: list[Positions] = []
        keys: list[Keys] = []
        for peer, asked in enumerate(self._served_counts):
            nothing = np.empty(0, np.int64)
            stream = np.concatenate([nothing, *self._served.get(peer, [])])
            of_tables, their_keys = [nothing], [nothing]
            begin = 0
            for table, count in enumerate(asked.tolist()):
                wanted = stream[begin : begin + count]
                begin += count
                if peer == rank:
                    continue
                found = changed[table].find_changed(wanted)
                counts[peer, table] = len(found)
                of_tables.append(found)
                their_keys.append(wanted[found])
            positions.append(np.concatenate(of_tables))
            keys.append(np.concatenate(their_keys))
        return StaleRows(counts, positions, keys)


@dataclass(slots=True)
class RefreshResult:
    """Rows that have changed since a pull."""

    positions: npt.NDArray[np.int64]
    """``(c,)``: their positions among the keys of the pull."""
    rows: Rows
    """``(c, width of columns)`` of the table's dtype; zeros if `found` is False."""
    found: npt.NDArray[np.bool_]


def refresh_own(request: PullRequest, changed: ChangedKeys) -> RefreshResult:
    """Refreshes rows of a table whose rows are all on this rank."""
    positions = changed.find_changed(request.keys)
    found = find_rows(request.storage, request.table, request.keys[positions], request.columns)
    return RefreshResult(positions, found.rows, found.found)


def refresh(
    messenger: Messenger,
    requests: Sequence[PullRequest],
    codecs: Sequence[Codec],
    record: PullRecord,
    *,
    changed: Sequence[ChangedKeys],
    stale: StaleRows,
    coming: Counts,
) -> list[RefreshResult]:
    """Exchanges the changed rows of a pull with all owners.

    Args:
        messenger: sends and receives messages.
        requests: requests of the pull, with the current storages.
        codecs: codec of each table's rows.
        record: record of the pull.
        changed: for each table, the changed keys of this rank's shard.
        stale: rows that this rank sends.
        coming: ``(world_size, tables)``: rows of each table that each rank sends to this one.

    Raises:
        PeerFailure: a rank is gone, does not respond, or could not read its rows.
        SparringError: a storage of this rank failed; this was reported to the other ranks.
    """
    rank = messenger.collective.rank
    routed = record.routed
    own = [_find_own_changed(routed, table, rank, each) for table, each in enumerate(changed)]
    counts = coming.copy()
    counts[rank] = [len(each) for each in own]
    compact = _compact(counts)
    results = [
        RefreshResult(
            np.empty(total, np.int64),
            np.empty((total, each.columns.end - each.columns.begin), each.table.numpy_dtype),
            np.empty(total, np.bool_),
        )
        for each, total in zip(requests, counts.sum(axis=0).tolist(), strict=True)
    ]
    pulled = [PullResult(each.rows, each.found) for each in results]
    rows = TableRows(requests, codecs, compact, pulled)
    arriving = {
        owner: _receive(messenger, owner, counts[owner], codecs)
        for owner in messenger.later_ranks
        if counts[owner].any()
    }
    error: BaseException | None = None
    going: list[Transfer] = []
    for peer in messenger.earlier_ranks:
        chunk = whole_stream(stale.counts[peer])
        if chunk is None:
            continue
        going.append(messenger.send(MessageKind.KEYS, stale.positions[peer], peer, "changed"))
        message = np.empty(reply_bytes(chunk, codecs), np.uint8)
        try:
            with messenger.span("find", peer):
                rows.find(message, chunk, stale.keys[peer])
        except BaseException as failure:
            error = error or failure
            write_failure(message)
        going.append(messenger.send(MessageKind.ROWS, message, peer, "changed"))
    for request, result, positions, offsets in zip(
        requests, results, own, compact.offsets, strict=True
    ):
        try:
            found = find_rows(
                request.storage, request.table, request.keys[positions], request.columns
            )
        except BaseException as failure:
            error = error or failure
            continue
        there = slice(int(offsets[rank]), int(offsets[rank + 1]))
        result.positions[there], result.rows[there] = positions, found.rows
        result.found[there] = found.found
    for owner, (places_coming, rows_coming) in arriving.items():
        messenger.wait(places_coming)
        messenger.wait(rows_coming)
        chunk = whole_stream(counts[owner])
        assert chunk is not None
        try:
            rows.place(rows_coming.buffer, chunk, owner)
        except BaseException as failure:
            error = error or failure
        for part in chunk.slices:
            first = int(routed.offsets[part.table][owner])
            theirs = places_coming.buffer[part.at : part.at + part.num_keys]
            there_at = compact.positions(owner, part)
            results[part.table].positions[there_at] = routed.orders[part.table][first + theirs]
    for transfer in going:
        messenger.wait(transfer)
    if error is not None:
        raise error
    return results


def _receive(
    messenger: Messenger, owner: int, counts: Counts, codecs: Sequence[Codec]
) -> tuple[Transfer, Transfer]:
    chunk = whole_stream(counts)
    assert chunk is not None
    positions = np.empty(chunk.count, np.int64)
    rows = np.empty(reply_bytes(chunk, codecs), np.uint8)
    return (
        messenger.receive(MessageKind.KEYS, positions, owner, "changed"),
        messenger.receive(MessageKind.ROWS, rows, owner, "changed"),
    )


def _find_own_changed(
    routed: RoutedKeys, table: int, rank: int, changed: ChangedKeys
) -> npt.NDArray[np.int64]:
    offsets = routed.offsets[table]
    # This rank's stream contains its own keys of all tables, one table after the other.
    mine: npt.NDArray[np.int64] = routed.orders[table][offsets[rank] : offsets[rank + 1]]
    begin = int(routed.counts[rank, :table].sum())
    keys = routed.streams[rank][begin : begin + len(mine)]
    return mine[changed.find_changed(keys)]


def _compact(counts: Counts) -> RoutedKeys:
    """Returns the positions of each owner's rows in arrays that contain only refreshed rows."""
    orders = [np.arange(total) for total in counts.sum(axis=0).tolist()]
    offsets = [[0, *np.cumsum(column).tolist()] for column in counts.T]
    return RoutedKeys(orders, offsets, orders, len(counts))
