"""Bags of ids that their owners pool: how they are split by owner, and the layout of their messages.

The requester sends each owner the ids that it owns, in the order of the bags, and their number per bag.
Bags without ids of an owner are left out. The owner returns one partial pool per bag, and the requester
knows the positions of these bags. For means, the requester divides sums and gradients by the lengths of
whole bags.

    ids    a b │   │ c d e          owner 0 has a, c, d         owner 1 has b, e
    bags    0    1     2            lengths 1 2, bags 0 2       lengths 1 1, bags 0 2

The part of a message for one table is aligned to 8 bytes:

    bags        ┌──────────────┬────────────────────┬─────────┬──────────────┬─────────┐
                │ n ids, int64 │ b lengths, uint32  │ padding │ n weights *  │ padding │
                └──────────────┴────────────────────┴─────────┴──────────────┴─────────┘
    pools       ┌──────────────┬─────────┐
                │ b pools      │ padding │     8 bytes at the end of the message: status of the owner
                └──────────────┴─────────┘
    gradients   ┌──────────────────────┬────────────────────────┬─────────────────────┐
                │ k numbers of lookups │ b gradients of each    │ padding, about 8 k  │
                └──────────────────────┴────────────────────────┴─────────────────────┘

    * if ids have weights
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
"""Bytes of the status at the end of an owner's reply."""

_LENGTH_BYTES = 4

Bytes = npt.NDArray[np.uint8]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BagRequest:
    """Request for one pool per bag of a table.

    Args:
        storage: this rank's shard, or None if it has no rows yet.
        table: configuration of the table.
        ids: ``(n,)``; they may repeat.
        offsets: ``(b + 1,)``, non-decreasing, from 0 to n.
        is_mean: whether each sum is divided by the number of ids in its bag.
        weights: ``(n,)`` of the computing dtype, by which rows are multiplied, or None.
        trains_weights: whether gradients of the weights will be requested.
        initialize: fills missing rows with initial values, given rows, keys and found; None uses
            the initializer of the table.
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
        """Number of bags, including empty ones."""
        return len(self.offsets) - 1


@dataclass(frozen=True, slots=True)
class OwnerBags:
    """The part of some bags whose rows one rank owns."""

    positions: Index
    """``(n,)``: positions of its ids in the request; empty if a requester stores only bags."""
    bags: Index
    """``(b,)``, ascending: the bags that contain any of these ids."""
    lengths: npt.NDArray[np.uint32]
    """``(b,)``: number of these ids per bag."""


@dataclass(frozen=True, slots=True)
class RequestedBags:
    """Bags of a requester, which it stores until their gradient was sent.

    Args:
        number: number of this lookup of this table; the same on all ranks.
        table: configuration of the table.
        parts: one part per rank.
        num_bags: number of bags of the request.
        shares: ``(b, 1)``: the reciprocal of the length of each bag; None for sums.
        num_ids: number of ids of the request.
    """

    number: int
    table: TableConfig
    parts: Sequence[OwnerBags]
    num_bags: int
    shares: npt.NDArray[Any] | None
    num_ids: int


@dataclass(frozen=True, slots=True)
class ServedBags:
    """Bags that an owner has pooled, which it stores until the end of the step.

    Args:
        table: configuration of the table.
        keys: ``(u,)``: distinct ids.
        inverse: ``(n,)``: index of the key of each id.
        offsets: ``(b + 1,)``
        weights: ``(n,)`` or None.
        rows: ``(u, dim)``, stored only if gradients of the weights will be requested.
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
        """Returns the gradient of each key ``(u, dim)``, given the gradient of each bag."""
        by_key: Rows = _native.pool_backward(
            gradient, self.inverse, self.offsets, len(self.keys), "sum", self.weights
        )
        return by_key

    def weight_gradient(self, gradient: Rows) -> npt.NDArray[Any]:
        """Returns the gradient of each weight ``(n,)``, given the gradient of each bag."""
        assert self.rows is not None
        found: npt.NDArray[Any] = _native.pool_weight_gradient(
            gradient, self.rows, self.inverse, self.offsets, "sum"
        )
        return found


@dataclass(frozen=True, slots=True)
class PooledBags:
    """Pools of one request."""

    pools: Rows
    """``(b, dim)`` of the computing dtype; zeros for empty bags."""
    requested: RequestedBags | None
    """Requested bags; None if no backward pass follows."""


def split_by_owner(
    request: BagRequest, owners: npt.NDArray[np.int32], world_size: int
) -> list[OwnerBags]:
    """Splits the bags of a request by the owners of their rows.

    Args:
        request: the request.
        owners: ``(4096,)``: rank of each partition.
        world_size: number of ranks.

    Returns:
        The part of each rank, in the order of ranks.
    """
    order, ends = _native.route(request.ids, owners, world_size)
    lengths = np.diff(request.offsets)
    bag_of_id = np.repeat(np.arange(request.num_bags, dtype=np.int64), lengths)[order]
    parts = []
    for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        # The ids of an owner are in the order of the request, so its bags are ascending.
        mine = bag_of_id[first:last]
        is_first = np.ones(len(mine), np.bool_)
        np.not_equal(mine[1:], mine[:-1], out=is_first[1:])
        begins = np.flatnonzero(is_first)
        counts = np.diff(begins, append=len(mine)).astype(np.uint32)
        parts.append(OwnerBags(order[first:last], mine[begins], counts))
    return parts


def compute_lengths(request: BagRequest) -> npt.NDArray[Any]:
    """Returns the divisors ``(b, 1)`` of means: the number of ids of each bag, at least 1."""
    lengths = np.maximum(np.diff(request.offsets), 1)
    return lengths.astype(request.table.computing_dtype)[:, None]


def group_tables(counts: npt.NDArray[np.int64], most: int) -> Iterator[list[int]]:
    """Yields the tables that share a message: adjacent tables with at most `most` rows together, or one
    table with more rows.

    Both ends know the counts, and group in the same way.

    Args:
        counts: ``(tables,)``: number of rows; tables with 0 are left out.
        most: maximum number of rows per message.
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
    """Returns the bytes of one table's part of a message of bags."""
    weights = 0 if request.weights is None else request.table.computing_dtype.itemsize * num_ids
    return num_ids * KEY_BYTES + align_bytes(num_bags * _LENGTH_BYTES) + align_bytes(weights)


def pool_bytes(codec: Codec, num_bags: int) -> int:
    """Returns the bytes of one table's part of a message of pools."""
    return align_bytes(num_bags * codec.row_bytes)


def gradient_bytes(codec: Codec, num_lookups: int, num_bags: int) -> int:
    """Returns the bytes of one table's part of a message of gradients. The gradients of each lookup are
    aligned to 8 bytes."""
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
    """Returns ids, offsets and weights of a part of a message. The ids are a view of the message."""
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
    """Returns the embeddings ``(u, dim)`` of keys of this rank's shard, in the computing dtype. Missing
    rows get their initial values."""
    table = request.table
    pulled = find_rows(request.storage, table, keys, Columns(0, table.embedding_width))
    if len(keys) and request.initialize is not None:
        request.initialize(pulled.rows, keys, pulled.found)
    elif len(keys):
        HOST.initialize(pulled.rows, keys, pulled.found, table)
    return decode(pulled.rows) if table.is_narrow else pulled.rows


def _native_take(values: npt.NDArray[Any], positions: Index, out: npt.NDArray[Any]) -> None:
    np.take(values, positions, out=out, mode="clip")  # mode "raise" would copy
