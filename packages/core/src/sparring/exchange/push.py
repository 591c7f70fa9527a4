"""One push by the ring: gradients are summed while other gradients are in flight.

At hop h, this rank sends to rank r+h and receives from rank r-h. Sums must be reproducible, and float
addition depends on its order. The order is the order of hops: a rank's own gradients first, then those
of rank r-1, of r-2, … This needs no additional buffers: chunks of one rank arrive in the order of
sending, and at most `chunks_in_flight` buffers receive chunks of later hops.

    sent       WAITING ──► IN FLIGHT ──► done
    received   WAITING ──► ARRIVING ──► SUMMED on the executor, in the order of the queue ──► done
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.ranks.exchange_options import WireDtype
from sparring.contracts.storage.results import Columns, Keys, Rows
from sparring.exchange.messages import (
    KEY_BYTES,
    Codec,
    OwnedGradients,
    PullResult,
    PushRequest,
    align_bytes,
    find_rows,
    gradient_bytes,
)
from sparring.exchange.messenger import Buffers, MessageKind, Messenger
from sparring.exchange.request_replies import IncomingRequest, OutgoingRequest, RequestReplies
from sparring.exchange.routing import (
    Chunk,
    ChunkTransfer,
    RoutedKeys,
    chunk_transfers,
    whole_stream,
)
from sparring.runtime.threads import InlineExecutor, Job, SerialExecutor
from sparring.runtime.trace import Trace

__all__ = ["RingPush", "RowPrefetch", "GradientSums", "push_to_replicas"]

_GRADIENTS = MessageKind.GRADIENTS

_MAX_PAUSE = 0.01

Bytes = npt.NDArray[np.uint8]


@dataclass(slots=True)
class GradientSums:
    """Gradients of a push: messages to their owners, and the sums for this rank, per table.

    If gradients are not converted for the wire, each message takes one native call for all tables, and
    this rank's own gradients are copied once, to where other gradients are added.

    Args:
        requests: one request per table.
        codecs: codec of each table's gradients.
        routed: keys of all requests, grouped by owner.
    """

    requests: Sequence[PushRequest]
    codecs: Sequence[Codec]
    routed: RoutedKeys
    accumulators: list[Any] = field(default_factory=list)
    _tables: Any = None

    def __post_init__(self) -> None:
        self.accumulators = [request.accumulator() for request in self.requests]
        if all(codec.effective is WireDtype.EXACT for codec in self.codecs) and all(
            isinstance(each, _native.GradientAccumulator) for each in self.accumulators
        ):
            self._tables = _native.PushedTables(
                self.accumulators,
                [each.keys for each in self.requests],
                [each.gradients for each in self.requests],
                self.routed.orders,
                self.routed.ends,
            )

    def pack(self, message: Bytes, chunk: Chunk, owner: int) -> None:
        """Writes the message that sends a chunk of gradients to its owner.

        Args:
            message: ``(gradient_bytes,)``, completely written.
            chunk: the chunk.
            owner: rank of the owner.
        """
        stream = self.routed.streams[owner][chunk.begin : chunk.end]
        if self._tables is not None:
            self._tables.pack(chunk.slices, owner, stream, message)
            return
        at = 0
        for part in chunk.slices:
            codec, request = self.codecs[part.table], self.requests[part.table]
            middle = at + part.num_keys * KEY_BYTES
            end = middle + part.num_keys * codec.row_bytes
            message[at:middle].view(np.int64)[:] = stream[part.at : part.at + part.num_keys]
            wire = message[middle:end]
            out = codec.view(wire, part.num_keys)
            taken = _native.gather(request.gradients, self.routed.positions(owner, part), out)
            if out is None:
                codec.encode(taken, wire)
            at += align_bytes(end - at)
            message[end:at] = 0

    def add_message(self, message: Bytes, chunk: Chunk) -> None:
        """Adds the gradients of another rank's message."""
        if self._tables is not None:
            self._tables.add(chunk.slices, message)
            return
        at = 0
        for part in chunk.slices:
            codec = self.codecs[part.table]
            middle = at + part.num_keys * KEY_BYTES
            end = middle + part.num_keys * codec.row_bytes
            keys = message[at:middle].view(np.int64)
            self.accumulators[part.table].add(
                keys, codec.decode(message[middle:end], part.num_keys)
            )
            at += align_bytes(end - at)

    def add_own(self, rank: int) -> None:
        """Adds this rank's gradients of its own keys, which are not rounded."""
        if self._tables is not None:
            self._tables.add_own(rank)
            return
        for table, request in enumerate(self.requests):
            offsets = self.routed.offsets[table]
            mine = self.routed.orders[table][offsets[rank] : offsets[rank + 1]]
            if len(mine):
                gradients: Rows = _native.gather(request.gradients, mine)
                self.accumulators[table].add(request.keys[mine], gradients)

    def take(self) -> list[OwnedGradients]:
        """Returns the sums, one per request."""
        if self._tables is not None:
            return [OwnedGradients(*each) for each in self._tables.take()]
        return [OwnedGradients(*each.take()) for each in self.accumulators]


