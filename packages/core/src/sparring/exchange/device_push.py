"""One push whose keys, gradients and messages are in device memory.

Messages are sent in the order of hops, as in `DevicePull`. The owner sums gradients by key: its own
first, then those of rank r-1, of r-2, …, so that sums have the same bits as on CPUs:

    finding   │ in the order of owners │
    wire             │ hop 1 │ hop 2 │ hop 3 │
    placing                  │ + hop 1 │ + hop 2 │ + hop 3 │

Gradients of hop h are summed while the gradients of hop h+1 are in flight. The number of keys
determines the next allocation, so summing waits for the device, on a background thread. If summing fails,
the exchange continues because the other ranks need the messages. The commit of the step reports the
failure to them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from sparring.contracts.device.kernels import DeviceArray
from sparring.exchange.device_stager import DeviceStager, StagedArrays
from sparring.exchange.messages import OwnedGradients, PushRequest
from sparring.exchange.messenger import MessageKind
from sparring.exchange.routing import Chunk, Counts, HopTransfers, RoutedKeys, hop_transfers
from sparring.runtime.streams import StreamTask
from sparring.runtime.threads import Job, SerialExecutor

__all__ = ["DevicePush"]


@dataclass(frozen=True, slots=True)
class _GradientsByKey:
    keys: DeviceArray
    """``(u,)``"""
    gradients: DeviceArray
    """``(u, dim)``"""


@dataclass(slots=True)
class _Hop:
    """Keys and gradients of all tables that one rank sends to this one."""

    parts: list[_GradientsByKey]
    num_coming: int
    """Chunks that have not arrived."""


@dataclass(slots=True)
class _InFlight:
    planned: HopTransfers
    going: StagedArrays | None
    coming: StagedArrays | None
    unpacked: StreamTask | None = None


@dataclass(slots=True)
class DevicePush:
    """One push of several tables; `run` completes it.

    Args:
        stager: stager of the device.
        executor: executor on which gradients are summed; its thread may wait.
        requests: one request per table.
        routed: keys of all requests, grouped by owner.
        coming_counts: ``(world_size, tables)``: keys that each rank sends to this one.
        chunk_rows: maximum number of keys per message.
        chunks_in_flight: maximum number of chunks in flight per direction.
    """

    stager: DeviceStager
    executor: SerialExecutor
    requests: Sequence[PushRequest]
    routed: RoutedKeys
    coming_counts: Counts
    chunk_rows: int
    chunks_in_flight: int
    _gradients: list[DeviceArray] = field(default_factory=list)
    _sums: list[_GradientsByKey] = field(default_factory=list)
    _hops: dict[int, _Hop] = field(default_factory=dict)
    _jobs: list[Job] = field(default_factory=list)

    def run(self) -> list[OwnedGradients]:
        """Returns the sums for each request, for later work on the caller's stream. Keys are in the
        order of their first occurrence. If summing failed, all results have the `error`.

        Raises:
            PeerFailure: a rank is gone or does not respond.
            DeviceError, DeadlineError: the device failed.
        """
        stager, arrays = self.stager, self.stager.kernels.arrays
        rank = stager.messenger.collective.rank
        owners, senders = stager.messenger.later_ranks, stager.messenger.earlier_ranks
        transfers = hop_transfers(
            [self.routed.counts[peer] for peer in owners],
            [self.coming_counts[peer] for peer in senders],
            self.chunk_rows,
        )
        for hop, peer in enumerate(senders, start=1):
            num_coming = sum(
                planned.hop == hop and planned.incoming is not None for planned in transfers
            )
            self._hops[hop] = _Hop(self._allocate_parts(self.coming_counts[peer]), num_coming)
        stager.begin()
        with arrays.using(stager.finding.handle):
            for request, order in zip(self.requests, self.routed.orders, strict=True):
                self._gradients.append(stager.kernels.gather(request.gradients, order))
        gathered = stager.reached(stager.finding)
        try:
            stager.wait(gathered)
            for table, keys in enumerate(self.routed.keys):
                begin, end = self.routed.offsets[table][rank : rank + 2]
                self._sums.append(
                    _GradientsByKey(keys[begin:end], self._gradients[table][begin:end])
                )
            self._run_hops(deque(transfers))
        finally:
            self.executor.finish()
            error = stager.settle([gathered])
        error = self._adding_error or error
        if error is None:
            try:
                # The framework must not reuse their memory before the caller's stream has used it.
                with arrays.using(stager.placing.handle):
                    take = arrays.follow(
                        [array for each in self._sums for array in (each.keys, each.gradients)]
                    )
                stager.end()
                take()
            except Exception as found:
                error = found
        kernels = self.stager.kernels
        return [OwnedGradients(e.keys, e.gradients, kernels, error=error) for e in self._sums]

    def _allocate_parts(self, counts: Counts) -> list[_GradientsByKey]:
        arrays = self.stager.kernels.arrays
        return [
            _GradientsByKey(
                arrays.empty((count,), "int64"),
                arrays.empty((count, each.table.dim), each.table.computing_dtype.name),
            )
            for each, count in zip(self.requests, counts.tolist(), strict=True)
        ]

    def _run_hops(self, transfers: deque[HopTransfers]) -> None:
        in_flight: deque[_InFlight] = deque()
        waiting = deque(self._hops.values())
        while transfers or in_flight or waiting or not all(job.is_done for job in self._jobs):
            moved = False
            while transfers and len(in_flight) < self.chunks_in_flight:
                in_flight.append(self._exchange(transfers.popleft()))
                moved = True
            for each in in_flight:
                if each.coming is None or each.unpacked is not None:
                    continue
                if self.stager.is_done(each.coming):
                    self.stager.unpack(each.coming, self.stager.placing)
                    each.unpacked = self.stager.reached(self.stager.placing)
                    self._hops[each.planned.hop].num_coming -= 1
                    moved = True
            # Gradients are summed in the order of hops.
            while waiting and waiting[0].num_coming == 0:
                self._jobs.append(self.executor.submit(partial(self._add_up, waiting.popleft())))
                moved = True
            while in_flight and self._is_finished(in_flight[0]):
                in_flight.popleft()
                moved = True
            self.stager.messenger.pause(self.executor, has_progressed=moved)

    def _exchange(self, planned: HopTransfers) -> _InFlight:
        stager, going, coming = self.stager, None, None
        rank, world_size = stager.messenger.collective.rank, stager.messenger.collective.world_size
        if planned.incoming is not None:
            parts = self._hops[planned.hop].parts
            sender = (rank - planned.hop) % world_size
            arrays = _pieces(planned.incoming, parts)
            coming = stager.receive(arrays, MessageKind.GRADIENTS, sender, planned.label)
        if planned.outgoing is not None:
            owner = (rank + planned.hop) % world_size
            arrays = []
            for part in planned.outgoing.slices:
                there = self.routed.range_of(owner, part)
                arrays += [
                    self.routed.keys[part.table][there],
                    self._gradients[part.table][there],
                ]
            going = stager.pack(arrays, stager.finding)
            if not stager.is_direct:
                stager.wait(stager.reached(stager.finding))
            stager.send(going, MessageKind.GRADIENTS, owner, planned.label)
        stager.start(coming, going)
        return _InFlight(planned, going, coming)

    def _is_finished(self, each: _InFlight) -> bool:
        if each.going is not None and not self.stager.is_done(each.going):
            return False
        if each.coming is not None and each.unpacked is None:
            return False
        if not self.stager.is_reached(each.unpacked):
            return False
        for staged in (each.going, each.coming):
            if staged is not None:
                self.stager.give_back(staged)
        return True

    def _add_up(self, hop: _Hop) -> None:
        """Adds the gradients of one rank. Waits for the device once per table."""
        if self._adding_error is not None:
            return
        stager, begin_ns = self.stager, time.perf_counter_ns()
        kernels, concatenate = stager.kernels, stager.kernels.arrays.concatenate
        with kernels.arrays.using(stager.placing.handle):
            for table, (mine, theirs) in enumerate(zip(self._sums, hop.parts, strict=True)):
                if not len(theirs.keys):
                    continue
                found = kernels.dedup(concatenate([mine.keys, theirs.keys]))
                gradients = concatenate([mine.gradients, theirs.gradients])
                summed = kernels.segment_sum(gradients, found.inverse, len(found.keys))
                self._sums[table] = _GradientsByKey(found.keys, summed)
        number = next(each for each, known in self._hops.items() if known is hop)
        stager.traced("add up", stager.placing, f"hop {number}", begin_ns)

    @property
    def _adding_error(self) -> BaseException | None:
        return next((job.error for job in self._jobs if job.error is not None), None)


def _pieces(chunk: Chunk, parts: Sequence[_GradientsByKey]) -> list[DeviceArray]:
    arrays: list[DeviceArray] = []
    for part in chunk.slices:
        there = slice(part.begin, part.end)
        arrays += [parts[part.table].keys[there], parts[part.table].gradients[there]]
    return arrays
