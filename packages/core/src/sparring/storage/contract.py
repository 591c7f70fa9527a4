"""The storage contract: what a backend implements, and what its users may rely on.

A storage holds one shard of one table: keys, each owning one row. It knows nothing of
gradients, features or frameworks.

What a backend writes
    A subclass of `Storage` that fills in the `_impl` twins and `capabilities`. The public
    methods check their arguments once and then call the twin, so a twin may take for
    granted: keys are a C-contiguous ``(n,)`` int64 array of unique keys, rows a
    C-contiguous ``(n, width)`` array of the table's dtype, scores ``(n,)`` uint64 or None,
    and ``n >= 1``. A twin must not keep any array that it was passed.

Threads
    Readers (`find`, `scan`, the properties) may run beside each other, and beside a writer
    where `Capabilities.concurrent_reads` is set. One writer at a time; the caller sees to that.

What a caller may rely on
    - `find` never changes anything, scores included.
    - What `upsert` returned from is visible to the next `find`.
    - A refused call leaves the table unchanged.
    - Every int64 is a legal key, -1 and both extremes included.

What a storage declares is `sparring.storage.capabilities`, what its methods take and give
`sparring.storage.results`; both are to be had from here, too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sparring.closable import Closable
from sparring.errors import ClosedError, UnsupportedError
from sparring.storage import arguments
from sparring.storage.background import Background
from sparring.storage.capabilities import Capabilities
from sparring.storage.results import Columns, Evicted, FindResult, Keys, Rows, ScanChunk, Scores
from sparring.storage.watching import UNWATCHED, Watcher, Write
from sparring.table import TableConfig

if TYPE_CHECKING:
    from sparring.storage.tiered.device_fronting import DeviceFronting
    from sparring.storage.tiered.fronting import Fronting
    from sparring.updates import MethodChoice

__all__ = [
    "Capabilities",
    "Columns",
    "Evicted",
    "FindResult",
    "Keys",
    "Rows",
    "ScanChunk",
    "Scores",
    "Storage",
]

_LOAD = "load"


@dataclass(slots=True)
class _State:
    closed: bool = field(default=False)
    watcher: Watcher | None = field(default=None)
    notes: dict[str, str | None] = field(default_factory=dict)


class Storage(Closable):
    """One shard of one table.

    Args:
        table: what the rows are; `table.width` elements each.
        validate: check that keys are unique in each call. On for people, off for the
            engine, which has just deduplicated.
    """

    capabilities: Capabilities = Capabilities()

    def __init__(self, table: TableConfig, *, validate: bool = True) -> None:
        self.table = table
        self.validate = validate
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
    ) -> Evicted:
        """Replaces or inserts whole rows, all of them or none.

        Args:
            keys: ``(n,)`` unique int64.
            rows: ``(n, width)`` of the table's dtype.
            scores: ``(n,)`` uint64, only where `Capabilities.scores` is ``given``. Without
                them known keys keep their scores, and new ones start at 0.

        Returns:
            What had to leave to make room. It may include keys of this very call.

        Raises:
            InvalidArgumentError: wrong shape or dtype, duplicate keys.
            UnsupportedError: scores where the storage keeps its own or none.
            CapacityError: full, and the policy may not evict.
            ClosedError: the storage was closed.
        """
        if self._state.watcher is None:
            return self._upsert_unwatched(keys, rows, scores)
        checked = arguments.check_keys(keys, self.table.name, unique=self.validate)
        with self._writing(checked) as write:
            evicted = self._upsert_unwatched(checked, rows, scores)
            write.note_evicted(evicted)
        return evicted

    def restore(self, keys: npt.ArrayLike, rows: npt.ArrayLike, scores: npt.ArrayLike) -> Evicted:
        """As `upsert`, for rows of a snapshot: they get back the scores that a scan gave.

        A storage with a policy of its own goes on as if it had never stopped, where its backend
        offers that (`memory` and `hkv` do); elsewhere it starts its scores anew.

        Args:
            keys: ``(n,)`` unique int64.
            rows: ``(n, width)`` of the table's dtype.
            scores: ``(n,)`` uint64, whatever `Capabilities.scores` is.

        Raises:
            InvalidArgumentError, CapacityError, ClosedError: as `upsert`.
        """
        self._check_open()
        checked = arguments.check_keys(keys, self.table.name, unique=self.validate)
        checked_rows = arguments.check_rows(rows, len(checked), self.table)
        checked_scores = arguments.check_scores(scores, len(checked), self.table.name)
        if not len(checked):
            return self._nothing_evicted()
        with self._writing(checked) as write:
            evicted = self._restore_impl(checked, checked_rows, checked_scores)
            write.note_evicted(evicted)
        return evicted

    def update(self, keys: npt.ArrayLike, gradients: npt.ArrayLike, choice: MethodChoice) -> int:
        """Changes rows, embedding and state, by an update method; missing keys get their rows.

        Where the native twin offers it, rows change where they lie; elsewhere they are found,
        changed and upserted.

        Args:
            keys: ``(n,)`` unique int64.
            gradients: ``(n, dim)`` of the table's computing dtype.
            choice: a built-in method, its hyper-parameters and the number of the step.

        Returns:
            How many rows changed or were made.

        Raises:
            InvalidArgumentError: wrong shape or dtype, duplicate keys, a method whose state does
                not fit the rows.
            NonFiniteGradientError: NaN or infinity among the gradients; no row has changed.
            CapacityError: full, and the policy may not evict; no row has changed.
        """
        from sparring.storage.updating import update_storage

        self._check_open()
        checked = arguments.check_keys(keys, self.table.name, unique=self.validate)
        with self._writing(checked) as write:
            return update_storage(self, checked, gradients, choice, write)

    def erase(self, keys: npt.ArrayLike) -> int:
        """Removes keys; unknown ones are no error. Returns how many existed."""
        self._check_open()
        checked = arguments.check_keys(keys, self.table.name, unique=self.validate)
        if not len(checked):
            return 0
        with self._writing(checked):
            return self._erase_impl(checked)

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
            with self._writing(checked):
                self._touch_impl(checked, checked_scores)

    def evict(self, count: int) -> Evicted:
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
        with self._writing(np.empty(0, np.int64)) as write:
            evicted = self._evict_impl(most)
            write.note_evicted(evicted)
        return evicted

    def clear(self) -> None:
        """Removes all rows."""
        self._check_open()
        if self._state.watcher is not None:
            self._state.watcher.clearing()
        is_noted = self.interrupted_load is not None
        self._clear_impl()
        if is_noted:
            self.write_note(_LOAD, None)

    def begin_load(self, source: str) -> None:
        """Removes all rows, for others to come in their place; `end_load` must follow the last one.

        Where `Capabilities.notes` is set, that is noted beside the rows: should the process die
        meanwhile, `interrupted_load` tells of it when the storage is opened again.

        Args:
            source: what is loaded, for messages.
        """
        self._check_open()
        if self._state.watcher is not None:
            self._state.watcher.clearing()
        self.write_note(_LOAD, source)
        self._clear_impl()

    def end_load(self) -> None:
        """What `begin_load` began is complete; returns when it is as durable as it can be."""
        self._check_open()
        self._flush_impl()
        self.write_note(_LOAD, None)

    @property
    def interrupted_load(self) -> str | None:
        """What a load that has not ended was loading: rows may be missing. None: there is none."""
        return self.read_note(_LOAD)

    def write_note(self, name: str, text: str | None) -> None:
        """Keeps a short text about the rows; None: forgets it. `clear` leaves it.

        Where `Capabilities.notes` is set it outlives the process: it is kept durably before any
        write that follows, and forgotten after all that went before.

        Args:
            name: lowercase letters and ``_``. ``load`` and ``part`` are the engine's.
            text: up to 4,096 characters.

        Raises:
            InvalidArgumentError: `name` or `text` is not as it should be.
        """
        self._check_open()
        arguments.check_note(self.table.name, name, text)
        self._write_note_impl(name, text)
        self._state.notes[name] = text

    def read_note(self, name: str) -> str | None:
        """What `write_note` keeps under `name`; None: nothing."""
        self._check_open()
        if name not in self._state.notes:
            arguments.check_note(self.table.name, name, None)
            self._state.notes[name] = self._read_note_impl(name)
        return self._state.notes[name]

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

    def __sparring_storage__(self) -> object:
        """A capsule holding the native twin of this storage (``storage_abi.h``).

        A storage written in Python is wrapped: native callers then reach it under the GIL.
        """
        from sparring.storage.native import export_storage

        self._check_open()
        return export_storage(self)

    # -- the twins that a backend fills in ------------------------------------

    @abstractmethod
    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        """Fills `rows` and `found`; rows of missing keys must become zeros."""

    @abstractmethod
    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> Evicted: ...

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

    def _restore_impl(self, keys: Keys, rows: Rows, scores: Scores) -> Evicted:
        """Override it where the policy is the storage's own."""
        return self._upsert_impl(
            keys, rows, scores if self.capabilities.scores == "given" else None
        )

    def _copy_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        """As `_find_impl`, for who copies many rows and uses none: no cache takes them up."""
        self._find_impl(keys, columns, rows, found)

    def _flush_impl(self) -> None:
        """Nothing to do unless the backend is persistent or buffers writes."""

    def _write_note_impl(self, name: str, text: str | None) -> None:
        """Only for who declares `notes`: others keep notes as long as they are open."""

    def _read_note_impl(self, name: str) -> str | None:
        """What `_write_note_impl` kept."""
        return None

    def _touch_impl(self, keys: Keys, scores: Scores | None) -> None:
        raise NotImplementedError(f"{type(self).__name__} declares touch and must implement it")

    def _evict_impl(self, count: int) -> Evicted:
        raise NotImplementedError(f"{type(self).__name__} declares evict and must implement it")

    # -- for parts of the package -------------------------------------------------

    def front(self) -> Fronting | None:
        """For a stack whose first tier is native: what native code tells it, so that it may work
        on that tier's rows where they lie. None for all others."""
        return None

    def device_front(self) -> DeviceFronting | None:
        """For a stack whose first tier lies on a device: what `KernelSet` calls, so that rows of
        that tier stay there. None for all others."""
        return None

    def watch(self, watcher: Watcher | None) -> None:
        """Tells `watcher` of every write by the public methods from now on; None: nobody.

        Who calls a twin, or the native struct, tells it himself.
        """
        self._state.watcher = watcher

    def use_background(self, background: Background) -> None:
        """For who opens storages: work that nobody need wait for may go there from now on. Most
        storages have none."""

    def wait_for_room(self) -> None:
        """For who changes several storages in a step: returns when a write will not have to wait
        for what an earlier one left to the background. No row has changed.

        Raises:
            DeadlineError, CapacityError: what goes on there is late, or failed and leaves no room.
        """

    def _writing(self, keys: Keys) -> AbstractContextManager[Write]:
        watcher = self._state.watcher
        return UNWATCHED if watcher is None else watcher.writing(keys)

    def _upsert_unwatched(
        self, keys: npt.ArrayLike, rows: npt.ArrayLike, scores: npt.ArrayLike | None
    ) -> Evicted:
        self._check_open()
        checked = arguments.check_keys(keys, self.table.name, unique=self.validate)
        checked_rows = arguments.check_rows(rows, len(checked), self.table)
        checked_scores = self._check_scores(scores, len(checked))
        if not len(checked):
            return self._nothing_evicted()
        return self._upsert_impl(checked, checked_rows, checked_scores)

    # -- for subclasses ---------------------------------------------------------

    def _nothing_evicted(self) -> Evicted:
        return Evicted(
            np.empty(0, np.int64),
            np.empty((0, self.table.width), self.table.numpy_dtype),
            np.empty(0, np.uint64),
        )

    def _check_open(self) -> None:
        if self._state.closed:
            raise ClosedError(
                f"the storage of table {self.table.name!r} is closed; open it again with "
                "sparring.open_storage",
                table=self.table.name,
            )

    def _check_offered(self, operation: str, is_offered: bool) -> None:
        if not is_offered:
            raise UnsupportedError(
                f"{operation} on table {self.table.name!r}: {type(self).__name__} does not declare "
                f"this capability (found {operation}=False); choose a backend or policy that does",
                table=self.table.name,
                operation=operation,
            )

    def _check_scores(self, scores: npt.ArrayLike | None, count: int) -> Scores | None:
        return arguments.check_taken_scores(
            scores, count, self.table.name, self.capabilities.scores, type(self).__name__
        )
