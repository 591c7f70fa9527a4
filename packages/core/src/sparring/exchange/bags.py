"""Bags of ids that their owners pool: how they are divided by owner, and how they travel.

The asker sends to each owner the ids that it owns, in the order of the bags, and how many of them each
bag has; bags of which an owner has no id are left out. The owner needs no more: it returns one partial
pool for each of these bags, and the asker knows where they belong. A mean is the asker's affair: it
divides sums and gradients by the lengths of whole bags.

    ids    a b │   │ c d e          owner 0 has a, c, d         owner 1 has b, e
    bags    0    1     2            lengths 1 2, bags 0 2       lengths 1 1, bags 0 2

What a message has of one table begins on a multiple of 8 bytes:

    bags        ┌──────────────┬────────────────────┬─────────┬──────────────┬─────────┐
                │ n ids, int64 │ b lengths, uint32  │ padding │ n weights *  │ padding │
                └──────────────┴────────────────────┴─────────┴──────────────┴─────────┘
    pools       ┌──────────────┬─────────┐
                │ b pools      │ padding │     8 bytes at the end of the message: has the owner failed?
                └──────────────┴─────────┘
    gradients   ┌──────────────────────┬────────────────────────┬─────────────────────┐
                │ k numbers of lookups │ b gradients of each    │ padding, about 8 k  │
                └──────────────────────┴────────────────────────┴─────────────────────┘

    * where ids have weights
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.storage.results import Columns, Keys, Rows
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.exchange.messages import KEY_BYTES, Codec, align_bytes, find_rows
from sparring.kernels.cpu import HOST
from sparring.kernels.functions import decode

__all__ = [
    "STATUS_BYTES",
    "RequestedBags",
    "BagRequest",
    "ServedBags",
    "OwnerBags",
    "PooledBags",
    "bag_bytes",
    "split_by_owner",
    "find_embeddings",
    "gradient_bytes",
    "compute_lengths",
    "pack_bags",
    "pool_bytes",
    "group_tables",
    "unpack_bags",
]

STATUS_BYTES = 8
"""Of the end of an owner's answer."""

_LENGTH_BYTES = 4

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BagRequest:
    """Bags of one table that are wanted, one pool each.

    Args:
        storage: this rank's shard, or None where it holds no rows yet.
        table: name, dim, dtype and initializer.
        ids: ``(n,)``, with repeats.
        offsets: ``(b + 1,)``, never falling, from 0 to n.
        is_mean: divide each sum by the number of ids in its bag.
        weights: ``(n,)`` of the computing dtype, by which rows are multiplied; None: there are none.
        trains_weights: gradients of the weights will be asked for.
        initialize: puts initial values where no row was found, given rows, keys and found; None:
            those of the table.
    """

    storage: Storage | None
    table: TableConfig
    ids: Index
    offsets: Index
    is_mean: bool = False
    weights: npt.NDArray[Any] | None = None
    trains_weights: bool = False
    initialize: Callable[[Rows, Keys, npt.NDArray[np.bool_]], None] | None = None

    @property
    def num_bags(self) -> int:
        """How many bags there are, empty ones among them."""
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class OwnerBags:
    """The part of some bags whose rows one rank owns."""

    positions: Index
    """``(n,)``: its ids among those of the request; none where an asker keeps only bags."""
    bags: Index
    """``(b,)``, rising: the bags that have any of them."""
    lengths: npt.NDArray[np.uint32]
    """``(b,)``: how many."""


@dataclass(frozen=True, slots=True)
class RequestedBags:
    """Bags of an asker, as it keeps them until their gradient has gone out.

    Args:
        number: of this lookup of this table; the same on all ranks.
        table: name, dim and dtype.
        parts: one for each rank.
        num_bags: of the request.
        shares: ``(b, 1)``: one over the length of each bag; None: sums.
        num_ids: of the request.
    """

    number: int
    table: TableConfig
    parts: Sequence[OwnerBags]
    num_bags: int
    shares: npt.NDArray[Any] | None
    num_ids: int


@dataclass(frozen=True, slots=True)
class ServedBags:
    """Bags that an owner has pooled, as it keeps them until the step is over.

    Args:
        table: name, dim and dtype.
        keys: ``(u,)``, the distinct ids.
        inverse: ``(n,)``, the key of each id.
        offsets: ``(b + 1,)``
        weights: ``(n,)`` or None.
        rows: ``(u, dim)``, kept only where gradients of the weights will be asked for.
    """

    table: TableConfig
    keys: Keys
    inverse: Index
    offsets: Index
    weights: npt.NDArray[Any] | None
    rows: Rows | None

    @property
    def num_bags(self) -> int:
        return len(self.offsets) - 1

    def by_key(self, gradient: Rows) -> Rows:
        """The gradient of each key ``(u, dim)``, from that of each bag."""
        by_key: Rows = _native.pool_backward(
            gradient, self.inverse, self.offsets, len(self.keys), "sum", self.weights
        )
        return by_key

    def weight_gradient(self, gradient: Rows) -> npt.NDArray[Any]:
        """The gradient of each weight ``(n,)``, from that of each bag."""
        assert self.rows is not None
        found: npt.NDArray[Any] = _native.pool_weight_gradient(
            gradient, self.rows, self.inverse, self.offsets, "sum"
        )
        return found


