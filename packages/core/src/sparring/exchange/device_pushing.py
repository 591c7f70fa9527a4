"""One push whose keys, gradients and messages lie on a device.

Messages go hop after hop as in `DevicePull`. The owner adds up by key, its own gradients first, then
those of rank r-1, of r-2, …, so that sums have the same bits as those of ranks on CPUs:

    finding   │ in the order of owners │
    wire             │ hop 1 │ hop 2 │ hop 3 │
    placing                  │ + hop 1 │ + hop 2 │ + hop 3 │

What came by hop h is added up while hop h+1 travels. How many keys there are decides how much memory
comes next, so adding up waits for the device, on a thread beside the one that drives the exchange.
Where it fails, messages go on: the others need them, and are told by the commit of the step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from sparring.device_gradients import SummedByKey
from sparring.exchange.beside import Job, Lane
from sparring.exchange.counters import MessageKind
from sparring.exchange.device_requests import DevicePushed, DevicePushRequest
from sparring.exchange.device_routing import Counts, DeviceRouted, HopTurn, hop_turns
from sparring.exchange.device_side import Carried, DeviceSide
from sparring.exchange.routing import Chunk
from sparring.kernel_set import DeviceArray
from sparring.streams import StreamTask

__all__ = ["DevicePush"]


@dataclass(slots=True)
class _Hop:
    """What one rank sends to this one: of each table keys and gradients."""

    parts: list[SummedByKey]
    num_coming: int
    """Turns that have not come."""


@dataclass(slots=True)
class _Travelling:
    turn: HopTurn
    going: Carried | None
    coming: Carried | None
    unpacked: StreamTask | None = None


@dataclass(slots=True)
class DevicePush:
    """One push of several tables, driven to its end by `run`.

    Args:
        side: the device.
        lane: where sums are taken; its thread may wait.
        requests: one for each table.
        routed: their keys by owner.
        coming_counts: ``(world_size, tables)``: what each rank sends to this one.
        chunk_rows: the most keys in a message.
        chunks_in_flight: the most turns under way.
    """

    side: DeviceSide
    lane: Lane
    requests: Sequence[DevicePushRequest]
    routed: DeviceRouted
    coming_counts: Counts
    chunk_rows: int
    chunks_in_flight: int
    _gradients: list[DeviceArray] = field(default_factory=list)
    _sums: list[SummedByKey] = field(default_factory=list)
    _hops: dict[int, _Hop] = field(default_factory=dict)
    _jobs: list[Job] = field(default_factory=list)

    def run(self) -> list[DevicePushed]:
        """Returns the sums for each request, keys in the order in which they first came. They are
        there for what the caller's stream gets from now on. Where they could not be taken, all of
        them say why.

        Raises:
            PeerFailure: a rank is gone or silent.
            DeviceError, DeadlineError: the device failed.
        """
        side, arrays = self.side, self.side.kernels.arrays
        rank, world_size = side.link.collective.rank, side.link.collective.world_size
        owners = [(rank + hop) % world_size for hop in range(1, world_size)]
        senders = [(rank - hop) % world_size for hop in range(1, world_size)]
        turns = hop_turns(
            [self.routed.counts[peer] for peer in owners],
            [self.coming_counts[peer] for peer in senders],
            self.chunk_rows,
        )
        for hop, peer in enumerate(senders, start=1):
            num_coming = sum(turn.hop == hop and turn.incoming is not None for turn in turns)
            self._hops[hop] = _Hop(self._room(self.coming_counts[peer]), num_coming)
        side.begin()
        with arrays.using(side.finding.handle):
            for request, order in zip(self.requests, self.routed.orders, strict=True):
                self._gradients.append(side.kernels.gather(request.gradients, order))
        gathered = side.reached(side.finding)
        try:
            side.wait(gathered)
            for table, keys in enumerate(self.routed.keys):
                begin, end = self.routed.offsets[table][rank : rank + 2]
                self._sums.append(SummedByKey(keys[begin:end], self._gradients[table][begin:end]))
            self._go_round(deque(turns))
        finally:
            self.lane.finish()
            error = side.settle([gathered])
        error = self._adding_error or error
        if error is None:
            try:
                side.end()
            except Exception as found:
                error = found
        return [DevicePushed(each.keys, each.gradients, error) for each in self._sums]

    def _room(self, counts: Counts) -> list[SummedByKey]:
        arrays = self.side.kernels.arrays
        return [
            SummedByKey(
                arrays.empty((count,), "int64"),
                arrays.empty((count, each.table.dim), each.table.computing_dtype.name),
            )
            for each, count in zip(self.requests, counts.tolist(), strict=True)
        ]

    def _go_round(self, turns: deque[HopTurn]) -> None:
        travelling: deque[_Travelling] = deque()
        waiting = deque(self._hops.values())
        while turns or travelling or waiting or not all(job.is_done for job in self._jobs):
            moved = False
            while turns and len(travelling) < self.chunks_in_flight:
                travelling.append(self._exchange(turns.popleft()))
                moved = True
            for each in travelling:
                if each.coming is None or each.unpacked is not None:
                    continue
                if self.side.is_done(each.coming):
                    self.side.unpack(each.coming, self.side.placing)
                    each.unpacked = self.side.reached(self.side.placing)
                    self._hops[each.turn.hop].num_coming -= 1
                    moved = True
            # Sums are taken in the order of hops.
            while waiting and waiting[0].num_coming == 0:
                self._jobs.append(self.lane.submit(partial(self._add_up, waiting.popleft())))
                moved = True
            while travelling and self._is_through(travelling[0]):
                travelling.popleft()
                moved = True
            self.side.link.pause(self.lane, has_progressed=moved)

    def _exchange(self, turn: HopTurn) -> _Travelling:
        side, going, coming = self.side, None, None
        rank, world_size = side.link.collective.rank, side.link.collective.world_size
        if turn.incoming is not None:
            parts = self._hops[turn.hop].parts
            sender = (rank - turn.hop) % world_size
            arrays = _pieces(turn.incoming, parts)
            coming = side.receive(arrays, MessageKind.GRADIENTS, sender, turn.what)
        if turn.outgoing is not None:
            owner = (rank + turn.hop) % world_size
            arrays = []
            for piece in turn.outgoing.pieces:
                there = self.routed.slice_of(owner, piece)
                arrays += [
                    self.routed.keys[piece.table][there],
                    self._gradients[piece.table][there],
                ]
            going = side.pack(arrays, side.finding)
            if not side.is_direct:
                side.wait(side.reached(side.finding))
            side.send(going, MessageKind.GRADIENTS, owner, turn.what)
        side.start(coming, going)
        return _Travelling(turn, going, coming)

    def _is_through(self, each: _Travelling) -> bool:
        if each.going is not None and not self.side.is_done(each.going):
            return False
        if each.coming is not None and each.unpacked is None:
            return False
        if not self.side.is_reached(each.unpacked):
            return False
        for carried in (each.going, each.coming):
            if carried is not None:
                self.side.give_back(carried)
        return True

    def _add_up(self, hop: _Hop) -> None:
        """Adds what one rank sent. Waits for the device once a table."""
        if self._adding_error is not None:
            return
        side, begin_ns = self.side, time.perf_counter_ns()
        kernels, concatenate = side.kernels, side.kernels.arrays.concatenate
        with kernels.arrays.using(side.placing.handle):
            for table, (mine, theirs) in enumerate(zip(self._sums, hop.parts, strict=True)):
                if not len(theirs.keys):
                    continue
                found = kernels.dedup(concatenate([mine.keys, theirs.keys]))
                gradients = concatenate([mine.gradients, theirs.gradients])
                summed = kernels.segment_sum(gradients, found.inverse, len(found.keys))
                self._sums[table] = SummedByKey(found.keys, summed)
        number = next(each for each, known in self._hops.items() if known is hop)
        side.traced("add up", side.placing, f"hop {number}", begin_ns)

    @property
    def _adding_error(self) -> BaseException | None:
        return next((job.error for job in self._jobs if job.error is not None), None)


def _pieces(chunk: Chunk, parts: Sequence[SummedByKey]) -> list[DeviceArray]:
    arrays: list[DeviceArray] = []
    for piece in chunk.pieces:
        there = slice(piece.begin, piece.end)
        arrays += [parts[piece.table].keys[there], parts[piece.table].gradients[there]]
    return arrays
