"""Conversion between storages in Python and the C storage ABI, in both directions.

`NativeStorage` wraps any capsule of ``storage_abi.h`` as a `Storage`. `get_capsule` returns the capsule
of any `Storage`, and wraps storages written in Python. Both may be applied repeatedly to one storage.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import metadata
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native, errors
from sparring.contracts.storage import results as arguments
from sparring.contracts.storage.capabilities import Capabilities
from sparring.contracts.storage.optional import SupportsCapsule, SupportsFirstTier
from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, ScanChunk, Scores
from sparring.contracts.storage.storage import Storage, closed_error
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError, VersionError
from sparring.plugins.distributions import find_distribution

__all__ = ["NativeStorage", "get_capsule", "export_storage"]

# The bits of SparringStat.capabilities.
_CONCURRENT_READS, _PERSISTENT, _BOUNDED, _EVICTS, _SCORES_GIVEN = (1 << bit for bit in range(5))

# SparringStatus of each class of error; others become SPARRING_INTERNAL.
_STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (errors.DeviceLostError, 11),
    (errors.DeviceMemoryError, 12),
    (errors.DeviceError, 10),
    (errors.UnsupportedError, 2),
    (errors.ClosedError, 3),
    (errors.CapacityError, 4),
    (MemoryError, 5),
    (errors.StorageIOError, 6),
    (errors.DeadlineError, 7),
    (errors.CorruptDataError, 8),
    (errors.InvalidArgumentError, 1),
)
_INTERNAL = 9

_Evicted = tuple[Keys, npt.NDArray[np.uint8], Scores]

_MAX_CHUNK_BYTES = 64 << 20
"""Maximum memory of one chunk of a scan, unless a single row is larger."""


class NativeStorage(Storage):
    """A `Storage` over a capsule of ``storage_abi.h``.

    Args:
        capsule: Capsule named ``sparring.storage``. It owns the struct and is kept until `close`.
        table: Declaration of the table; its row size must equal the row size of the struct.
        capabilities: Capabilities of the struct. None derives them from the struct, which does not
            report details of scores and eviction.
        validate: See `Storage`.

    Raises:
        VersionError: The major version of the struct's ABI is not supported.
        InvalidArgumentError: The row sizes of the struct and the table differ.
    """

    def __init__(
        self,
        capsule: object,
        table: TableConfig,
        *,
        capabilities: Capabilities | None = None,
        validate: bool = True,
    ) -> None:
        super().__init__(table, validate=validate)
        try:
            self._handle: Any = _native.StorageHandle(capsule)
        except VersionError as error:
            raise self._version_error(str(error)) from None
        stat = self._handle.stat()
        if stat["row_bytes"] != table.row_bytes:
            raise InvalidArgumentError(
                f"storage of table {table.name!r} by {self._handle.distribution}: its rows have "
                f"{stat['row_bytes']} bytes, the table's have {table.row_bytes} "
                f"({table.dim} x {table.dtype}, {table.state_width} x state); open it for this table",
                table=table.name,
            )
        self.capabilities = capabilities or _derive_capabilities(stat["capabilities"], self._handle)
        self._itemsize = table.numpy_dtype.itemsize
        self._none_evicted: EvictedRows | None = None
        # If a struct has `visit`, its rows are in memory. Storages on a device pass copies of their
        # rows, so they are excluded.
        self._is_in_memory = (
            self.capabilities.native
            and self.capabilities.devices == ("cpu",)
            and self._handle.offers_visit
        )

    @property
    def distribution(self) -> str:
        """Distribution of the native storage, such as ``sparring-hkv 0.1.0``."""
        distribution: str = self._handle.distribution
        return distribution

    @property
    def capacity(self) -> int | None:
        self._check_open()
        found: int = self._handle.stat()["capacity"]
        return None if found < 0 else found

    @property
    def memory_bytes(self) -> int:
        self._check_open()
        found: int = self._handle.stat()["memory_bytes"]
        return found

    @property
    def handle_in_memory(self) -> Any | None:
        """Native handle for finds without the GIL. It requires rows in memory, where a find takes
        only a few cache misses per key.

        None if rows are stored elsewhere, or if a subclass overrides `_find_impl`.
        """
        if not self._is_in_memory:
            return None
        is_own = getattr(self._find_impl, "__func__", None) is NativeStorage._find_impl
        return self._handle if is_own else None

    def set_option(self, name: str, value: object) -> None:
        """Sets an option of the open storage, such as ``epoch`` of an epoch policy.

        Args:
            name: name of the option.
            value: value of the option, passed to the backend as text.

        Raises:
            UnsupportedError: The backend has no options that can be set.
            InvalidArgumentError: The option is unknown, or its value is invalid.
        """
        self._check_open()
        self._handle.set_option(name, str(value))

    def __sparring_storage__(self) -> object:
        self._check_open()
        return self._handle.capsule

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        size = self._itemsize
        self._handle.find(keys, columns.begin * size, columns.end * size, rows, found)

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        return self._evicted(self._handle.upsert(keys, rows, scores))

    def _erase_impl(self, keys: Keys) -> int:
        erased: int = self._handle.erase(keys)
        return erased

    def _touch_impl(self, keys: Keys, scores: Scores | None) -> None:
        self._handle.touch(keys, scores)

    def _evict_impl(self, count: int) -> EvictedRows:
        return self._evicted(self._handle.evict(count))

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        begin, end = columns.begin * self._itemsize, columns.end * self._itemsize
        cursor = (0, 0)
        is_done = False
        # Memory for a chunk is allocated before its number of rows is known.
        capacity = min(
            chunk_rows, max(1, self._size_impl()), max(1, _MAX_CHUNK_BYTES // (end - begin))
        )
        while not is_done:
            self._check_open()
            cursor, is_done, given, keys, rows, scores = self._handle.scan(
                cursor, capacity, begin, end
            )
            if given:
                yield ScanChunk(
                    keys[:given], rows[:given].view(self.table.numpy_dtype), scores[:given]
                )

    def _size_impl(self) -> int:
        size: int = self._handle.stat()["size"]
        return size

    def _flush_impl(self) -> None:
        self._handle.flush()

    def _clear_impl(self) -> None:
        self._handle.clear()

    def _close_impl(self) -> None:
        # The struct lives until the last reference to its capsule is released. Calls that are in
        # progress, or that skip the check, raise the error of this handle.
        self._handle = _ClosedHandle(self.table.name)

    def _version_error(self, found: str) -> VersionError:
        """Creates the error for a struct of another version, of which no field may be read.

        The distribution is therefore determined from the class.
        """
        module = type(self).__module__
        maker = None if module.startswith("sparring.") else find_distribution(module)
        name = "the backend" if maker is None else maker.partition(" ")[0]
        is_newer = int(found.partition(".")[0]) > _native.STORAGE_ABI[0]
        remedy = (
            f"upgrade sparring, or install an older version of {name}"
            if is_newer
            else f"upgrade {name}, or install an older version of sparring"
        )
        supported = ".".join(map(str, _native.STORAGE_ABI))
        return VersionError(
            f"storage of table {self.table.name!r}: {maker or 'its backend'} was built for storage "
            f"ABI {found}, but sparring {_version()} supports {supported}; {remedy}",
            found=found,
            supported=supported,
            distribution=maker,
        )

    def _evicted(self, parts: _Evicted | None) -> EvictedRows:
        if parts is None:
            # All calls that evict nothing share this result, because most calls evict nothing.
            if self._none_evicted is None:
                self._none_evicted = self._nothing_evicted()
            return self._none_evicted
        keys, rows, scores = parts
        return EvictedRows(keys, rows.view(self.table.numpy_dtype), scores)


class _ClosedHandle:
    """Replaces the native handle of a closed storage; raises `ClosedError` for any use."""

    def __init__(self, table: str) -> None:
        self._table = table

    def __getattr__(self, name: str) -> Any:
        raise closed_error(self._table)


class ExportAdapter:
    """Callbacks of the exported struct. They use bytes, and are called with the GIL."""

    # Maximum number of unfinished scans. If another scan begins, the oldest one is dropped.
    _MAX_SCANS = 64

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._scans: dict[int, _Scan] = {}
        self._next_scan = count(1)
        self.row_bytes = storage.table.row_bytes
        access = storage.first_tier_access() if isinstance(storage, SupportsFirstTier) else None
        self.first = None if access is None else access.first
        if access is not None:
            self.begin_visit, self.end_visit = access.begin_visit, access.end_visit
            self.begin_update, self.end_update = access.begin_update, access.end_update
            self.bring_up = access.bring_up
            self.abort_update = access.abort_update
        self.offers_touch = storage.capabilities.touch
        self.offers_evict = storage.capabilities.evict

    def find(
        self,
        keys: Keys,
        begin: int,
        end: int,
        rows: npt.NDArray[np.uint8],
        found: npt.NDArray[np.uint8],
    ) -> None:
        result = self._storage.find(keys, self._columns(begin, end))
        rows[...] = result.rows.view(np.uint8)
        found[...] = result.found

    def upsert(
        self, keys: Keys, rows: npt.NDArray[np.uint8], scores: Scores | None
    ) -> _Evicted | None:
        storage = self._storage
        checked = arguments.check_keys(keys, storage.table.name, unique=storage.validate)
        taken = storage._check_scores(scores, len(checked))
        if not len(checked):
            return None
        typed = np.ascontiguousarray(rows).view(storage.table.numpy_dtype)
        # Without the watcher, because callers that write through the struct notify it themselves.
        return _as_bytes(storage.upsert_from(checked, typed, taken))

    def erase(self, keys: Keys) -> int:
        return self._storage.erase(keys)

    def touch(self, keys: Keys, scores: Scores | None) -> None:
        self._storage.touch(keys, scores)

    def evict(self, wanted: int) -> _Evicted | None:
        return _as_bytes(self._storage.evict(wanted))

    def scan(
        self, cursor: tuple[int, int], capacity: int, begin: int, end: int
    ) -> tuple[tuple[int, int], bool, Keys, npt.NDArray[np.uint8], Scores]:
        """Returns one chunk. The cursor is (number of the scan, number of the chunk)."""
        number, position = cursor
        if number == 0:
            number = next(self._next_scan)
            if len(self._scans) >= self._MAX_SCANS:
                del self._scans[next(iter(self._scans))]
            self._scans[number] = _Scan(
                self._storage.scan(capacity, self._columns(begin, end)), (capacity, begin, end)
            )
        scan = self._scans.get(number)
        if scan is None or scan.position != position or scan.shape != (capacity, begin, end):
            raise InvalidArgumentError(
                f"scan of table {self._storage.table.name!r}: cursor {cursor} with capacity "
                f"{capacity} does not continue an unfinished scan; start again with cursor zero"
            )
        try:
            chunk = next(scan.chunks, None)
        except BaseException:
            # A generator that has raised would report the end of the scan at the next call.
            del self._scans[number]
            raise
        if chunk is None:
            del self._scans[number]
            empty = np.empty((0, end - begin), np.uint8)
            return cursor, True, np.empty(0, np.int64), empty, np.empty(0, np.uint64)
        scan.position += 1
        rows = np.ascontiguousarray(chunk.rows).view(np.uint8)
        return (number, scan.position), False, chunk.keys, rows, chunk.scores

    def stat(self) -> tuple[int, int, int, int, int]:
        offered = self._storage.capabilities
        bits = (
            _CONCURRENT_READS * offered.concurrent_reads
            | _PERSISTENT * offered.persistent
            | _BOUNDED * offered.bounded
            | _EVICTS * offered.evicts
            | _SCORES_GIVEN * (offered.scores == "given")
        )
        capacity = self._storage.capacity
        return (
            bits,
            self.row_bytes,
            self._storage.size,
            -1 if capacity is None else capacity,
            self._storage.memory_bytes,
        )

    def flush(self) -> None:
        self._storage.flush()

    def clear(self) -> None:
        self._storage.clear()

    def describe_error(self, error: BaseException) -> tuple[int, str]:
        """Returns the status and the message of an exception for native callers."""
        for kind, status in _STATUS:
            if isinstance(error, kind):
                return status, str(error) or kind.__name__
        return _INTERNAL, f"{type(error).__name__}: {error}"

    def _columns(self, begin: int, end: int) -> Columns:
        size = self._storage.table.numpy_dtype.itemsize
        if begin % size or end % size:
            raise InvalidArgumentError(
                f"columns of table {self._storage.table.name!r} must be whole elements of {size} bytes, "
                f"found bytes {begin} to {end}; round them to a multiple of {size}"
            )
        return Columns(begin // size, end // size)


class _Scan:
    __slots__ = ("chunks", "position", "shape")

    def __init__(self, chunks: Iterator[ScanChunk], shape: tuple[int, int, int]) -> None:
        self.chunks = chunks
        self.shape = shape
        self.position = 0


def get_capsule(storage: Storage) -> object:
    """Returns the native handle of a storage: a capsule named ``sparring.storage`` (``storage_abi.h``).

    A storage written in Python is wrapped. Native callers then call it with the GIL.

    Args:
        storage: An open storage. The capsule keeps a reference to a wrapped one.

    Raises:
        ClosedError: The storage was closed.
    """
    # `NativeStorage` also satisfies the protocol. It is tested first because every kernel call gets here.
    if isinstance(storage, (NativeStorage, SupportsCapsule)):
        return storage.__sparring_storage__()
    storage._check_open()
    return export_storage(storage)


def export_storage(storage: Storage) -> object:
    """Creates a capsule named ``sparring.storage`` whose callbacks call `storage` with the GIL.

    Args:
        storage: Any storage. The capsule keeps a reference to it. After it is closed, every callback
            returns SPARRING_CLOSED.
    """
    module = type(storage).__module__.partition(".")[0]
    return _native.export_storage(ExportAdapter(storage), f"{module} {_version(module)}")


def _as_bytes(evicted: EvictedRows) -> _Evicted | None:
    if not len(evicted):
        return None
    return evicted.keys, np.ascontiguousarray(evicted.rows).view(np.uint8), evicted.scores


def _derive_capabilities(bits: int, handle: Any) -> Capabilities:
    evicts = bool(bits & _EVICTS)
    given = bool(bits & _SCORES_GIVEN)
    # A storage with `evict` or `touch` orders rows by its own scores, even if it is not bounded.
    has_policy = evicts or handle.offers_evict or handle.offers_touch
    return Capabilities(
        persistent=bool(bits & _PERSISTENT),
        native=not handle.calls_python,
        concurrent_reads=bool(bits & _CONCURRENT_READS),
        bounded=bool(bits & _BOUNDED),
        evicts=evicts,
        evict=handle.offers_evict,
        touch=handle.offers_touch,
        scores="given" if given else "policy" if has_policy else "none",
        eviction_scope="bucket",
    )


@cache
def _version(distribution: str = "sparring") -> str:
    """Returns the cached version; reading it is too slow for each update of an exported storage."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(version unknown)"
