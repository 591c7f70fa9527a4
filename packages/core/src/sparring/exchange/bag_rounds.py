"""Exchanges for tables whose rows are pooled by their owners; each exchange is a class.

Each class defines the requests to other ranks, how requests of other ranks are served, and the work for
this rank itself; `RequestReplies` exchanges them. ``exchange/bags.py`` contains the layout of the
messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.ranks.exchange_options import WireDtype
from sparring.contracts.storage.results import Rows
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.exchange.bags import (
    STATUS_BYTES,
    BagRequest,
    OwnerBags,
    RequestedBags,
    ServedBags,
    bag_bytes,
    compute_lengths,
    find_embeddings,
    gradient_bytes,
    group_tables,
    pack_bags,
    pool_bytes,
    unpack_bags,
)
from sparring.exchange.messages import (
    FAILED,
    KEY_BYTES,
    Codec,
    align_bytes,
    compute_memory_bytes,
    make_storage_failure,
    write_failure,
)
from sparring.exchange.messenger import Buffers, MessageKind
from sparring.exchange.request_replies import IncomingRequest, OutgoingRequest, RequestReplies
from sparring.exchange.session import ExchangeSession
from sparring.runtime.threads import SerialExecutor

__all__ = [
    "AddBags",
    "Gradients",
    "PullRound",
    "PushRound",
    "SharedParts",
    "WeightRound",
    "scale_gradient",
]

Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]

Gradients = list[tuple[ServedBags, Rows]]
"""Gradients of one rank for one table: bags that this rank has pooled, with their gradients ``(b,
dim)``."""

AddBags = Callable[[int, TableConfig, Gradients], None]
"""Function that processes the gradients of one rank for a table. It is called rank by rank around the
ring."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """Objects that all exchanges of owner pooling share.

    Args:
        session: session of the exchange.
        executor: creates the executor of finds and sums, given the storages and the bytes of the rows.
        buffers: buffers of messages.
        kept: for each rank, the bags that this rank has pooled for it, by number of the lookup.
    """

    session: ExchangeSession
    executor: Callable[[Sequence[Storage | None], int], SerialExecutor]
    buffers: Buffers
    kept: Sequence[dict[int, ServedBags]]


@dataclass(frozen=True, slots=True)
class _Round:
    """One exchange with all other ranks.

    Args:
        shared: shared objects.
        codecs: codec of the rows of each table.
        coming: ``(world_size, columns)``: the first columns contain the number of rows of each table
            from each rank.
        kind: kind of the requests.
        verb: name of the spans of served requests.
    """

    shared: SharedParts
    codecs: Sequence[Codec]
    coming: Counts
    kind: MessageKind
    verb: str

    def run(
        self,
        mine: Counts,
        storages: Sequence[Storage | None],
        question: Callable[[int, str, list[int]], OutgoingRequest],
        service: Callable[[int, str, list[int]], IncomingRequest],
        own: Callable[[], None],
    ) -> BaseException | None:
        """Runs the exchange, and returns the error of this rank.

        Args:
            mine: numbers of the rows that are sent to each rank, with the shape of `coming`.
            storages: storages in which the executor finds rows.
            question: creates the request to a rank for a group of tables.
            service: creates the incoming request of a rank for a group of tables.
            own: serves this rank's request to itself.
        """
        session, count = self.shared.session, len(self.codecs)
        num_rows = self.coming[:, :count].sum(axis=0) + mine[session.rank, :count]
        num_bytes = compute_memory_bytes(self.codecs, num_rows)
        requested, served = session.messenger.later_ranks, session.messenger.earlier_ranks
        return RequestReplies(
            session.messenger,
            self.shared.executor(storages, num_bytes),
            self.shared.buffers,
            session.options.chunks_in_flight,
            self.kind,
            self.verb,
        ).run(
            self._made(requested, mine[:, :count], question),
            self._made(served, self.coming[:, :count], service),
            own,
        )

    def _made(
        self, peers: Sequence[int], counts: Counts, make: Callable[[int, str, list[int]], Any]
    ) -> Iterator[Any]:
        most = self.shared.session.chunk_rows(self.codecs)
        for hop, peer in enumerate(peers, start=1):
            for number, group in enumerate(group_tables(counts[peer], most)):
                yield make(peer, f"hop {hop} chunk {number}", group)


def _codecs(tables: Sequence[TableConfig], wire_dtype: WireDtype | str) -> list[Codec]:
    assert isinstance(wire_dtype, WireDtype)
    return [Codec(each.computing_dtype, each.dim, wire_dtype) for each in tables]


class PullRound:
    """A pull of `OwnerPooling`."""

    def __init__(
        self,
        shared: SharedParts,
        requests: Sequence[BagRequest],
        parts: Sequence[Sequence[OwnerBags]],
        coming: Counts,
        first_number: int | None,
    ) -> None:
        self.shared, self.coming = shared, coming
        tables = [each.table for each in requests]
        self.codecs = _codecs(tables, shared.session.options.row_wire_dtype)
        self.requests, self.parts, self.first_number = requests, parts, first_number
        self.outputs = [
            np.zeros((each.num_bags, each.table.dim), each.table.computing_dtype)
            for each in requests
        ]
        self.own: list[tuple[OwnerBags, Rows, Rows]] = []

    def run(self, mine: Counts) -> list[Rows]:
        """Returns the pools of each request."""
        storages = [each.storage for each in self.requests]
        error = _Round(self.shared, self.codecs, self.coming, MessageKind.KEYS, "find").run(
            mine, storages, self._question, self._service, self._pool_own
        )
        if error is not None:
            raise error
        for part, pools, out in self.own:
            _add_pools(pools, part, out)
        for request, out in zip(self.requests, self.outputs, strict=True):
            if request.is_mean:
                np.divide(out, compute_lengths(request), out=out)
        return self.outputs

    def _pool_own(self) -> None:
        for table, request in enumerate(self.requests):
            part = self.parts[table][self.shared.session.rank]
            if len(part.positions):
                offsets = np.zeros(len(part.bags) + 1, np.int64)
                np.cumsum(part.lengths, out=offsets[1:])
                weights = None if request.weights is None else request.weights[part.positions]
                pools = self._pooled(
                    self.shared.session.rank, table, request.ids[part.positions], offsets, weights
                )
                self.own.append((part, pools, self.outputs[table]))

    def _pooled(
        self,
        asker: int,
        table: int,
        ids: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        weights: npt.NDArray[Any] | None,
        out: Rows | None = None,
    ) -> Rows:
        request = self.requests[table]
        keys, inverse = _native.dedup(ids)
        rows = find_embeddings(request, keys)
        if self.first_number is not None:
            kept_rows = rows if request.trains_weights else None
            kept = ServedBags(request.table, keys, inverse, offsets, weights, kept_rows)
            self.shared.kept[asker][self.first_number + table] = kept
        pools: Rows = _native.pool(rows, inverse, offsets, "sum", weights, out)
        return pools

    def _question(self, peer: int, label: str, group: list[int]) -> OutgoingRequest:
        parts = [(self.requests[table], self.parts[table][peer]) for table in group]
        sizes = [bag_bytes(request, len(part.positions), len(part.bags)) for request, part in parts]
        reply_sizes = [
            pool_bytes(self.codecs[table], len(part.bags))
            for table, (_, part) in zip(group, parts, strict=True)
        ]

        def pack(message: Bytes) -> None:
            at = 0
            for (request, part), size in zip(parts, sizes, strict=True):
                pack_bags(message[at : at + size], request, part)
                at += size

        def take(message: Bytes) -> None:
            _check_answer(message, peer)
            at = 0
            for table, size, (_, part) in zip(group, reply_sizes, parts, strict=True):
                codec, count = self.codecs[table], len(part.bags)
                pools = codec.decode(message[at : at + count * codec.row_bytes], count)
                _add_pools(pools, part, self.outputs[table])
                at += size

        return OutgoingRequest(peer, label, sum(sizes), pack, sum(reply_sizes) + STATUS_BYTES, take)

    def _service(self, peer: int, label: str, group: list[int]) -> IncomingRequest:
        columns = len(self.requests)
        counts = [
            (int(self.coming[peer, table]), int(self.coming[peer, columns + table]))
            for table in group
        ]
        sizes = [
            bag_bytes(self.requests[table], *each)
            for table, each in zip(group, counts, strict=True)
        ]
        reply_sizes = [
            pool_bytes(self.codecs[table], num_bags)
            for table, (_, num_bags) in zip(group, counts, strict=True)
        ]

        def serve(message: Bytes, reply: Bytes) -> None:
            at = to = 0
            for table, (num_ids, num_bags), size, room in zip(
                group, counts, sizes, reply_sizes, strict=True
            ):
                codec = self.codecs[table]
                bags = unpack_bags(message[at : at + size], self.requests[table], num_ids, num_bags)
                end = to + num_bags * codec.row_bytes
                view = codec.view(reply[to:end], num_bags)
                pools = self._pooled(peer, table, *bags, view)
                if view is None:
                    codec.encode(pools, reply[to:end])
                reply[end : to + room] = 0
                at, to = at + size, to + room
            reply[to:] = 0

        return IncomingRequest(
            peer, label, sum(sizes), serve, sum(reply_sizes) + STATUS_BYTES, write_failure
        )


class PushRound:
    """A push of `OwnerPooling`."""

    def __init__(
        self,
        shared: SharedParts,
        tables: Sequence[TableConfig],
        given: Sequence[Sequence[tuple[RequestedBags, Rows]]],
        coming: Counts,
        add: AddBags,
    ) -> None:
        self.shared, self.tables, self.coming = shared, tables, coming
        self.codecs = _codecs(tables, shared.session.options.gradient_wire_dtype)
        self.given, self.add = given, add

    def run(self, mine: Counts) -> BaseException | None:
        return _Round(self.shared, self.codecs, self.coming, MessageKind.GRADIENTS, "add up").run(
            mine, [], self._question, self._service, self._add_own
        )

    def _parts(self, table: int, owner: int) -> list[tuple[int, OwnerBags, Rows]]:
        return [
            (requested.number, requested.parts[owner], gradient)
            for requested, gradient in self.given[table]
            if len(requested.parts[owner].bags)
        ]

    def _add_own(self) -> None:
        for table, config in enumerate(self.tables):
            found = [
                (self.shared.kept[self.shared.session.rank][number], _gather_bags(gradient, part))
                for number, part, gradient in self._parts(table, self.shared.session.rank)
            ]
            if found:
                self.add(self.shared.session.rank, config, found)

    def _question(self, peer: int, label: str, group: list[int]) -> OutgoingRequest:
        parts = [self._parts(table, peer) for table in group]
        sizes = [
            gradient_bytes(
                self.codecs[table], len(each), sum(len(part.bags) for _, part, _ in each)
            )
            for table, each in zip(group, parts, strict=True)
        ]

        def pack(message: Bytes) -> None:
            begin = 0
            for table, each, size in zip(group, parts, sizes, strict=True):
                codec, at = self.codecs[table], begin + len(each) * KEY_BYTES
                message[begin:at].view(np.int64)[:] = [number for number, _, _ in each]
                for _, part, gradient in each:
                    end = at + len(part.bags) * codec.row_bytes
                    _encode_bags(codec, gradient, part, message[at:end])
                    at += pool_bytes(codec, len(part.bags))
                    message[end:at] = 0
                begin += size
                message[at:begin] = 0

        return OutgoingRequest(peer, label, sum(sizes), pack)

    def _service(self, peer: int, label: str, group: list[int]) -> IncomingRequest:
        count = len(self.tables)
        sizes = [
            gradient_bytes(
                self.codecs[table],
                int(self.coming[peer, count + table]),
                int(self.coming[peer, table]),
            )
            for table in group
        ]

        def serve(message: Bytes, _: Bytes) -> None:
            begin = 0
            for table, size in zip(group, sizes, strict=True):
                codec, found = self.codecs[table], Gradients()
                at = begin + int(self.coming[peer, count + table]) * KEY_BYTES
                for number in message[begin:at].view(np.int64).tolist():
                    kept = self.shared.kept[peer][number]
                    end = at + kept.num_bags * codec.row_bytes
                    found.append((kept, codec.decode(message[at:end], kept.num_bags)))
                    at += pool_bytes(codec, kept.num_bags)
                self.add(peer, self.tables[table], found)
                begin += size

        return IncomingRequest(peer, label, sum(sizes), serve)


class WeightRound:
    """An exchange of `OwnerPooling` for the gradients of weights, which owners compute."""

    def __init__(
        self,
        shared: SharedParts,
        requested: Sequence[RequestedBags],
        gradients: Sequence[Rows | None],
        coming: Counts,
    ) -> None:
        self.shared, self.coming, self.requested = shared, coming, requested
        self.tables = [each.table for each in requested]
        self.codecs = _codecs(self.tables, shared.session.options.gradient_wire_dtype)
        self.gradients = [
            None if each is None else scale_gradient(bags, each)
            for bags, each in zip(requested, gradients, strict=True)
        ]
        self.outputs = [np.zeros(each.num_ids, each.table.computing_dtype) for each in requested]

    def run(self, mine: Counts) -> list[npt.NDArray[Any]]:
        verb = "gradients of weights"
        error = _Round(self.shared, self.codecs, self.coming, MessageKind.GRADIENTS, verb).run(
            mine, [], self._question, self._service, self._take_own
        )
        if error is not None:
            raise error
        return self.outputs

    def _take_own(self) -> None:
        for position, (each, gradient) in enumerate(
            zip(self.requested, self.gradients, strict=True)
        ):
            part = each.parts[self.shared.session.rank]
            if gradient is not None and len(part.bags):
                kept = self.shared.kept[self.shared.session.rank][each.number]
                self.outputs[position][part.positions] = kept.weight_gradient(
                    _gather_bags(gradient, part)
                )

    def _question(self, peer: int, label: str, group: list[int]) -> OutgoingRequest:
        parts = [self.requested[table].parts[peer] for table in group]
        sizes = [
            pool_bytes(self.codecs[table], len(part.bags))
            for table, part in zip(group, parts, strict=True)
        ]
        reply_sizes = [
            align_bytes(len(part.positions) * self.tables[table].computing_dtype.itemsize)
            for table, part in zip(group, parts, strict=True)
        ]

        def pack(message: Bytes) -> None:
            at = 0
            for table, part, size in zip(group, parts, sizes, strict=True):
                codec, gradient = self.codecs[table], self.gradients[table]
                assert gradient is not None
                end = at + len(part.bags) * codec.row_bytes
                _encode_bags(codec, gradient, part, message[at:end])
                at += size
                message[end:at] = 0

        def take(message: Bytes) -> None:
            _check_answer(message, peer)
            at = 0
            for table, part, size in zip(group, parts, reply_sizes, strict=True):
                out = self.outputs[table]
                end = at + len(part.positions) * out.itemsize
                out[part.positions] = message[at:end].view(out.dtype)
                at += size

        return OutgoingRequest(peer, label, sum(sizes), pack, sum(reply_sizes) + STATUS_BYTES, take)

    def _service(self, peer: int, label: str, group: list[int]) -> IncomingRequest:
        kept = [self.shared.kept[peer][self.requested[table].number] for table in group]
        sizes = [
            pool_bytes(self.codecs[table], each.num_bags)
            for table, each in zip(group, kept, strict=True)
        ]
        reply_sizes = [
            align_bytes(len(each.inverse) * self.tables[table].computing_dtype.itemsize)
            for table, each in zip(group, kept, strict=True)
        ]

        def serve(message: Bytes, reply: Bytes) -> None:
            at = to = 0
            for table, each, size, room in zip(group, kept, sizes, reply_sizes, strict=True):
                codec = self.codecs[table]
                end = at + each.num_bags * codec.row_bytes
                found = each.weight_gradient(codec.decode(message[at:end], each.num_bags))
                reply[to : to + found.nbytes] = found.view(np.uint8)
                reply[to + found.nbytes : to + room] = 0
                at, to = at + size, to + room
            reply[to:] = 0

        return IncomingRequest(
            peer, label, sum(sizes), serve, sum(reply_sizes) + STATUS_BYTES, write_failure
        )


def scale_gradient(requested: RequestedBags, gradient: Rows) -> Rows:
    """Returns the gradient of each sum, given the gradient of each pool."""
    shared: Rows = gradient if requested.shares is None else gradient * requested.shares
    return shared


def _add_pools(pools: Rows, part: OwnerBags, out: Rows) -> None:
    if len(part.bags) == len(out):
        out += pools
    else:
        out[part.bags] += pools  # no bag twice


def _gather_bags(gradient: Rows, part: OwnerBags) -> Rows:
    if len(part.bags) == len(gradient):
        return gradient
    taken: Rows = _native.gather(gradient, part.bags)
    return taken


def _encode_bags(codec: Codec, gradient: Rows, part: OwnerBags, wire: Bytes) -> None:
    out = codec.view(wire, len(part.bags))
    if out is None:
        codec.encode(_gather_bags(gradient, part), wire)
    else:
        _native.gather(gradient, part.bags, out)


def _check_answer(message: Bytes, owner: int) -> None:
    if message[-1] == FAILED:
        raise make_storage_failure(owner)