@dataclass(slots=True)
class RingPush:
    """One push of several tables; `run` completes it.

    Args:
        messenger: sends and receives messages.
        executor: executor on which gradients are summed.
        find_executor: executor on which rows for the update are found.
        requests: one request per table.
        codecs: codec of each table's gradients.
        routed: keys of all requests, grouped by owner.
        coming_counts: ``(world_size, tables)``: keys that each rank sends to this one.
        chunk_rows: maximum number of keys per message.
        chunks_in_flight: maximum number of chunks in flight per direction.
        buffers: buffers of messages.
    """

    messenger: Messenger
    executor: SerialExecutor
    find_executor: SerialExecutor
    requests: Sequence[PushRequest]
    codecs: Sequence[Codec]
    routed: RoutedKeys
    coming_counts: npt.NDArray[np.int64]
    chunk_rows: int
    chunks_in_flight: int
    buffers: Buffers = field(default_factory=Buffers)
    _error: BaseException | None = None

    def run(self) -> list[OwnedGradients]:
        """Returns the sums for each request. A failure of this rank is the `error` of each result.

        Raises:
            PeerFailure: a rank is gone or does not respond, and this rank has no error.
        """
        to_send = chunk_transfers(self.messenger.later_ranks, self.routed.counts, self.chunk_rows)
        to_receive = chunk_transfers(
            self.messenger.earlier_ranks, self.coming_counts, self.chunk_rows
        )
        sums = GradientSums(self.requests, self.codecs, self.routed)
        ahead = RowPrefetch(self.requests, sums.accumulators, self.find_executor)
        counts = np.concatenate([self.routed.counts, self.coming_counts])
        is_short = int(counts.sum(axis=1).max()) <= self.chunk_rows
        is_inline = isinstance(self.executor, InlineExecutor) and isinstance(
            self.find_executor, InlineExecutor
        )
        try:
            if is_short and is_inline:
                rank = self.messenger.collective.rank
                own = self.executor.submit(partial(sums.add_own, rank))
                self._ended(own, "hop 0")
                self._run_in_order(list(to_send), list(to_receive), sums, ahead)
            else:
                self._run_as_it_comes(to_send, to_receive, sums, ahead)
        finally:
            self.executor.finish()
            self.find_executor.finish()
        ahead.trace(self.messenger.trace)
        results = sums.take()
        for position, result in enumerate(results):
            # Not raised here, because the other ranks have already continued.
            result.error = self._error or ahead.error
            result.found = ahead.found(position)
        return results

    def _run_as_it_comes(
        self,
        to_send: Iterator[ChunkTransfer],
        to_receive: Iterator[ChunkTransfer],
        sums: GradientSums,
        ahead: RowPrefetch,
    ) -> None:
        self._error = RequestReplies(
            self.messenger,
            self.executor,
            self.buffers,
            self.chunks_in_flight,
            _GRADIENTS,
            "add up",
            ahead.advance,
        ).run(
            (
                OutgoingRequest(
                    each.peer, each.label, self._bytes(each), partial(_pack, sums, each)
                )
                for each in to_send
            ),
            (
                IncomingRequest(each.peer, each.label, self._bytes(each), partial(_add, sums, each))
                for each in to_receive
            ),
            partial(sums.add_own, self.messenger.collective.rank),
        )
        while not ahead.is_done:
            self.find_executor.pause(_MAX_PAUSE)

    def _run_in_order(
        self,
        to_send: Sequence[ChunkTransfer],
        to_receive: Sequence[ChunkTransfer],
        sums: GradientSums,
        ahead: RowPrefetch,
    ) -> None:
        """Sends the same messages for the case of one message per rank; see
        `RingPull._run_in_order`."""
        messenger = self.messenger
        coming = []
        for planned in to_receive:
            message = self.buffers.take(self._bytes(planned))
            coming.append(messenger.receive(_GRADIENTS, message, planned.peer, planned.label))
        going = []
        for planned in to_send:
            message = self.buffers.take(self._bytes(planned))
            sums.pack(message, planned.chunk, planned.peer)
            going.append(messenger.send(_GRADIENTS, message, planned.peer, planned.label))
        ahead.advance()
        for planned, transfer in zip(to_receive, coming, strict=True):
            messenger.wait(transfer)
            add = partial(sums.add_message, transfer.buffer, planned.chunk)
            self._ended(self.executor.submit(add), planned.label)
            ahead.advance()
        for transfer in going:
            messenger.wait(transfer)
        for transfer in [*coming, *going]:
            self.buffers.give_back(transfer.buffer)

    def _bytes(self, planned: ChunkTransfer) -> int:
        return gradient_bytes(planned.chunk, self.codecs)

    def _ended(self, job: Job, label: str) -> None:
        self._error = self._error or job.error
        if self.messenger.trace is not None:
            details = {"of": label}
            self.messenger.trace.add(
                "add up", job.begin_ns, job.end_ns, details, thread_id=job.thread_id
            )


