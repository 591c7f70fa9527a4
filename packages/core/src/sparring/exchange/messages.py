"""Requests of an exchange, and the layout of rows and gradients in messages.

A table slice is the part of a chunk that belongs to one table. It is aligned to 8 bytes.

    rows        ┌───────────────────┬─────────────┬─────────┐
                │ n rows            │ n found, u8 │ padding │
                └───────────────────┴─────────────┴─────────┘
    gradients   ┌───────────────────┬─────────────┬─────────┐
                │ n keys, int64     │ n gradients │ padding │
                └───────────────────┴─────────────┴─────────┘

``native/exchange/wire.h`` describes rows with narrower dtypes and their rounding errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import DeviceArray
from sparring.contracts.ranks.collective import new_header
from sparring.contracts.ranks.exchange_options import ExchangeOptions, WireDtype
from sparring.contracts.storage.results import Columns, Keys, Rows
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.errors import PeerFailure
from sparring.exchange.headers import header_bytes
from sparring.exchange.routing import Chunk, split_into_chunks
from sparring.kernels import functions as kernels
from sparring.kernels.admission_filters import Decision
from sparring.kernels.cpu import HOST

__all__ = [
    "FAILED",
    "KEY_BYTES",
    "ChunkSizes",
    "Codec",
    "MessageSizes",
    "OwnedGradients",
    "PullRequest",
    "PullResult",
    "PushRequest",
    "find_rows",
    "gradient_bytes",
    "align_bytes",
    "compute_memory_bytes",
    "make_storage_failure",
    "write_failure",
    "reply_bytes",
]

KEY_BYTES = 8

_BITS = {
    WireDtype.FLOAT32: 32,
    WireDtype.BFLOAT16: 16,
    WireDtype.FLOAT16: 16,
    WireDtype.INT8: 8,
}

Bytes = npt.NDArray[np.uint8]

FAILED = 2
"""Value of the found flag if the owner's storage failed."""


