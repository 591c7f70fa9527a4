"""One pull whose keys, rows and messages lie on a device.

At hop h this rank asks rank r+h and serves rank r-h, as in `RingPull`. But what NCCL is given passes
as groups, one after the other and each as a whole, so both ends must post in one order: first all
keys, then hop after hop what goes out and what comes in together.

    finding   │ own rows, hop 1 │      │ hop 2 │       │ hop 3 │
    wire      │ keys │          │ rows hop 1 │ rows hop 2 │ rows hop 3 │
    placing   │                              │ hop 1 │    │ hop 2 │    │ hop 3 │ order │

Rows of hop h+1 are found on one stream while those of hop h travel, and those of hop h-1 are put in
their place on another. The driving thread waits for no stream: it asks for each one's point, as for
messages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sparring.errors import PeerFailure
from sparring.exchange.beside import InlineLane
from sparring.exchange.counters import MessageKind
from sparring.exchange.device_requests import DevicePulled, DevicePullRequest
from sparring.exchange.device_routing import Counts, DeviceRouted, HopTurn, hop_turns
from sparring.exchange.device_side import Carried, DeviceSide
from sparring.exchange.routing import whole_stream
from sparring.kernel_set import DeviceArray
from sparring.streams import StreamTask

__all__ = ["DevicePull"]

_REFUSED = 2
"""In place of whether a row was found: its storage failed."""


@dataclass(slots=True)
class _Found:
    """Rows for another rank, on their way into a message."""

    turn: HopTurn
    message: Carried | None
    reached: StreamTask | None


@dataclass(slots=True)
class _Travelling:
    turn: HopTurn
    going: Carried | None
    coming: Carried | None
    placed: StreamTask | None = None


@dataclass(slots=True)
class DevicePull:
    """One pull of several tables, driven to its end by `run`.

    Args:
        side: the device.
        requests: one for each table.
        routed: their keys by owner.
        served_counts: ``(world_size, tables)``: what each rank asks of this one.
        chunk_rows: the most keys in a message of rows.
        chunks_in_flight: the most turns under way.
    """

    side: DeviceSide
    requests: Sequence[DevicePullRequest]
    routed: DeviceRouted
    served_counts: Counts
    chunk_rows: int
    chunks_in_flight: int
    _sorted: list[DevicePulled] = field(default_factory=list)
    _asked: dict[int, list[DeviceArray]] = field(default_factory=dict)
    _travelling: deque[_Travelling] = field(default_factory=deque)
    _keys: list[Carried] = field(default_factory=list)
    _error: BaseException | None = None
    is_told: bool = False
    """Whether other ranks got a refusal in place of rows, so that they know what `run` raises."""

    def run(self) -> list[DevicePulled]:
        """Returns the rows in the order of each request's keys. They are there for what the
        caller's stream gets from now on.

        Raises:
            PeerFailure: a rank is gone or silent, or could not read its rows.
            DeviceError, StorageIOError: the device failed.
            SparringError: this rank's own storage failed. Other ranks were told.
        """
        arrays = self.side.kernels.arrays
        results = []
        for request in self.requests:
            shape = (len(request.keys), request.width)
            results.append(DevicePulled(*self._empty(shape[0], shape[1], request.table.dtype)))
            self._sorted.append(DevicePulled(*self._empty(shape[0], shape[1], request.table.dtype)))
        rank, world_size = self._rank, self.side.link.collective.world_size
        asked = [(rank + hop) % world_size for hop in range(1, world_size)]
        served = [(rank - hop) % world_size for hop in range(1, world_size)]
        turns = iter(
            hop_turns(
                [self.served_counts[peer] for peer in served],
                [self.routed.counts[peer] for peer in asked],
                self.chunk_rows,
            )
        )
        self.side.begin()
        self._exchange_keys(asked, served)
        own = self._find_own()
        try:
            self._wait_for_keys()
            self._go_round(turns)
            self.is_told = self._error is not None
        except PeerFailure:
            # Whoever was told that this rank failed may have left since; the cause is here.
            if self._error is None:
                raise
        finally:
            self._finish(own)
        if self._error is not None:
            raise self._error
        with arrays.using(self.side.placing.handle):
            for place, (request, result) in enumerate(zip(self.requests, results, strict=True)):
                order = self.routed.orders[place]
                if len(request.keys):
                    arrays.put(result.rows, order, self._sorted[place].rows)
                    arrays.put(result.found, order, self._sorted[place].found)
        self.side.end()
        self._check_refusals()
        return results

    @property
    def _rank(self) -> int:
        return self.side.link.collective.rank

    def _empty(self, count: int, width: int, dtype: str) -> tuple[DeviceArray, DeviceArray]:
        arrays = self.side.kernels.arrays
        return arrays.empty((count, width), dtype), arrays.empty((count,), "uint8")

    # -- keys ---------------------------------------------------------------------------

    def _exchange_keys(self, asked: Sequence[int], served: Sequence[int]) -> None:
        """Starts all messages of keys: to and from each peer one, of all tables."""
        side, arrays = self.side, self.side.kernels.arrays
        packed = {}
        with arrays.using(side.finding.handle):
            for peer in asked:
                offsets = self.routed.offsets
                parts = [
                    keys[offsets[table][peer] : offsets[table][peer + 1]]
                    for table, keys in enumerate(self.routed.keys)
                ]
                packed[peer] = side.pack(parts, side.finding)
        side.wait(side.reached(side.finding))
        for peer in served:
            self._asked[peer] = [
                arrays.empty((int(count),), "int64") for count in self.served_counts[peer]
            ]
            self._keys.append(side.receive(self._asked[peer], MessageKind.KEYS, peer, "keys"))
        for peer, message in packed.items():
            side.send(message, MessageKind.KEYS, peer, "keys")
            self._keys.append(message)
        side.start(*self._keys)

    def _wait_for_keys(self) -> None:
        """Waits for messages of keys, and puts those of other ranks on the device."""
        lane, waiting = InlineLane(), list(self._keys)
        while waiting:
            left = [each for each in waiting if not self.side.is_done(each)]
            self._pause(lane, len(left) < len(waiting))
            waiting = left
        for each in self._keys[: len(self._asked)]:
            self.side.unpack(each, self.side.finding)

    def _pause(self, lane: InlineLane, has_progressed: bool) -> None:
        self.side.link.pause(lane, has_progressed=has_progressed)

    # -- rows ---------------------------------------------------------------------------

    def _find_own(self) -> StreamTask:
        chunk, begin_ns = whole_stream(self.routed.counts[self._rank]), time.perf_counter_ns()
        with self.side.kernels.arrays.using(self.side.finding.handle):
            for piece in () if chunk is None else chunk.pieces:
                there = self.routed.slice_of(self._rank, piece)
                result = self._sorted[piece.table]
                keys = self.routed.keys[piece.table][there]
                self._find(piece.table, keys, result.rows[there], result.found[there])
            return self.side.traced("find", self.side.finding, "hop 0", begin_ns)

    def _find(self, table: int, keys: DeviceArray, rows: DeviceArray, found: DeviceArray) -> None:
        storage = self.requests[table].storage
        try:
            if storage is None:
                rows[...] = 0
                found[...] = 0
            else:
                storage._check_open()
                self.side.kernels.find_into(storage, keys, rows, found)
        except BaseException as error:
            # The others still need this rank, so it goes on to the end.
            self._error = self._error or error
            found[...] = _REFUSED

    def _go_round(self, turns: Iterator[HopTurn]) -> None:
        lane = InlineLane()
        found = self._find_next(turns)
        while found is not None or self._travelling:
            moved = self._retire()
            is_free = len(self._travelling) < self.chunks_in_flight
            if found is not None and is_free and self.side.is_reached(found.reached):
                self._travelling.append(self._exchange(found))
                found = self._find_next(turns)
                moved = True
            self._pause(lane, moved)

    def _find_next(self, turns: Iterator[HopTurn]) -> _Found | None:
        """Begins to find what goes out at the next turn."""
        turn = next(turns, None)
        if turn is None or turn.outgoing is None:
            return None if turn is None else _Found(turn, None, None)
        side = self.side
        peer = (self._rank - turn.hop) % side.link.collective.world_size
        found_arrays: list[DeviceArray] = []
        begin_ns = time.perf_counter_ns()
        with side.kernels.arrays.using(side.finding.handle):
            for piece in turn.outgoing.pieces:
                request = self.requests[piece.table]
                rows, found = self._empty(piece.count, request.width, request.table.dtype)
                keys = self._asked[peer][piece.table][piece.begin : piece.end]
                self._find(piece.table, keys, rows, found)
                found_arrays += [rows, found]
            message = side.pack(found_arrays, side.finding)
            task = side.traced("find", side.finding, turn.what, begin_ns)
            return _Found(turn, message, task)

    def _exchange(self, found: _Found) -> _Travelling:
        """Starts the messages of a turn, both ways: one group, where the collective makes groups."""
        side, turn = self.side, found.turn
        world_size = side.link.collective.world_size
        coming = None
        if turn.incoming is not None:
            owner = (self._rank + turn.hop) % world_size
            arrays: list[DeviceArray] = []
            for piece in turn.incoming.pieces:
                there = self.routed.slice_of(owner, piece)
                result = self._sorted[piece.table]
                arrays += [result.rows[there], result.found[there]]
            coming = side.receive(arrays, MessageKind.ROWS, owner, turn.what)
        if found.message is not None:
            asker = (self._rank - turn.hop) % world_size
            side.send(found.message, MessageKind.ROWS, asker, turn.what)
        side.start(coming, found.message)
        return _Travelling(turn, found.message, coming)

    def _retire(self) -> bool:
        """Puts rows that came in their place, and lets go of what is through."""
        moved = False
        for each in self._travelling:
            if each.coming is None or each.placed is not None or not self.side.is_done(each.coming):
                continue
            begin_ns = time.perf_counter_ns()
            self.side.unpack(each.coming, self.side.placing)
            each.placed = self.side.traced("place", self.side.placing, each.turn.what, begin_ns)
            moved = True
        while self._travelling:
            first = self._travelling[0]
            is_placed = first.coming is None or (
                first.placed is not None and self.side.is_reached(first.placed)
            )
            if not is_placed or (first.going is not None and not self.side.is_done(first.going)):
                break
            for carried in (first.going, first.coming):
                if carried is not None:
                    self.side.give_back(carried)
            self._travelling.popleft()
            moved = True
        return moved

    def _finish(self, own: StreamTask) -> None:
        """Nothing writes to arrays of ours when this returns, unless the device is lost."""
        self._error = self._error or self.side.settle([own])
        for each in self._keys:
            if not each.transfers:
                self.side.give_back(each)

    def _check_refusals(self) -> None:
        """Waits for the device once a table."""
        for place, result in enumerate(self._sorted):
            if not len(self.requests[place].keys):
                continue
            found = np.asarray(self.side.kernels.arrays.to_host(result.found))
            refused = np.flatnonzero(found == _REFUSED)
            if len(refused):
                offsets = np.array(self.routed.offsets[place])
                owner = int(np.searchsorted(offsets, refused[0], side="right")) - 1
                raise PeerFailure(
                    f"rank {owner} could not read the rows it was asked for: its storage failed, "
                    "and the error it raised says why; mend that, then restart all ranks from the "
                    "last snapshot",
                    rank=owner,
                    operation="find",
                    is_certain=True,
                )
