"""The ring exchange: keys to their owners and rows back, gradients to their owners.

At hop h, rank r asks rank r+h and serves rank r-h: every hop is a permutation of the ranks, so no
two ranks send to one. Hop 0 is a rank's own shard and touches no wire; in a world of one it is all
there is. Empty hops are ordinary: a rank without keys for a table still takes part in each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.collective import Collective, WorkContext
from sparring.rendezvous import ShardMap
from sparring.storage.contract import Columns, Keys, Rows, Storage
from sparring.table import TableConfig

__all__ = ["OwnedGradients", "Pulled", "RingExchange"]

# Message kinds of one exchange, kept apart by tag.
_ROWS, _FOUND, _GRADIENTS = range(1, 4)


@dataclass(slots=True)
class Pulled:
    """What the owners had, in the order of the keys asked for."""

    rows: Rows
    found: npt.NDArray[np.bool_]


@dataclass(slots=True)
class OwnedGradients:
    """The gradients that all ranks pushed to this one, added up by key."""

    keys: Keys
    gradients: Rows


class RingExchange:
    """Moves rows and gradients of one table at a time between ranks.

    Args:
        collective: this rank's place in the group.
        shard_map: who owns which partition; the same on all ranks.
    """

    def __init__(self, collective: Collective, shard_map: ShardMap) -> None:
        self._collective = collective
        self._owners = shard_map.owners
        self._rank = collective.rank
        self._world_size = collective.world_size

    def pull(
        self, storage: Storage | None, table: TableConfig, keys: Keys, columns: Columns
    ) -> Pulled:
        """Rows from their owners; all ranks call it for the same table at the same time.

        Args:
            storage: this rank's shard, or None where it holds no rows yet.
            table: name and dtype.
            keys: ``(u,)`` unique.
            columns: the part of each row that is wanted.

        Returns:
            ``(u, width of columns)`` rows of the table's dtype, zeros where `found` is False.
        """
        if self._world_size == 1:
            return _find(storage, table, keys, columns)
        routed = self._route(keys)
        asked, served = self._exchange_keys(routed, table, "pull")
        width = columns.end - columns.begin
        rows = np.empty((len(keys), width), table.numpy_dtype)
        # Rows travel as bytes: no collective need know the dtype of a table.
        received = rows.view(np.uint8)
        found = np.empty(len(keys), np.bool_)
        mine = _find(storage, table, asked[self._rank], columns)
        replies = []
        for hop in range(1, self._world_size):
            asker, owner = self._peers(hop)
            place = slice(routed.offsets[owner], routed.offsets[owner + 1])
            waiting = (
                self._collective.receive(received[place], owner, _ROWS),
                self._collective.receive(found[place], owner, _FOUND),
            )
            reply = _find(storage, table, served[asker], columns)
            sending = (
                self._collective.send(reply.rows.view(np.uint8), asker, _ROWS),
                self._collective.send(reply.found, asker, _FOUND),
            )
            replies.append((waiting, sending, reply))
        place = slice(routed.offsets[self._rank], routed.offsets[self._rank + 1])
        rows[place], found[place] = mine.rows, mine.found
        for waiting, sending, _ in replies:
            for work in (*waiting, *sending):
                work.wait()
        # What came is grouped by owner; put it back in the order of `keys`.
        ordered = Pulled(np.empty_like(rows), np.empty_like(found))
        ordered.rows[routed.order] = rows
        ordered.found[routed.order] = found
        return ordered

    def push(
        self,
        table: TableConfig,
        keys: Keys,
        gradients: Rows,
        make_accumulator: Callable[[], Any],
    ) -> OwnedGradients:
        """Gradients to their owners, added up by key in the order of ranks.

        Args:
            table: name and dtype.
            keys: ``(u,)`` unique on this rank.
            gradients: ``(u, dim)`` of the table's computing dtype.
            make_accumulator: makes an empty accumulator for one exchange.
        """
        if self._world_size == 1:
            return OwnedGradients(keys, gradients)
        routed = self._route(keys)
        asked, served = self._exchange_keys(routed, table, "push")
        grouped = gradients[routed.order]
        received: dict[int, Rows] = {}
        works = []
        for hop in range(1, self._world_size):
            asker, owner = self._peers(hop)
            received[asker] = np.empty((len(served[asker]), gradients.shape[1]), gradients.dtype)
            works.append(self._collective.receive(received[asker], asker, _GRADIENTS))
            place = slice(routed.offsets[owner], routed.offsets[owner + 1])
            works.append(self._collective.send(grouped[place], owner, _GRADIENTS))
        place = slice(routed.offsets[self._rank], routed.offsets[self._rank + 1])
        received[self._rank] = grouped[place]
        served[self._rank] = asked[self._rank]
        for work in works:
            work.wait()
        accumulator = make_accumulator()
        # Float addition is not associative: the order of ranks makes every run the same.
        for rank in range(self._world_size):
            accumulator.add(served[rank], np.ascontiguousarray(received[rank]))
        return OwnedGradients(*accumulator.take())

    def _peers(self, hop: int) -> tuple[int, int]:
        """(who asks this rank at this hop, whom this rank asks)."""
        return (self._rank - hop) % self._world_size, (self._rank + hop) % self._world_size

    def _route(self, keys: Keys) -> _Routed:
        order, offsets = _native.route(keys, self._owners, self._world_size)
        return _Routed(order, offsets, keys[order])

    def _exchange_keys(
        self, routed: _Routed, table: TableConfig, operation: str
    ) -> tuple[dict[int, Keys], dict[int, Keys]]:
        """(keys this rank asks of each rank, keys each rank asks of this one)."""
        self._collective.context = WorkContext(operation, table.name)
        parts = {
            rank: routed.keys[routed.offsets[rank] : routed.offsets[rank + 1]]
            for rank in range(self._world_size)
        }
        received = self._collective.all_to_all([parts[r] for r in range(self._world_size)])
        return parts, dict(enumerate(received))


@dataclass(slots=True)
class _Routed:
    order: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    keys: Keys


def _find(storage: Storage | None, table: TableConfig, keys: Keys, columns: Columns) -> Pulled:
    shape = (len(keys), columns.end - columns.begin)
    if storage is None:
        return Pulled(np.zeros(shape, table.numpy_dtype), np.zeros(len(keys), np.bool_))
    rows = np.empty(shape, table.numpy_dtype)
    found = np.empty(len(keys), np.bool_)
    if len(keys):
        # The engine's own path: keys come from `dedup`, so nothing is left to check.
        storage._check_open()
        storage._find_impl(keys, columns, rows, found)
    return Pulled(rows, found)