def _pack(sums: GradientSums, planned: ChunkTransfer, message: Bytes) -> None:
    sums.pack(message, planned.chunk, planned.peer)


def _add(sums: GradientSums, planned: ChunkTransfer, message: Bytes, _: Bytes) -> None:
    sums.add_message(message, planned.chunk)


class RowPrefetch:
    """Finds the rows for an update while gradients are exchanged: each row as soon as the first
    gradient of its key was added.

    Args:
        requests: requests; rows are found for those with a storage.
        accumulators: sums of gradients, one per request.
        executor: executor on which rows are found.
    """

    def __init__(
        self, requests: Sequence[PushRequest], accumulators: Sequence[Any], executor: SerialExecutor
    ) -> None:
        self._requests = requests
        self._accumulators = accumulators
        self._executor = executor
        self._num_known = [0] * len(requests)
        self._parts: list[list[PullResult]] = [[] for _ in requests]
        self._jobs: list[Job] = []

    def advance(self) -> None:
        """Starts to find the rows of keys that were added since the last call."""
        for position, request in enumerate(self._requests):
            if request.storage is None:
                continue
            keys = self._accumulators[position].keys_from(self._num_known[position])
            if len(keys):
                self._num_known[position] += len(keys)
                self._jobs.append(self._executor.submit(partial(self._find, position, keys)))

    @property
    def is_done(self) -> bool:
        """Whether all finds have ended."""
        return all(job.is_done for job in self._jobs)

    @property
    def error(self) -> BaseException | None:
        """First error of a storage, or None."""
        return next((job.error for job in self._jobs if job.error is not None), None)

    def trace(self, trace: Trace | None) -> None:
        """Adds the spans of the finds to a trace."""
        if trace is not None:
            for job in self._jobs:
                trace.add("find", job.begin_ns, job.end_ns, {"of": "push"}, thread_id=job.thread_id)

    def found(self, position: int) -> PullResult | None:
        """Returns the rows of a request, in the order of the accumulator's keys."""
        if self._requests[position].storage is None or not self._parts[position]:
            return None
        parts = self._parts[position]
        if len(parts) == 1:
            return parts[0]
        return PullResult(
            np.concatenate([part.rows for part in parts]),
            np.concatenate([part.found for part in parts]),
        )

    def _find(self, position: int, keys: Keys) -> None:
        request = self._requests[position]
        assert request.storage is not None
        table = request.storage.table
        # Jobs of an executor run in order, so the parts are in the order of the keys.
        whole = Columns(0, table.width)
        self._parts[position].append(find_rows(request.storage, table, keys, whole))


def push_to_replicas(
    messenger: Messenger,
    requests: Sequence[PushRequest],
    codecs: Sequence[Codec],
    coming: npt.NDArray[np.int64],
) -> list[OwnedGradients]:
    """Sums the gradients of replicated tables of all ranks by key, with the same bits on every rank.

    Float addition depends on its order. Therefore every rank adds in the order of ranks, from 0, and
    rounds its own gradients to the wire dtype, as other ranks do.

    Args:
        messenger: sends and receives messages.
        requests: one request per replicated table.
        codecs: codec of each table's gradients.
        coming: ``(world_size, tables)``: keys of each table that each rank sends to every other rank.

    Raises:
        PeerFailure: a rank is gone or does not respond.
    """
    rank = messenger.collective.rank
    sums = GradientSums(requests, codecs, _to_one_owner(requests))
    counts = coming.copy()
    counts[rank] = [len(each.keys) for each in requests]
    chunks = [whole_stream(each) for each in counts]
    messages: list[Bytes | None] = [
        None if chunk is None else np.empty(gradient_bytes(chunk, codecs), np.uint8)
        for chunk in chunks
    ]
    transfers = [
        messenger.receive(MessageKind.GRADIENTS, messages[peer], peer, "replicas")
        for peer in messenger.earlier_ranks
        if messages[peer] is not None
    ]
    chunk, mine = chunks[rank], messages[rank]
    if chunk is not None and mine is not None:
        sums.pack(mine, chunk, 0)
        transfers += [
            messenger.send(MessageKind.GRADIENTS, mine, peer, "replicas")
            for peer in messenger.later_ranks
        ]
    for transfer in transfers:
        messenger.wait(transfer)
    for chunk, message in zip(chunks, messages, strict=True):
        if chunk is not None and message is not None:
            sums.add_message(message, chunk)
    return sums.take()


def _to_one_owner(requests: Sequence[PushRequest]) -> RoutedKeys:
    """Returns all keys as one stream."""
    sizes = [len(each.keys) for each in requests]
    orders, offsets = [np.arange(size) for size in sizes], [[0, size] for size in sizes]
    return RoutedKeys(orders, offsets, [each.keys for each in requests], 1)
