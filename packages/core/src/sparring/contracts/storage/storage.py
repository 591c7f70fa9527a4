"""The storage contract: what a backend implements, and what its users may rely on.

A storage holds one shard of one table: keys, each owning one row. It knows nothing of
gradients, features or frameworks.

For authors of a backend
    Subclass `Storage`; fill in the ``_impl`` methods and `capabilities`. The public methods check
    their arguments once and then call the ``_impl`` method of the same name, which may take for
    granted: keys are a C-contiguous ``(n,)`` int64 array of unique keys, rows a
    C-contiguous ``(n, width)`` array of the table's dtype, scores ``(n,)`` uint64 or None,
    and ``n >= 1``. An ``_impl`` method must not keep any array that it was passed. Parts that most
    backends leave out are in `sparring.contracts.storage.optional`.

Threads
    Readers (`find`, `find_into`, `scan`, the properties) may run concurrently; also with a writer
    where `Capabilities.concurrent_reads` is set. One writer at a time; the caller sees to that.

For callers
    - `find` never changes anything, scores included.
    - Rows of an `upsert` that returned are visible to the next `find`.
    - A refused call leaves the table unchanged.
    - Every int64 is a legal key, -1 and both extremes included.

Capabilities are declared with `sparring.contracts.storage.capabilities`; arrays and results are in
`sparring.contracts.storage.results`. Both are exported here, too.
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
    """The error of a call to a storage that was closed."""
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
        table: the declaration of its rows, of `table.width` elements each.
        validate: check that keys are unique in each call. The engine, which has just
            deduplicated, turns it off.

    Attributes:
        watcher: told of every write by the public methods; None: there is none. Callers that write
            through the native handle tell it themselves.
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
        """Reads rows, and changes nothing.

        Args:
            keys: ``(n,)`` unique int64.
            columns: the part of each row that is wanted; None means all of it.
            out: ``(n, width of columns)`` array to fill, C-contiguous, of the table's dtype.

        Returns:
            The rows in the order of `keys`, zeros where there is none.

        Raises:
            InvalidArgumentError: wrong shape or dtype, duplicate keys, columns out of range, an
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
        """`find` without checks, into arrays of the caller; for the engine.

        Args:
            keys: ``(n,)`` unique int64, C-contiguous, ``n >= 1``.
            columns: the part of each row that is wanted, within the row.
            rows: ``(n, width of columns)`` of the table's dtype, C-contiguous; filled.
            found: ``(n,)``; filled.

        Raises:
            ClosedError: the storage was closed.
        """
        if self._state.closed:
            raise closed_error(self.table.name)
        self._find_impl(keys, columns, rows, found)

    def scan(self, chunk_rows: int = 65_536, columns: Columns | None = None) -> Iterator[ScanChunk]:
        """Streams all rows in chunks of at most `chunk_rows`, in no order.

        A key that is present from the first chunk to the last is given at least once, and
        exactly once if nothing writes meanwhile; nothing more is promised.

        Raises:
            InvalidArgumentError: `chunk_rows` is no whole number, or below 1; columns out of
                range.
            ClosedError: the storage was closed.
        """
        self._check_open()
        name = self.table.name
        most = arguments.check_count(f"scan of table {name!r}: chunk_rows", chunk_rows, 1, name)
        return self._scan_impl(most, arguments.check_columns(columns, self.table))

    @property
    def size(self) -> int:
        """Rows held now."""
        self._check_open()
        return self._size_impl()

    def __len__(self) -> int:
        return self.size

    @property
    def capacity(self) -> int | None:
        """The most rows this storage will hold, or None where nothing limits them."""
        self._check_open()
        return None

    @property
    @abstractmethod
    def memory_bytes(self) -> int:
        """All memory held for this storage, in bytes, keys and indexes included."""

    # -- writing ------------------------------------------------------------

    def upsert(
        self, keys: npt.ArrayLike, rows: npt.ArrayLike, scores: npt.ArrayLike | None = None
    ) -> EvictedRows:
        """Replaces or inserts whole rows, all of them or none.

        Args:
            keys: ``(n,)`` unique int64.
            rows: ``(n, width)`` of the table's dtype.
            scores: ``(n,)`` uint64, only where `Capabilities.scores` is ``given``. Without
                them known keys keep their scores, and new ones start at 0.

        Returns:
            The rows that left to make room. They may include keys of this very call.

        Raises:
            InvalidArgumentError: wrong shape or dtype, duplicate keys.
            UnsupportedError: scores where the storage keeps its own or none.
            CapacityError: full, and the policy may not evict.
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
        """`upsert` without checks; for the engine, which tells the watcher itself.

        Args:
            keys: ``(n,)`` unique int64, C-contiguous, ``n >= 1``.
            rows: ``(n, width)`` of the table's dtype, C-contiguous.
            scores: as `upsert`.

        Raises:
            CapacityError, ClosedError: as `upsert`.
        """
        if self._state.closed:
            raise closed_error(self.table.name)
        return self._upsert_impl(keys, rows, scores)

    def erase(self, keys: npt.ArrayLike) -> int:
        """Removes keys; unknown ones are no error. Returns how many existed."""
        self._check_open()
        checked = arguments.check_keys(keys, self.table.name, unique=self.validate)
        if not len(checked):
            return 0
        with watched(self.watcher, checked) as write:
            num_erased = self._erase_impl(checked)
            write.note_erased()
        return num_erased

    def touch(self, keys: npt.ArrayLike, scores: npt.ArrayLike | None = None) -> None:
        """Tells the policy that keys were read. Unknown keys are no error.

        Raises:
            UnsupportedError: the storage does not offer it.
        """
        self._check_open()
        self._check_offered("touch", self.capabilities.touch)
        checked = arguments.check_keys(keys, self.table.name, unique=self.validate)
        checked_scores = self._check_scores(scores, len(checked))
        if len(checked):
            with watched(self.watcher, checked):
                self._touch_impl(checked, checked_scores)

    def evict(self, count: int) -> EvictedRows:
        """Makes room: removes up to `count` rows, the lowest scores first.

        Raises:
            InvalidArgumentError: `count` is no whole number, or negative.
            UnsupportedError: the storage does not offer it.
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
        """Removes all rows, and forgets a load that was cut short."""
        self._check_open()
        self._clear_for(None)

    def flush(self) -> None:
        """Returns when everything is as durable as this backend can make it."""
        self._check_open()
        self._flush_impl()

    def close(self) -> None:
        """Frees everything. A second call does nothing; any other call then raises."""
        if not self._state.closed:
            self._state.closed = True
            self._close_impl()

    @property
    def is_closed(self) -> bool:
        return self._state.closed

    # -- filled in by a backend -----------------------------------------------

    @abstractmethod
    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        """Fills `rows` and `found`; rows of missing keys must become zeros."""

    @abstractmethod
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows: ...

    @abstractmethod
    def _erase_impl(self, keys: Keys) -> int: ...

    @abstractmethod
    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]: ...

    @abstractmethod
    def _size_impl(self) -> int: ...

    @abstractmethod
    def _clear_impl(self) -> None: ...

    @abstractmethod
    def _close_impl(self) -> None: ...

    def _flush_impl(self) -> None:
        """Nothing to do unless the backend is persistent or buffers writes."""

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
                f"{operation} on table {self.table.name!r}: {type(self).__name__} does not declare "
                f"this capability (found {operation}=False); choose a backend or policy that does",
                table=self.table.name,
                operation=operation,
            )

    def _check_scores(self, scores: npt.ArrayLike | None, count: int) -> Scores | None:
        return arguments.check_consumed_scores(
            scores, count, self.table.name, self.capabilities.scores, type(self).__name__
        )

    # -- notes; `sparring.storage.load` is the public door ---------------------------

    def _clear_for(self, source: str | None) -> None:
        """Removes all rows.

        Args:
            source: rows of it come in their place, which is noted first; None: none do, and the
                note of an earlier load goes after the rows.
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
    """The source of a load that has not ended: rows may be missing. None: there is none."""
    state = storage._state
    if state.closed:
        raise closed_error(storage.table.name)
    if LOAD_NOTE in state.notes:  # as in every step but the first
        return state.notes[LOAD_NOTE]
    return read_note(storage, LOAD_NOTE)


def write_note(storage: Storage, name: str, text: str | None) -> None:
    """Keeps a short text about the rows; None removes it. `Storage.clear` keeps it.

    Where `Capabilities.notes` is set it outlives the process: it is durable before any
    write that follows, and is removed after all writes that went before.

    Args:
        storage: whose rows it is about.
        name: lowercase letters and ``_``. ``load`` and ``part`` are the engine's.
        text: up to 4,096 characters.

    Raises:
        InvalidArgumentError: `name` or `text` is not as it should be.
    """
    storage._check_open()
    arguments.check_note(storage.table.name, name, text)
    storage._write_note(name, text)


def read_note(storage: Storage, name: str) -> str | None:
    """The text that `write_note` keeps under `name`; None: there is none."""
    storage._check_open()
    arguments.check_note(storage.table.name, name, None)
    return storage._read_note(name)