@dataclass(frozen=True, slots=True)
class PooledBags:
    """Pools of one request."""

    pools: Rows
    """``(b, dim)`` of the computing dtype; zeros where a bag is empty."""
    requested: RequestedBags | None
    """None where no gradient will come."""


def split_by_owner(
    request: BagRequest, owners: npt.NDArray[np.int32], world_size: int
) -> list[OwnerBags]:
    """The part of each rank, in the order of ranks.

    Args:
        owners: ``(4096,)``, the rank of each partition.
    """
    order, ends = _native.route(request.ids, owners, world_size)
    lengths = np.diff(request.offsets)
    bag_of_id = np.repeat(np.arange(request.num_bags, dtype=np.int64), lengths)[order]
    parts = []
    for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        # The order among the ids of an owner is that of the request, so its bags rise.
        mine = bag_of_id[first:last]
        is_first = np.ones(len(mine), np.bool_)
        np.not_equal(mine[1:], mine[:-1], out=is_first[1:])
        begins = np.flatnonzero(is_first)
        counts = np.diff(begins, append=len(mine)).astype(np.uint32)
        parts.append(OwnerBags(order[first:last], mine[begins], counts))
    return parts


def compute_lengths(request: BagRequest) -> npt.NDArray[Any]:
    """``(b, 1)``: ids of each bag, 1 where there is none, by which means divide."""
    lengths = np.maximum(np.diff(request.offsets), 1)
    return lengths.astype(request.table.computing_dtype)[:, None]


def group_tables(counts: npt.NDArray[np.int64], most: int) -> Iterator[list[int]]:
    """Tables that share a message: neighbors with at most `most` rows together, or one that has more.

    Both ends know the counts, and group in the same way.

    Args:
        counts: ``(tables,)``; those with none are left out.
    """
    group: list[int] = []
    total = 0
    for table in np.flatnonzero(counts).tolist():
        if group and total + counts[table] > most:
            yield group
            group, total = [], 0
        group.append(table)
        total += int(counts[table])
    if group:
        yield group


def bag_bytes(request: BagRequest, num_ids: int, num_bags: int) -> int:
    """Bytes of one table's part of a message of bags."""
    weights = 0 if request.weights is None else request.table.computing_dtype.itemsize * num_ids
    return num_ids * KEY_BYTES + align_bytes(num_bags * _LENGTH_BYTES) + align_bytes(weights)


def pool_bytes(codec: Codec, num_bags: int) -> int:
    """Bytes of one table's part of a message of pools."""
    return align_bytes(num_bags * codec.row_bytes)


def gradient_bytes(codec: Codec, num_lookups: int, num_bags: int) -> int:
    """Bytes of one table's part of a message of gradients: each lookup's begin on a multiple of 8."""
    return num_lookups * (KEY_BYTES + 8) + pool_bytes(codec, num_bags)


def pack_bags(message: Bytes, request: BagRequest, part: OwnerBags) -> None:
    """Writes one table's part of a message of bags, ``(bag_bytes,)``."""
    middle = len(part.positions) * KEY_BYTES
    _native_take(request.ids, part.positions, message[:middle].view(np.int64))
    end = middle + len(part.bags) * _LENGTH_BYTES
    message[middle:end].view(np.uint32)[:] = part.lengths
    begin = middle + align_bytes(end - middle)
    message[end:begin] = 0
    if request.weights is not None:
        dtype = request.table.computing_dtype
        end = begin + len(part.positions) * dtype.itemsize
        _native_take(request.weights, part.positions, message[begin:end].view(dtype))
        message[end:] = 0


def unpack_bags(
    message: Bytes, request: BagRequest, num_ids: int, num_bags: int
) -> tuple[Index, Index, npt.NDArray[Any] | None]:
    """Ids, offsets and weights of a part of a message, which may be used again after this."""
    middle = num_ids * KEY_BYTES
    ids = message[:middle].view(np.int64)
    lengths = message[middle : middle + num_bags * _LENGTH_BYTES].view(np.uint32)
    offsets = np.zeros(num_bags + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if request.weights is None:
        return ids, offsets, None
    begin, dtype = middle + align_bytes(num_bags * _LENGTH_BYTES), request.table.computing_dtype
    return ids, offsets, message[begin : begin + num_ids * dtype.itemsize].view(dtype).copy()


def find_embeddings(request: BagRequest, keys: Keys) -> Rows:
    """Rows ``(u, dim)`` of the computing dtype of this rank's shard, initial ones where there is
    none."""
    table = request.table
    pulled = find_rows(request.storage, table, keys, Columns(0, table.dim))
    if len(keys) and request.initialize is not None:
        request.initialize(pulled.rows, keys, pulled.found)
    elif len(keys):
        HOST.initialize(pulled.rows, keys, pulled.found, table)
    return decode(pulled.rows) if table.is_16_bit else pulled.rows


def _native_take(values: npt.NDArray[Any], positions: Index, out: npt.NDArray[Any]) -> None:
    np.take(values, positions, out=out, mode="clip")  # unlike "raise", without a copy
