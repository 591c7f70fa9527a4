"""The storage contract: the methods that a backend implements, and their guarantees.

A storage contains one shard of one table: keys with one row each. It does not depend on gradients,
features or frameworks.

For authors of a backend
    Subclass `Storage`, implement the ``_impl`` methods and set `capabilities`. The public methods
    check their arguments once and then call the ``_impl`` method of the same name. An ``_impl``
    method can rely on: keys are a C-contiguous ``(n,)`` int64 array of unique keys; rows are a
    C-contiguous ``(n, width)`` array of the table's dtype; scores are ``(n,)`` uint64 or None;
    ``n >= 1``. It must not keep a reference to any of these arrays. Methods that most backends do
    not need are in `sparring.contracts.storage.optional`.

Threads
    Readers (`find`, `find_into`, `scan`, the properties) may run concurrently. If
    `Capabilities.concurrent_reads` is set, they may also run concurrently with a writer. The caller
    makes sure that there is at most one writer at a time.

For callers
    - `find` never changes anything, including scores.
    - After `upsert` has returned, the next `find` reads its rows.
    - A call that raises because of its arguments leaves the table unchanged.
    - Every int64 is a valid key, including -1 and both extremes.

Capabilities are in `sparring.contracts.storage.capabilities`, arrays and results in
`sparring.contracts.storage.results`. This module exports both.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage import results as arguments
from sparring.contracts.storage.capabilities import Capabilities
from sparring.contracts.storage.optional import (
    LOAD_NOTE,
    SupportsNotes,
    Watcher,
    check_written,
    watched,
)
from sparring.contracts.storage.results import (
    Columns,
    EvictedRows,
    FindResult,
    Keys,
    Rows,
    ScanChunk,
    Scores,
)
from sparring.contracts.tables.table import TableConfig
from sparring.errors import ClosedError, UnsupportedError
from sparring.runtime.lifecycle import Closable

__all__ = [
    "Capabilities",
    "Columns",
    "EvictedRows",
    "FindResult",
    "Keys",
    "Rows",
    "ScanChunk",
    "Scores",
    "Storage",
    "closed_error",
    "interrupted_load",
    "read_note",
    "write_note",
]


def closed_error(table: str) -> ClosedError:
    """Creates the error that a call to a closed storage raises.

    Args:
        table: name of the table, for the message.
    """
    return ClosedError(
        f"the storage of table {table!r} is closed; open it again with sparring.open_storage",
        table=table,
    )


@dataclass(slots=True)
class _State:
    closed: bool = field(default=False)
    notes: dict[str, str | None] = field(default_factory=dict)


class Storage(Closable):
    """One shard of one table.

    Args:
        table: declaration of the rows, which have `table.width` elements each.
        validate: whether each call checks that its keys are unique. The engine turns this off
            because it has deduplicated the keys.

    Attributes:
        watcher: observer that the public methods notify of every write, or None. Callers that write
            through the native handle notify it themselves.

    Examples:
        >>> from sparring import TableConfig, open_storage
        >>> with open_storage("memory", TableConfig("item", dim=2)) as storage:
        ...     evicted = storage.upsert([1, 2], np.ones((2, 2), np.float32))
        ...     storage.erase([2, 3]), storage.size, storage.find([1]).rows.tolist()
        (1, 1, [[1.0, 1.0]])
    """

    capabilities: Capabilities = Capabilities()

    def __init__(self, table: TableConfig, *, validate: bool = True) -> None:
        self.table = table
        self.validate = validate
        self.watcher: Watcher | None = None
        self._state = _State()

    # -- reading ------------------------------------------------------------

    def find(
        self, keys: npt.ArrayLike, columns: Columns | None = None, *, out: Rows | None = None
    ) -> FindResult:
        """Reads rows without side effects.

        Args:
            keys: ``(n,)`` unique int64.
            columns: the columns of each row to read; None reads complete rows.
            out: ``(n, width of columns)`` array to fill, C-contiguous, of the table's dtype.

        Returns:
            The rows in the order of `keys`; keys without a row have zeros and `found` False.

        Raises:
            InvalidArgumentError: wrong shape or dtype, duplicate keys, columns out of range, or an
                `out` that cannot be filled in place.
            ClosedError: the storage was closed.
        """
        self._check_open()
        checked = arguments.check_keys(keys, self.table.name, unique=self.validate)
        span = arguments.check_columns(columns, self.table)
        shape = (len(checked), span.end - span.begin)
        if out is None:
            out = np.empty(shape, self.table.numpy_dtype)
        else:
            arguments.check_out(out, shape, self.table)
        found = np.empty(len(checked), np.bool_)
        if len(checked):
            self._find_impl(checked, span, out, found)
        return FindResult(out, found)

    def find_into(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        """Reads rows into arrays of the caller like `find`, without checks. The engine calls it.

        Args:
            keys: ``(n,)`` unique int64, C-contiguous, ``n >= 1``.
            columns: the columns of each row to read.
            rows: ``(n, width of columns)`` of the table's dtype, C-contiguous; filled.
            found: ``(n,)``; filled.

        Raises:
            ClosedError: the storage was closed.
        """
        if self._state.closed:
            raise closed_error(self.table.name)
        self._find_impl(keys, columns, rows, found)

    def scan(self, chunk_rows: int = 65_536, columns: Columns | None = None) -> Iterator[ScanChunk]:
        """Iterates over all rows in chunks of at most `chunk_rows`, in any order.

        A key that is present during the whole scan is returned at least once, and exactly once if
        there are no concurrent writes. There are no other guarantees.

        Args:
            chunk_rows: maximum number of rows per chunk.
            columns: the columns of each row to read; None reads complete rows.

        Raises:
            InvalidArgumentError: `chunk_rows` is not a positive whole number, or the columns are out
                of range.
            ClosedError: the storage was closed.
        """
        self._check_open()
        name = self.table.name
        most = arguments.check_count(f"scan of table {name!r}: chunk_rows", chunk_rows, 1, name)
        return self._scan_impl(most, arguments.check_columns(columns, self.table))

    @property
    def size(self) -> int:
        """Number of rows."""
        self._check_open()
        return self._size_impl()

    def __len__(self) -> int:
        return self.size

    @property
    def capacity(self) -> int | None:
        """Maximum number of rows, or None if it is not limited."""
        self._check_open()
        return None

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """Memory that this storage uses, in bytes, including keys and indexes."""

    # -- writing ------------------------------------------------------------

    def upsert(
        self, keys: npt.ArrayLike, rows: npt.ArrayLike, scores: npt.ArrayLike | None = None
    ) -> EvictedRows:
        """Replaces or inserts complete rows, all of them or none.

        Args:
            keys: ``(n,)`` unique int64.
            rows: ``(n, width)`` of the table's dtype.
            scores: ``(n,)`` uint64; only if `Capabilities.scores` is ``given``. If they are omitted,
                existing keys keep their scores and new keys start at 0.

        Returns:
            The evicted rows. They may include keys of this call.

        Raises:
            InvalidArgumentError: wrong shape or dtype, or duplicate keys.
            UnsupportedError: `scores` was passed, but the storage does not accept scores.
            CapacityError: the storage is full and does not evict.
            ClosedError: the storage was closed.
        """
        self._check_open()
        checked = arguments.check_keys(keys, self.table.name, unique=self.validate)
        checked_rows = arguments.check_rows(rows, len(checked), self.table)
        checked_scores = self._check_scores(scores, len(checked))
        if not len(checked):
            return self._nothing_evicted()
        check_written(self.watcher, checked)
        with watched(self.watcher, checked) as write:
            evicted = self._upsert_impl(checked, checked_rows, checked_scores)
            write.note_evicted(evicted)
        return evicted

    def upsert_from(self, keys: Keys, rows: Rows, scores: Scores | None = None) -> EvictedRows:
        """Replaces or inserts rows like `upsert`, without checks and without notifying `watcher`.

        The engine calls it, and notifies the watcher itself.

        Args:
            keys: ``(n,)`` unique int64, C-contiguous, ``n >= 1``.
            rows: ``(n, width)`` of the table's dtype, C-contiguous.
            scores: see `upsert`.

        Raises:
            CapacityError, ClosedError: see `upsert`.
        """
        if self._state.closed:
            raise closed_error(self.table.name)
        return self._upsert_impl(keys, rows, scores)

    def erase(self, keys: npt.ArrayLike) -> int:
        """Removes keys, and returns how many of them existed. Unknown keys are ignored.

        Args:
            keys: ``(n,)`` unique int64.

        Raises:
            InvalidArgumentError: wrong shape or dtype, or duplicate keys.
            ClosedError: the storage was closed.
        """
        self._check_open()
        checked = arguments.check_keys(keys, self.table.name, unique=self.validate)
        if not len(checked):
            return 0
        with watched(self.watcher, checked) as write:
            num_erased = self._erase_impl(checked)
            write.note_erased()
        return num_erased

    def touch(self, keys: npt.ArrayLike, scores: npt.ArrayLike | None = None) -> None:
        """Informs the eviction policy that keys were read. Unknown keys are ignored.

        Args:
            keys: ``(n,)`` unique int64.
            scores: ``(n,)`` uint64; see `upsert`.

        Raises:
            InvalidArgumentError: wrong shape or dtype, or duplicate keys.
            UnsupportedError: `Capabilities.touch` is False, or `scores` was passed, but the storage
                does not accept scores.
            ClosedError: the storage was closed.
        """
        self._check_open()
        self._check_offered("touch", self.capabilities.touch)
        checked = arguments.check_keys(keys, self.table.name, unique=self.validate)
        checked_scores = self._check_scores(scores, len(checked))
        if len(checked):
            with watched(self.watcher, checked):
                self._touch_impl(checked, checked_scores)

    def evict(self, count: int) -> EvictedRows:
        """Removes up to `count` rows, the lowest scores first, and returns them.

        Args:
            count: maximum number of rows to remove, 0 or more.

        Raises:
            InvalidArgumentError: `count` is negative or not a whole number.
            UnsupportedError: `Capabilities.evict` is False.
        """
        self._check_open()
        self._check_offered("evict", self.capabilities.evict)
        name = self.table.name
        most = arguments.check_count(f"evict from table {name!r}: count", count, 0, name)
        if not most:
            return self._nothing_evicted()
        with watched(self.watcher, np.empty(0, np.int64)) as write:
            evicted = self._evict_impl(most)
            write.note_evicted(evicted)
        return evicted

    def clear(self) -> None:
        """Removes all rows, and the note of an interrupted load."""
        self._check_open()
        self._clear_for(None)

    def flush(self) -> None:
        """Makes all writes as durable as the backend supports, and returns when this is done."""
        self._check_open()
        self._flush_impl()

    def close(self) -> None:
        """Releases all resources. A second call does nothing; any other method then raises."""
        if not self._state.closed:
            self._state.closed = True
            self._close_impl()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._state.closed

    # -- implemented by a backend ---------------------------------------------

    @abstractmethod
    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        """Fills `rows` and `found`; the rows of missing keys must be set to zero."""

    @abstractmethod
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        """Replaces or inserts all rows, or raises and changes none; returns the evicted rows."""

    @abstractmethod
    def _erase_impl(self, keys: Keys) -> int:
        """Removes keys, and returns how many of them existed."""

    @abstractmethod
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        """Yields all rows in chunks of new arrays, at most `chunk_rows` rows each."""

    @abstractmethod
    def _size_impl(self) -> int:
        """Returns the number of rows."""

    @abstractmethod
    def _clear_impl(self) -> None:
        """Removes all rows."""

    @abstractmethod
    def _close_impl(self) -> None:
        """Releases all resources. Called once."""

    def _flush_impl(self) -> None:
        """Flushes. Only backends that are persistent or buffer writes override it."""

    def _touch_impl(self, keys: Keys, scores: Scores | None) -> None:
        raise NotImplementedError(f"{type(self).__name__} declares touch and must implement it")

    def _evict_impl(self, count: int) -> EvictedRows:
        raise NotImplementedError(f"{type(self).__name__} declares evict and must implement it")

    # -- for subclasses ---------------------------------------------------------

    def _nothing_evicted(self) -> EvictedRows:
        return EvictedRows(
            np.empty(0, np.int64),
            np.empty((0, self.table.width), self.table.numpy_dtype),
            np.empty(0, np.uint64),
        )

    def _check_open(self) -> None:
        if self._state.closed:
            raise closed_error(self.table.name)

    def _check_offered(self, operation: str, is_offered: bool) -> None:
        if not is_offered:
            raise UnsupportedError(
                f"{operation} on table {self.table.name!r}: {type(self).__name__} does not support "
                f"it (found capability {operation}=False); choose a backend or policy that does",
                table=self.table.name,
                operation=operation,
            )

    def _check_scores(self, scores: npt.ArrayLike | None, count: int) -> Scores | None:
        return arguments.check_consumed_scores(
            scores, count, self.table.name, self.capabilities.scores, type(self).__name__
        )

    # -- notes; `sparring.storage.load` is the public interface ----------------------

    def _clear_for(self, source: str | None) -> None:
        """Removes all rows.

        Args:
            source: the source of a load that replaces the rows; a note with it is written before
                they are removed. None if there is no load; the note of an earlier load is then
                removed after the rows.
        """
        if self.watcher is not None:
            self.watcher.clearing()
        if source is not None:
            self._write_note(LOAD_NOTE, source)
        is_outdated = source is None and self._read_note(LOAD_NOTE) is not None
        self._clear_impl()
        if is_outdated:
            self._write_note(LOAD_NOTE, None)

    def _write_note(self, name: str, text: str | None) -> None:
        if isinstance(self, SupportsNotes):
            self._write_note_impl(name, text)
        self._state.notes[name] = text

    def _read_note(self, name: str) -> str | None:
        if name not in self._state.notes:
            kept = self._read_note_impl(name) if isinstance(self, SupportsNotes) else None
            self._state.notes[name] = kept
        return self._state.notes[name]


def interrupted_load(storage: Storage) -> str | None:
    """Returns the source of an unfinished load, after which rows may be missing, or None.

    Args:
        storage: an open storage.

    Raises:
        ClosedError: the storage was closed.
    """
    state = storage._state
    if state.closed:
        raise closed_error(storage.table.name)
    if LOAD_NOTE in state.notes:  # true in all steps except the first
        return state.notes[LOAD_NOTE]
    return read_note(storage, LOAD_NOTE)


def write_note(storage: Storage, name: str, text: str | None) -> None:
    """Stores a short text with the rows of a storage. `Storage.clear` removes only the note ``load``.

    If `Capabilities.notes` is set, the note outlives the process: it becomes durable before all later
    writes, and is removed after all earlier writes.

    Args:
        storage: the storage.
        name: lowercase letters and ``_``. The engine uses ``load`` and ``part``.
        text: up to 4,096 characters; None removes the note.

    Raises:
        InvalidArgumentError: `name` or `text` is invalid.
    """
    storage._check_open()
    arguments.check_note(storage.table.name, name, text)
    storage._write_note(name, text)


def read_note(storage: Storage, name: str) -> str | None:
    """Returns the text that `write_note` stored under a name, or None.

    Args:
        storage: an open storage.
        name: lowercase letters and ``_``, as for `write_note`.

    Raises:
        InvalidArgumentError: `name` is invalid.
        ClosedError: the storage was closed.
    """
    storage._check_open()
    arguments.check_note(storage.table.name, name, None)
    return storage._read_note(name)