def align_bytes(num_bytes: int) -> int:
    """Rounds `num_bytes` up to the next multiple of 8."""
    return -(-num_bytes // 8) * 8


@dataclass(frozen=True, slots=True)
class Codec:
    """Conversion between arrays of rows and bytes on the wire.

    Args:
        dtype: dtype of the arrays.
        width: number of elements of a row.
        wire_dtype: requested dtype on the wire. Numbers that already have at most as many bits are
            not converted.
    """

    dtype: np.dtype[Any]
    width: int
    wire_dtype: WireDtype
    effective: WireDtype = field(init=False)
    """Dtype of this table's numbers on the wire."""
    row_bytes: int = field(init=False)
    """Bytes of one row on the wire."""

    def __post_init__(self) -> None:
        effective, bits = self.wire_dtype, self.dtype.itemsize * 8
        if effective is not WireDtype.EXACT and _BITS[effective] >= bits:
            effective = WireDtype.EXACT
        if effective is not WireDtype.EXACT:
            bits = _BITS[effective]
        scale_bytes = 4 if effective is WireDtype.INT8 else 0
        object.__setattr__(self, "effective", effective)
        object.__setattr__(self, "row_bytes", scale_bytes + self.width * bits // 8)

    def view(self, wire: Bytes, count: int) -> Rows | None:
        """Returns the rows in a message as an array, or None if they must be decoded.

        Args:
            wire: ``(count * row_bytes,)``.
            count: number of rows.
        """
        if self.effective is not WireDtype.EXACT:
            return None
        return wire.view(self.dtype).reshape(count, self.width)

    def encode(self, rows: Rows, wire: Bytes) -> None:
        """Writes ``(n, width)`` rows into a message."""
        effective = self.effective
        if effective is WireDtype.EXACT:
            wire[...] = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
            return
        narrow = _as_float32(rows)
        if effective is WireDtype.FLOAT32:
            wire[...] = narrow.reshape(-1).view(np.uint8)
        else:
            _native.wire_encode(effective.value, narrow, wire)

    def decode(self, wire: Bytes, count: int) -> Rows:
        """Returns ``(count, width)`` rows of `dtype`; a view of the message if possible."""
        seen = self.view(wire, count)
        if seen is not None:
            return seen
        if self.effective is WireDtype.FLOAT32:
            narrow = wire.view(np.float32).reshape(count, self.width)
        else:
            narrow = np.empty((count, self.width), np.float32)
            _native.wire_decode(self.effective.value, wire, narrow)
        if self.dtype.itemsize >= 4:
            return narrow.astype(self.dtype, copy=False)
        rows = np.empty((count, self.width), self.dtype)
        kernels.encode(narrow, rows)
        return rows


def _as_float32(rows: Rows) -> npt.NDArray[np.float32]:
    if rows.dtype.itemsize == 2:
        return kernels.decode(rows)
    if rows.dtype == np.float32:
        return np.ascontiguousarray(rows)
    limit = np.finfo(np.float32).max
    # Finite numbers stay finite; infinity and NaN are kept.
    held = np.where(np.isfinite(rows), np.clip(rows, -limit, limit), rows)
    narrow: npt.NDArray[np.float32] = held.astype(np.float32)
    return narrow


@dataclass(frozen=True, slots=True)
class PullRequest:
    """Request for rows of one table.

    Args:
        storage: this rank's shard, or None if it has no rows yet.
        table: configuration of the table.
        keys: ``(u,)`` int64, unique.
        columns: requested columns of each row; for rows on a device, they begin with the first one.
    """

    storage: Storage | None
    table: TableConfig
    keys: DeviceArray
    columns: Columns

    @property
    def width(self) -> int:
        """Number of requested columns."""
        return self.columns.end - self.columns.begin

    def codec(self, wire_dtype: WireDtype) -> Codec:
        """Returns the codec of the rows. Optimizer state is not converted: only embeddings have the
        table's dtype."""
        is_embedding = self.columns.end <= self.table.embedding_width
        return Codec(
            self.table.numpy_dtype,
            self.width,
            wire_dtype if is_embedding else WireDtype.EXACT,
        )


@dataclass(slots=True)
class PullResult:
    """Rows from their owners, in the order of the requested keys."""

    rows: DeviceArray
    """``(u, width of columns)`` of the table's dtype; zeros if `found` is 0."""
    found: DeviceArray
    """``(u,)`` bool in host memory, uint8 on a device: 1 or 0."""


@dataclass(frozen=True, slots=True)
class PushRequest:
    """Gradients of one table to be sent to their owners.

    Args:
        table: configuration of the table.
        keys: ``(u,)``, unique on this rank.
        gradients: ``(u, dim)`` of the table's computing dtype.
        make_accumulator: creates an empty accumulator for one exchange; None: the native accumulator.
        storage: this rank's shard, whose rows are prefetched while gradients are exchanged; None: no
            prefetch, as for gradients on a device.
    """

    table: TableConfig
    keys: DeviceArray
    gradients: DeviceArray
    make_accumulator: Callable[[], Any] | None = None
    storage: Storage | None = None

    def accumulator(self) -> Any:
        """Creates an empty accumulator for these gradients."""
        if self.make_accumulator is not None:
            return self.make_accumulator()
        dtype = "float64" if self.table.computing_dtype.itemsize == 8 else "float32"
        return _native.GradientAccumulator(self.table.dim, dtype)

    def codec(self, wire_dtype: WireDtype) -> Codec:
        return Codec(self.table.computing_dtype, self.table.dim, wire_dtype)


@dataclass(slots=True)
class OwnedGradients:
    """Gradients that all ranks pushed to this one, or to all replicas, summed by key."""

    keys: DeviceArray
    """``(u,)`` int64"""
    gradients: DeviceArray
    """``(u, dim)`` of the computing dtype"""
    kernels: KernelSet = HOST
    """Kernels of the device of these arrays."""
    found: PullResult | None = None
    """Whole rows of these keys, if they were prefetched."""
    row_handles: Any = None
    """Native `RowHandles` of these keys, if the plan of their batch contains them."""
    error: BaseException | None = None
    """Error of this rank, if it occurred too late to report it to the other ranks in the exchange."""
    decision: Decision | None = None
    """Decision of the admission filter about all keys without a row, if the engine has already queried
    it."""
    num_bad: DeviceArray | None = None
    """See `SummedByKey.num_bad`; None if there are several ranks."""


def compute_memory_bytes(codecs: Sequence[Codec], num_rows: npt.NDArray[np.int64]) -> int:
    """Returns the bytes of memory that a find or a sum of `num_rows` of each table accesses, at least
    one cache line per row."""
    row_bytes = np.array([max(each.row_bytes, 64) for each in codecs], np.int64)
    return int(num_rows @ row_bytes)


def reply_bytes(chunk: Chunk, codecs: Sequence[Codec]) -> int:
    """Returns the bytes of the reply to a chunk of keys."""
    return sum(
        align_bytes(part.num_keys * (codecs[part.table].row_bytes + 1)) for part in chunk.slices
    )


def find_rows(
    storage: Storage | None,
    table: TableConfig,
    keys: Keys,
    columns: Columns,
    out: Rows | None = None,
) -> PullResult:
    """Finds rows of this rank's shard in host memory.

    Args:
        storage: the shard; None: no row is found.
        table: configuration of the table.
        keys: ``(n,)`` keys.
        columns: columns to read.
        out: array for the rows; None: a new array.
    """
    shape = (len(keys), columns.end - columns.begin)
    rows = np.empty(shape, table.numpy_dtype) if out is None else out
    if storage is None:
        rows[...] = 0
        return PullResult(rows, np.zeros(len(keys), np.bool_))
    found = np.empty(len(keys), np.bool_)
    if len(keys):
        # No checks, because the keys come from `dedup`.
        storage.find_into(keys, columns, rows, found)
    return PullResult(rows, found)


def write_failure(message: Bytes) -> None:
    """Writes a reply that reports that a storage failed."""
    message[...] = FAILED


def make_storage_failure(owner: int) -> PeerFailure:
    """Creates the error of a rank that received failure flags instead of rows."""
    return PeerFailure(
        f"rank {owner} could not read the requested rows, because its storage failed; fix the cause, "
        "which is in the error of that rank, then restart all ranks from the last snapshot",
        rank=owner,
        operation="find",
        is_certain=True,
    )


def gradient_bytes(chunk: Chunk, codecs: Sequence[Codec]) -> int:
    """Returns the bytes of a message of gradients and their keys."""
    return sum(
        align_bytes(part.num_keys * (KEY_BYTES + codecs[part.table].row_bytes))
        for part in chunk.slices
    )


@dataclass(frozen=True, slots=True)
class ChunkSizes:
    """Sizes of the messages of one chunk of keys."""

    counts: tuple[tuple[int, int], ...]
    """Table and number of its keys, for each table that has keys in this chunk."""
    key_bytes: int
    """Bytes of the request for the rows."""
    reply_bytes: int
    """Bytes of the reply."""
    gradient_bytes: int
    """Bytes of the message that sends the gradients of these keys to their owner."""


class MessageSizes:
    """Sizes of the messages of an exchange, computed without running it. Planners use them.

    Args:
        tables: the tables that are exchanged together, in their order; `dim` is the number of elements
            of a row that are exchanged.
        options: the dtypes on the wire.
    """

    key_bytes: ClassVar[int] = KEY_BYTES
    """Bytes of one key."""
    part_header_bytes: ClassVar[int] = new_header().nbytes
    """Bytes that a rank sends before each part of a `Collective.all_to_all`."""

    def __init__(self, tables: Sequence[TableConfig], options: ExchangeOptions) -> None:
        rows, gradients = WireDtype(options.row_wire_dtype), WireDtype(options.gradient_wire_dtype)
        self._rows = [Codec(each.numpy_dtype, each.embedding_width, rows) for each in tables]
        self._gradients = [Codec(each.computing_dtype, each.dim, gradients) for each in tables]

    @staticmethod
    def header_bytes(num_tables: int) -> int:
        """Returns the bytes that one rank sends to one other rank before an exchange.

        Args:
            num_tables: number of tables that are exchanged together.
        """
        return header_bytes(num_tables)

    def gradient_row_bytes(self, table: int) -> int:
        """Returns the bytes of the gradient of one row.

        Args:
            table: position of the table in `tables`.
        """
        return self._gradients[table].row_bytes

    def chunks(
        self, counts: npt.NDArray[np.int64], chunk_rows: int | None = None
    ) -> Iterator[ChunkSizes]:
        """Yields the sizes of the messages between one rank and one owner.

        Args:
            counts: ``(tables,)``: number of keys of each table.
            chunk_rows: maximum number of keys per message; None: all keys in one message.
        """
        for chunk in split_into_chunks(counts, chunk_rows or max(1, int(counts.sum()))):
            yield ChunkSizes(
                tuple((part.table, part.num_keys) for part in chunk.slices),
                chunk.count * KEY_BYTES,
                reply_bytes(chunk, self._rows),
                gradient_bytes(chunk, self._gradients),
            )
