"""Owner pooling: owners return one partial pool a bag in place of its rows, and take gradients of bags.

    pull      ids, lengths of bags ──► dedup, find, pool ──► partial pools ──► added up by the asker
    push      gradients of these bags ──► expanded to keys by what the owner kept ──► added up by key
    backward  gradients of these bags ──► one number an id: the gradients of trained weights

An owner keeps the keys of the bags that it pooled in training. It drops those of a rank as soon as that
rank says, at its next lookup, that no gradient will come, and all of them when a step is over. So
where a step is refused or given up, nothing need be undone.

All ranks make the same lookups in the same order, so they number them alike: a gradient names its
lookup by that number. ``docs/decisions/owner-pooling.md`` says why it is done so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.results import Rows
from sparring.contracts.storage import Storage
from sparring.contracts.table import TableConfig
from sparring.exchange.answers import Answers, Question, Service
from sparring.exchange.bags import (
    STATUS_BYTES,
    AskedBags,
    BagRequest,
    KeptBags,
    OwnerBags,
    PooledBags,
    bag_bytes,
    divided,
    embeddings_of,
    gradient_bytes,
    pack_bags,
    pool_bytes,
    table_groups,
    unpack_bags,
)
from sparring.exchange.headers import Phase
from sparring.exchange.link import Buffers, MessageKind
from sparring.exchange.messages import (
    FAILED,
    KEY_BYTES,
    Codec,
    padded,
    storage_failed,
    write_failure,
)
from sparring.exchange.options import WireDtype
from sparring.exchange.session import ExchangeSession
from sparring.runtime.threads import SerialExecutor

__all__ = ["AddBags", "Gradients", "OwnerPooling"]

Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]

Gradients = list[tuple[KeptBags, Rows]]
"""What one rank has for one table: bags that this rank has pooled, and their gradients ``(b, dim)``."""

AddBags = Callable[[int, TableConfig, Gradients], None]
"""Takes what a rank has for a table, rank by rank around the ring."""


class OwnerPooling:
    """Pools of bags from their owners, and gradients back. One thread uses it.

    Args:
        session: of the exchange.
        executor: makes what runs finds and sums, for storages and a number of rows.
        buffers: memory for messages.
    """

    def __init__(
        self,
        session: ExchangeSession,
        executor: Callable[[Sequence[Storage | None], int], SerialExecutor],
        buffers: Buffers,
    ) -> None:
        self._session = session
        self._executor = executor
        self._buffers = buffers
        self._kept: list[dict[int, KeptBags]] = [{} for _ in range(session.world_size)]
        self.next_number = 0
        """Of the next lookup in training."""
        self.told_rows: set[str] = set()
        """Tables of which it was logged that rows are looked up."""
        self.has_lookups = False
        """Whether there was one since `forget`; the same on all ranks."""

    @property
    def num_kept(self) -> int:
        """Lookups of all ranks whose keys this rank keeps."""
        return sum(map(len, self._kept))

    def forget(self) -> None:
        """Drops what was kept: the step is over. All ranks call it at the same time."""
        self.has_lookups = False
        for kept in self._kept:
            kept.clear()

    def pull(
        self,
        requests: Sequence[BagRequest],
        *,
        is_training: bool,
        first_alive: int | None = None,
        error: BaseException | None = None,
    ) -> list[PooledBags]:
        """One pool for each bag; all ranks call it for the same tables at the same time.

        Args:
            requests: one for each table and kind of pooling, in the same order on all ranks.
            is_training: gradients will come.
            first_alive: the first lookup that may still get a gradient of this rank; None: none may.
            error: why this rank cannot take part. Then no rank does.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure: a rank is gone, silent, elsewhere, or could not read its rows.
            InvalidArgumentError: ranks were set up differently, or pool other tables.
        """
        session, count = self._session, len(requests)
        parts: list[list[OwnerBags]] = []
        if error is None:
            try:
                parts = [
                    divided(each, session.owners(each.table), session.world_size)
                    for each in requests
                ]
            except Exception as found:
                error = found
        mine = np.zeros((session.world_size, 2 * count + 1), np.int64)
        for table, by_owner in enumerate(parts):
            mine[:, table] = [len(each.places) for each in by_owner]
            mine[:, count + table] = [len(each.bags) for each in by_owner]
        mine[:, -1] = self.next_number if first_alive is None else first_alive
        phase = Phase.LOOKUP if is_training else Phase.READ
        with session.guard("pull", [each.table.name for each in requests]):
            coming = session.agree(phase, mine, list(map(_described, requests)), error)
            coming[session.rank] = mine[session.rank]
            for kept, alive in zip(self._kept, coming[:, -1].tolist(), strict=True):
                for number in [each for each in kept if each < alive]:
                    del kept[number]
            first = self.next_number if is_training else None
            if is_training:
                self.next_number += count
                self.has_lookups = True
            pools = _Pull(self, requests, parts, coming, first).run(mine)
        return [
            PooledBags(out, None if first is None else _asked(first + place, request, by_owner))
            for place, (out, request, by_owner) in enumerate(
                zip(pools, requests, parts, strict=True)
            )
        ]

    def push(
        self,
        tables: Sequence[TableConfig],
        given: Sequence[tuple[AskedBags, Rows]],
        add: AddBags,
        error: BaseException | None = None,
    ) -> BaseException | None:
        """Gradients of bags to the owners of their rows; all ranks call it.

        Args:
            tables: all that owners may have pooled bags of, in the same order on all ranks.
            given: the gradients ``(bags, dim)`` of this rank, those of means not yet divided.
            add: takes what comes, on the executor: that of this rank first, then that of the rank
                before it, and so on around the ring.
            error: why this rank cannot apply the step. Then no rank pushes.

        Returns:
            Why this rank cannot take what came, too late to tell the other ranks here.

        Raises:
            BaseException: `error`, or in its place another rank's, naming that rank.
            PeerFailure: a rank is gone, silent or elsewhere.
            InvalidArgumentError: ranks were set up differently.
        """
        session = self._session
        by_table: dict[str, list[tuple[AskedBags, Rows]]] = {each.name: [] for each in tables}
        for asked, gradient in sorted(given, key=lambda each: each[0].number):
            by_table[asked.table.name].append((asked, _shared(asked, gradient)))
        mine = np.zeros((session.world_size, 2 * len(tables)), np.int64)
        for place, table in enumerate(tables):
            for owner in range(session.world_size):
                sizes = [len(asked.parts[owner].bags) for asked, _ in by_table[table.name]]
                mine[owner, place] = sum(sizes)
                mine[owner, len(tables) + place] = np.count_nonzero(sizes)
        names = [f"{each.name}, pooled by owners" for each in tables]
        with session.guard("push", [each.name for each in tables]):
            coming = session.agree(Phase.PUSH, mine, names, error)
            return _Push(self, tables, [by_table[each.name] for each in tables], coming, add).run(
                mine
            )

    def weight_gradients(
        self, asked: Sequence[AskedBags], gradients: Sequence[Rows | None]
    ) -> list[npt.NDArray[Any]]:
        """The gradient ``(ids,)`` of the weights of each of the requests of one `pull`; all ranks call it.

        Args:
            asked: all of a pull whose requests train weights.
            gradients: of each ``(bags, dim)``; None: none came, and those of its weights are zeros.

        Raises:
            PeerFailure: a rank is gone, silent, elsewhere, or failed.
        """
        session = self._session
        mine = np.zeros((session.world_size, len(asked)), np.int64)
        for place, (each, gradient) in enumerate(zip(asked, gradients, strict=True)):
            if gradient is not None:
                mine[:, place] = [len(part.bags) for part in each.parts]
        names = [f"{each.table.name}, gradients of weights" for each in asked]
        with session.guard("backward", [each.table.name for each in asked]):
            coming = session.agree(Phase.BACKWARD, mine, names)
            return _WeightGradients(self, asked, gradients, coming).run(mine)

    # -- what the three exchanges share

    def kept_of(self, rank: int, number: int) -> KeptBags:
        """The bags of a rank that this one has pooled."""
        return self._kept[rank][number]

    def keep(self, rank: int, number: int, bags: KeptBags) -> None:
        """Keeps bags of a rank until the step is over."""
        self._kept[rank][number] = bags

    def codecs(self, tables: Sequence[TableConfig], wire_dtype: WireDtype | str) -> list[Codec]:
        """How numbers of the dims of `tables` travel."""
        assert isinstance(wire_dtype, WireDtype)
        return [Codec(each.computing_dtype, each.dim, wire_dtype) for each in tables]


class _Round:
    """One exchange with all other ranks: `question` and `service` say what travels."""

    kind = MessageKind.GRADIENTS
    verb = "add up"

    def __init__(
        self,
        pooling: OwnerPooling,
        tables: Sequence[TableConfig],
        coming: Counts,
        wire_dtype: WireDtype | str,
    ) -> None:
        self.pooling = pooling
        self.session = pooling._session
        self.rank = self.session.rank
        self.tables = tables
        self.codecs = pooling.codecs(tables, wire_dtype)
        self.coming = coming

    def go(
        self, mine: Counts, storages: Sequence[Storage | None], own: Callable[[], None]
    ) -> BaseException | None:
        """Drives it to its end; returns what failed on this rank.

        Args:
            mine: ``(world_size, columns)``: the first of them say how many rows of each table go to
                each rank, as those of `coming` say what comes from it.
        """
        world_size, count = self.session.world_size, len(self.tables)
        most = self.session.chunk_rows(self.codecs)
        num_rows = int(self.coming[:, :count].sum() + mine[self.rank, :count].sum())
        asked = [(self.rank + hop) % world_size for hop in range(1, world_size)]
        served = [(self.rank - hop) % world_size for hop in range(1, world_size)]
        return Answers(
            self.session.link,
            self.pooling._executor(storages, num_rows),
            self.pooling._buffers,
            self.session.options.chunks_in_flight,
            self.kind,
            self.verb,
        ).run(
            self._made(asked, mine[:, :count], most, self.question),
            self._made(served, self.coming[:, :count], most, self.service),
            own,
        )

    def _made(
        self,
        peers: Sequence[int],
        counts: Counts,
        most: int,
        make: Callable[[int, str, list[int]], Any],
    ) -> Iterator[Any]:
        for hop, peer in enumerate(peers, start=1):
            for number, group in enumerate(table_groups(counts[peer], most)):
                yield make(peer, f"hop {hop} chunk {number}", group)

    def question(self, peer: int, label: str, group: list[int]) -> Question:
        raise NotImplementedError

    def service(self, peer: int, label: str, group: list[int]) -> Service:
        raise NotImplementedError


class _Pull(_Round):
    """One pull of `OwnerPooling`."""

    kind = MessageKind.KEYS
    verb = "find"

    def __init__(
        self,
        pooling: OwnerPooling,
        requests: Sequence[BagRequest],
        parts: Sequence[Sequence[OwnerBags]],
        coming: Counts,
        first_number: int | None,
    ) -> None:
        options = pooling._session.options
        super().__init__(pooling, [each.table for each in requests], coming, options.row_wire_dtype)
        self.requests, self.parts, self.first_number = requests, parts, first_number
        self.outputs = [
            np.zeros((each.num_bags, each.table.dim), each.table.computing_dtype)
            for each in requests
        ]
        self.own: list[tuple[OwnerBags, Rows, Rows]] = []

    def run(self, mine: Counts) -> list[Rows]:
        """The pools of each request."""
        error = self.go(mine, [each.storage for each in self.requests], self._pool_own)
        if error is not None:
            raise error
        for part, pools, out in self.own:
            _add_pools(pools, part, out)
        for request, out in zip(self.requests, self.outputs, strict=True):
            if request.is_mean:
                out /= np.maximum(np.diff(request.offsets), 1).astype(out.dtype)[:, None]
        return self.outputs

    def _pool_own(self) -> None:
        for table, request in enumerate(self.requests):
            part = self.parts[table][self.rank]
            if len(part.places):
                offsets = np.zeros(len(part.bags) + 1, np.int64)
                np.cumsum(part.lengths, out=offsets[1:])
                weights = None if request.weights is None else request.weights[part.places]
                pools = self._pooled(self.rank, table, request.ids[part.places], offsets, weights)
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
        rows = embeddings_of(request.storage, request.table, keys)
        if self.first_number is not None:
            kept_rows = rows if request.trains_weights else None
            kept = KeptBags(request.table, keys, inverse, offsets, weights, kept_rows)
            self.pooling.keep(asker, self.first_number + table, kept)
        pools: Rows = _native.pool(rows, inverse, offsets, "sum", weights, out)
        return pools

    def question(self, peer: int, label: str, group: list[int]) -> Question:
        parts = [(self.requests[table], self.parts[table][peer]) for table in group]
        sizes = [bag_bytes(request, len(part.places), len(part.bags)) for request, part in parts]
        answer = [
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
            for table, size, (_, part) in zip(group, answer, parts, strict=True):
                codec, count = self.codecs[table], len(part.bags)
                pools = codec.decode(message[at : at + count * codec.row_bytes], count)
                _add_pools(pools, part, self.outputs[table])
                at += size

        return Question(peer, label, sum(sizes), pack, sum(answer) + STATUS_BYTES, take)

    def service(self, peer: int, label: str, group: list[int]) -> Service:
        columns = len(self.requests)
        counts = [
            (int(self.coming[peer, table]), int(self.coming[peer, columns + table]))
            for table in group
        ]
        sizes = [
            bag_bytes(self.requests[table], *each)
            for table, each in zip(group, counts, strict=True)
        ]
        answer = [
            pool_bytes(self.codecs[table], num_bags)
            for table, (_, num_bags) in zip(group, counts, strict=True)
        ]

        def serve(message: Bytes, reply: Bytes) -> None:
            at = to = 0
            for table, (num_ids, num_bags), size, room in zip(
                group, counts, sizes, answer, strict=True
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

        return Service(peer, label, sum(sizes), serve, sum(answer) + STATUS_BYTES, write_failure)


class _Push(_Round):
    """One push of `OwnerPooling`."""

    def __init__(
        self,
        pooling: OwnerPooling,
        tables: Sequence[TableConfig],
        given: Sequence[Sequence[tuple[AskedBags, Rows]]],
        coming: Counts,
        add: AddBags,
    ) -> None:
        super().__init__(pooling, tables, coming, pooling._session.options.gradient_wire_dtype)
        self.given, self.add = given, add

    def run(self, mine: Counts) -> BaseException | None:
        return self.go(mine, [], self._add_own)

    def _parts(self, table: int, owner: int) -> list[tuple[int, OwnerBags, Rows]]:
        return [
            (asked.number, asked.parts[owner], gradient)
            for asked, gradient in self.given[table]
            if len(asked.parts[owner].bags)
        ]

    def _add_own(self) -> None:
        for table, config in enumerate(self.tables):
            found = [
                (self.pooling.kept_of(self.rank, number), _of_bags(gradient, part))
                for number, part, gradient in self._parts(table, self.rank)
            ]
            if found:
                self.add(self.rank, config, found)

    def question(self, peer: int, label: str, group: list[int]) -> Question:
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

        return Question(peer, label, sum(sizes), pack)

    def service(self, peer: int, label: str, group: list[int]) -> Service:
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
                    kept = self.pooling.kept_of(peer, number)
                    end = at + kept.num_bags * codec.row_bytes
                    found.append((kept, codec.decode(message[at:end], kept.num_bags)))
                    at += pool_bytes(codec, kept.num_bags)
                self.add(peer, self.tables[table], found)
                begin += size

        return Service(peer, label, sum(sizes), serve)


class _WeightGradients(_Round):
    """Gradients of weights, from their owners."""

    verb = "gradients of weights"

    def __init__(
        self,
        pooling: OwnerPooling,
        asked: Sequence[AskedBags],
        gradients: Sequence[Rows | None],
        coming: Counts,
    ) -> None:
        options = pooling._session.options
        tables = [each.table for each in asked]
        super().__init__(pooling, tables, coming, options.gradient_wire_dtype)
        self.asked = asked
        self.gradients = [
            None if each is None else _shared(bags, each)
            for bags, each in zip(asked, gradients, strict=True)
        ]
        self.outputs = [np.zeros(each.num_ids, each.table.computing_dtype) for each in asked]

    def run(self, mine: Counts) -> list[npt.NDArray[Any]]:
        error = self.go(mine, [], self._take_own)
        if error is not None:
            raise error
        return self.outputs

    def _take_own(self) -> None:
        for place, (each, gradient) in enumerate(zip(self.asked, self.gradients, strict=True)):
            part = each.parts[self.rank]
            if gradient is not None and len(part.bags):
                kept = self.pooling.kept_of(self.rank, each.number)
                self.outputs[place][part.places] = kept.of_weights(_of_bags(gradient, part))

    def question(self, peer: int, label: str, group: list[int]) -> Question:
        parts = [self.asked[table].parts[peer] for table in group]
        sizes = [
            pool_bytes(self.codecs[table], len(part.bags))
            for table, part in zip(group, parts, strict=True)
        ]
        answer = [
            padded(len(part.places) * self.tables[table].computing_dtype.itemsize)
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
            for table, part, size in zip(group, parts, answer, strict=True):
                out = self.outputs[table]
                end = at + len(part.places) * out.itemsize
                out[part.places] = message[at:end].view(out.dtype)
                at += size

        return Question(peer, label, sum(sizes), pack, sum(answer) + STATUS_BYTES, take)

    def service(self, peer: int, label: str, group: list[int]) -> Service:
        kept = [self.pooling.kept_of(peer, self.asked[table].number) for table in group]
        sizes = [
            pool_bytes(self.codecs[table], each.num_bags)
            for table, each in zip(group, kept, strict=True)
        ]
        answer = [
            padded(len(each.inverse) * self.tables[table].computing_dtype.itemsize)
            for table, each in zip(group, kept, strict=True)
        ]

        def serve(message: Bytes, reply: Bytes) -> None:
            at = to = 0
            for table, each, size, room in zip(group, kept, sizes, answer, strict=True):
                codec = self.codecs[table]
                end = at + each.num_bags * codec.row_bytes
                found = each.of_weights(codec.decode(message[at:end], each.num_bags))
                reply[to : to + found.nbytes] = found.view(np.uint8)
                reply[to + found.nbytes : to + room] = 0
                at, to = at + size, to + room
            reply[to:] = 0

        return Service(peer, label, sum(sizes), serve, sum(answer) + STATUS_BYTES, write_failure)


def _described(request: BagRequest) -> str:
    weights = "" if request.weights is None else ", weighted"
    trained = ", weights are trained" if request.trains_weights else ""
    return f"{request.table.name}, pooled by owners{weights}{trained}"


def _asked(number: int, request: BagRequest, parts: Sequence[OwnerBags]) -> AskedBags:
    shares = None
    if request.is_mean:
        dtype = request.table.computing_dtype
        lengths = np.maximum(np.diff(request.offsets), 1).astype(dtype)[:, None]
        shares = np.ones(1, dtype) / lengths
    return AskedBags(number, request.table, parts, request.num_bags, shares, len(request.ids))


def _shared(asked: AskedBags, gradient: Rows) -> Rows:
    """The gradient of each sum, from that of each pool."""
    shared: Rows = gradient if asked.shares is None else gradient * asked.shares
    return shared


def _add_pools(pools: Rows, part: OwnerBags, out: Rows) -> None:
    if len(part.bags) == len(out):
        out += pools
    else:
        out[part.bags] += pools  # no bag twice


def _of_bags(gradient: Rows, part: OwnerBags) -> Rows:
    if len(part.bags) == len(gradient):
        return gradient
    taken: Rows = _native.gather(gradient, part.bags)
    return taken


def _encode_bags(codec: Codec, gradient: Rows, part: OwnerBags, wire: Bytes) -> None:
    out = codec.view(wire, len(part.bags))
    if out is None:
        codec.encode(_of_bags(gradient, part), wire)
    else:
        _native.gather(gradient, part.bags, out)


def _check_answer(message: Bytes, owner: int) -> None:
    if message[-1] == FAILED:
        raise storage_failed(owner)
