"""One pull whose keys, rows and messages are in device memory.

At hop h, this rank requests rows from rank r+h and serves rank r-h, as in `RingPull`. However, NCCL
runs groups of messages one after the other, so both ranks of a message must post the groups in the
same order: first all keys, then for each hop the outgoing and the incoming rows together.

    finding   │ own rows, hop 1 │      │ hop 2 │       │ hop 3 │
    wire      │ keys │          │ rows hop 1 │ rows hop 2 │ rows hop 3 │
    placing   │                              │ hop 1 │    │ hop 2 │    │ hop 3 │ order │

Rows of hop h+1 are found on one stream while rows of hop h are in flight; another stream copies rows of
hop h-1 to the result. The driving thread does not wait for streams: it polls them like messages.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from sparring.contracts.device.kernels import DeviceArray
from sparring.errors import PeerFailure
from sparring.exchange.device_stager import DeviceStager, StagedArrays
from sparring.exchange.messages import FAILED, PullRequest, PullResult, make_storage_failure
from sparring.exchange.messenger import MessageKind
from sparring.exchange.routing import (
    Counts,
    HopTransfers,
    RoutedKeys,
    hop_transfers,
    whole_stream,
)
from sparring.runtime.streams import StreamTask
from sparring.runtime.threads import InlineExecutor

__all__ = ["DevicePull"]


@dataclass(slots=True)
class _Found:
    """Rows for another rank that are being found."""

    planned: HopTransfers
    message: StagedArrays | None
    reached: StreamTask | None


@dataclass(slots=True)
class _InFlight:
    planned: HopTransfers
    going: StagedArrays | None
    coming: StagedArrays | None
    placed: StreamTask | None = None


@dataclass(slots=True)
class DevicePull:
    """One pull of several tables; `run` completes it.

    Args:
        stager: stager of the device.
        requests: one request per table.
        routed: keys of all requests, grouped by owner.
        served_counts: ``(world_size, tables)``: rows that each rank requests from this one.
        chunk_rows: maximum number of keys per message of rows.
        chunks_in_flight: maximum number of chunks in flight per direction.
    """

    stager: DeviceStager
    requests: Sequence[PullRequest]
    routed: RoutedKeys
    served_counts: Counts
    chunk_rows: int
    chunks_in_flight: int
    _sorted: list[PullResult] = field(default_factory=list)
    _requested_keys: dict[int, list[DeviceArray]] = field(default_factory=dict)
    _in_flight: deque[_InFlight] = field(default_factory=deque)
    _keys: list[StagedArrays] = field(default_factory=list)
    _error: BaseException | None = None
    was_reported: bool = False
    """Whether the other ranks already know that `run` raises, because they received failure flags
    instead of rows."""

    def run(self) -> list[PullResult]:
        """Returns the rows in the order of each request's keys, for later work on the caller's stream.

        Raises:
            PeerFailure: a rank is gone, does not respond, or could not read its rows.
            DeviceError, StorageIOError: the device failed.
            SparringError: a storage of this rank failed. This was reported to the other ranks.
        """
        arrays = self.stager.kernels.arrays
        results = []
        for request in self.requests:
            shape = (len(request.keys), request.width)
            results.append(PullResult(*self._empty(shape[0], shape[1], request.table.dtype)))
            self._sorted.append(PullResult(*self._empty(shape[0], shape[1], request.table.dtype)))
        messenger = self.stager.messenger
        asked, served = messenger.later_ranks, messenger.earlier_ranks
        transfers = iter(
            hop_transfers(
                [self.served_counts[peer] for peer in served],
                [self.routed.counts[peer] for peer in asked],
                self.chunk_rows,
            )
        )
        self.stager.begin()
        self._exchange_keys(asked, served)
        own = self._find_own()
        try:
            self._wait_for_keys()
            self._run_hops(transfers)
            self.was_reported = self._error is not None
        except PeerFailure:
            # If this rank has an error, it may be the reason why the other rank has left.
            if self._error is None:
                raise
        finally:
            self._finish(own)
        if self._error is not None:
            raise self._error
        with arrays.using(self.stager.placing.handle):
            for place, (request, result) in enumerate(zip(self.requests, results, strict=True)):
                order = self.routed.orders[place]
                if len(request.keys):
                    arrays.put(result.rows, order, self._sorted[place].rows)
                    arrays.put(result.found, order, self._sorted[place].found)
        self.stager.end()
        self._check_failures()
        return results

    @property
    def _rank(self) -> int:
        return self.stager.messenger.collective.rank

    def _empty(self, count: int, width: int, dtype: str) -> tuple[DeviceArray, DeviceArray]:
        arrays = self.stager.kernels.arrays
        return arrays.empty((count, width), dtype), arrays.empty((count,), "uint8")

    # -- keys ---------------------------------------------------------------------------

    def _exchange_keys(self, asked: Sequence[int], served: Sequence[int]) -> None:
        """Starts all messages of keys: one to and one from each peer, for all tables."""
        stager, arrays = self.stager, self.stager.kernels.arrays
        packed = {}
        with arrays.using(stager.finding.handle):
            for peer in asked:
                offsets = self.routed.offsets
                parts = [
                    keys[offsets[table][peer] : offsets[table][peer + 1]]
                    for table, keys in enumerate(self.routed.keys)
                ]
                packed[peer] = stager.pack(parts, stager.finding)
        stager.wait(stager.reached(stager.finding))
        for peer in served:
            self._requested_keys[peer] = [
                arrays.empty((int(count),), "int64") for count in self.served_counts[peer]
            ]
            self._keys.append(
                stager.receive(self._requested_keys[peer], MessageKind.KEYS, peer, "keys")
            )
        for peer, message in packed.items():
            stager.send(message, MessageKind.KEYS, peer, "keys")
            self._keys.append(message)
        stager.start(*self._keys)

    def _wait_for_keys(self) -> None:
        """Waits for the messages of keys, and copies keys of other ranks to the device."""
        executor, waiting = InlineExecutor(), list(self._keys)
        while waiting:
            left = [each for each in waiting if not self.stager.is_done(each)]
            self._pause(executor, len(left) < len(waiting))
            waiting = left
        for each in self._keys[: len(self._requested_keys)]:
            self.stager.unpack(each, self.stager.finding)

    def _pause(self, executor: InlineExecutor, has_progressed: bool) -> None:
        self.stager.messenger.pause(executor, has_progressed=has_progressed)

    # -- rows ---------------------------------------------------------------------------

    def _find_own(self) -> StreamTask:
        chunk, begin_ns = whole_stream(self.routed.counts[self._rank]), time.perf_counter_ns()
        with self.stager.kernels.arrays.using(self.stager.finding.handle):
            for part in () if chunk is None else chunk.slices:
                there = self.routed.range_of(self._rank, part)
                result = self._sorted[part.table]
                keys = self.routed.keys[part.table][there]
                self._find(part.table, keys, result.rows[there], result.found[there])
            return self.stager.traced("find", self.stager.finding, "hop 0", begin_ns)

    def _find(self, table: int, keys: DeviceArray, rows: DeviceArray, found: DeviceArray) -> None:
        storage = self.requests[table].storage
        try:
            if storage is None:
                rows[...] = 0
                found[...] = 0
            else:
                storage._check_open()
                self.stager.kernels.find_into(storage, keys, rows, found)
        except BaseException as error:
            # The other ranks still need this rank, so it continues to the end.
            self._error = self._error or error
            found[...] = FAILED

    def _run_hops(self, transfers: Iterator[HopTransfers]) -> None:
        executor = InlineExecutor()
        found = self._find_next(transfers)
        while found is not None or self._in_flight:
            moved = self._retire()
            is_free = len(self._in_flight) < self.chunks_in_flight
            if found is not None and is_free and self.stager.is_reached(found.reached):
                self._in_flight.append(self._exchange(found))
                found = self._find_next(transfers)
                moved = True
            self._pause(executor, moved)

    def _find_next(self, transfers: Iterator[HopTransfers]) -> _Found | None:
        """Starts to find the outgoing rows of the next transfers."""
        planned = next(transfers, None)
        if planned is None or planned.outgoing is None:
            return None if planned is None else _Found(planned, None, None)
        stager = self.stager
        peer = (self._rank - planned.hop) % stager.messenger.collective.world_size
        found_arrays: list[DeviceArray] = []
        begin_ns = time.perf_counter_ns()
        with stager.kernels.arrays.using(stager.finding.handle):
            for part in planned.outgoing.slices:
                request = self.requests[part.table]
                rows, found = self._empty(part.num_keys, request.width, request.table.dtype)
                keys = self._requested_keys[peer][part.table][part.begin : part.end]
                self._find(part.table, keys, rows, found)
                found_arrays += [rows, found]
            message = stager.pack(found_arrays, stager.finding)
            task = stager.traced("find", stager.finding, planned.label, begin_ns)
            return _Found(planned, message, task)

    def _exchange(self, found: _Found) -> _InFlight:
        """Starts the messages of one transfer in both directions, as one group if the collective
        supports groups."""
        stager, planned = self.stager, found.planned
        world_size = stager.messenger.collective.world_size
        coming = None
        if planned.incoming is not None:
            owner = (self._rank + planned.hop) % world_size
            arrays: list[DeviceArray] = []
            for part in planned.incoming.slices:
                there = self.routed.range_of(owner, part)
                result = self._sorted[part.table]
                arrays += [result.rows[there], result.found[there]]
            coming = stager.receive(arrays, MessageKind.ROWS, owner, planned.label)
        if found.message is not None:
            asker = (self._rank - planned.hop) % world_size
            stager.send(found.message, MessageKind.ROWS, asker, planned.label)
        stager.start(coming, found.message)
        return _InFlight(planned, found.message, coming)

    def _retire(self) -> bool:
        """Copies received rows to the result, and releases finished messages."""
        moved = False
        for each in self._in_flight:
            if (
                each.coming is None
                or each.placed is not None
                or not self.stager.is_done(each.coming)
            ):
                continue
            begin_ns = time.perf_counter_ns()
            self.stager.unpack(each.coming, self.stager.placing)
            each.placed = self.stager.traced(
                "place", self.stager.placing, each.planned.label, begin_ns
            )
            moved = True
        while self._in_flight:
            first = self._in_flight[0]
            is_placed = first.coming is None or (
                first.placed is not None and self.stager.is_reached(first.placed)
            )
            if not is_placed or (first.going is not None and not self.stager.is_done(first.going)):
                break
            for staged in (first.going, first.coming):
                if staged is not None:
                    self.stager.give_back(staged)
            self._in_flight.popleft()
            moved = True
        return moved

    def _finish(self, own: StreamTask) -> None:
        """Waits until no work writes to the arrays, unless the device is lost."""
        self._error = self._error or self.stager.settle([own])
        for each in self._keys:
            if not each.transfers:
                self.stager.give_back(each)

    def _check_failures(self) -> None:
        """Raises if an owner failed. Waits for the device once per table."""
        for place, result in enumerate(self._sorted):
            if not len(self.requests[place].keys):
                continue
            found = np.asarray(self.stager.kernels.arrays.to_host(result.found))
            refused = np.flatnonzero(found == FAILED)
            if len(refused):
                offsets = np.array(self.routed.offsets[place])
                owner = int(np.searchsorted(offsets, refused[0], side="right")) - 1
                raise make_storage_failure(owner)
