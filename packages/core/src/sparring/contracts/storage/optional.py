"""Optional parts of the storage contract, and the watcher that observes writes.

A backend supports a part by defining its methods; most backends define none. Without a part, a
storage has the default behavior:

    part                      default
    SupportsNotes             notes are kept while the storage is open
    SupportsRestore           rows of a snapshot are upserted
    SupportsCopy              `find_into`
    SupportsPush              steps find, change and upsert rows
    SupportsReplaceAll        rows are upserted
    SupportsPurge             files may contain bytes of erased rows until they are rewritten
    SupportsBackground        every call does its work before it returns
    SupportsTiers             rows are in one storage (`sparring.contracts.storage.tiers`)
    SupportsFirstTier         native code calls the storage for each read and write
    SupportsCapsule           the storage is wrapped; native code calls it with the GIL

Arguments of ``_impl`` methods have been checked (`sparring.contracts.storage.storage`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, Scores

__all__ = [
    "Background",
    "FirstTierAccess",
    "LOAD_NOTE",
    "PART_NOTE",
    "SupportsBackground",
    "SupportsCapsule",
    "SupportsCopy",
    "SupportsFirstTier",
    "SupportsNotes",
    "SupportsPurge",
    "SupportsPush",
    "SupportsReplaceAll",
    "SupportsRestore",
    "UNWATCHED",
    "Watcher",
    "Write",
    "watched",
]

LOAD_NOTE = "load"
"""Name of the note that exists while a load writes rows. `Storage.clear` removes it."""

PART_NOTE = "part"
"""Name of the note that states which ranks' rows a storage contains. `Storage.clear` keeps it."""


@runtime_checkable
class SupportsNotes(Protocol):
    """A storage that stores short texts with the rows; like the rows, they outlive the process.

    A backend that defines this sets `Capabilities.notes`.
    """

    def _write_note_impl(self, name: str, text: str | None) -> None:
        """Stores `text` under `name`; None removes the note.

        A note becomes durable before any later write. It is removed only after all earlier writes
        are durable.
        """

    def _read_note_impl(self, name: str) -> str | None:
        """Returns the note, or None."""


@runtime_checkable
class SupportsRestore(Protocol):
    """A storage whose eviction policy resumes with the scores of a snapshot."""

    def _restore_impl(self, keys: Keys, rows: Rows, scores: Scores) -> EvictedRows:
        """Upserts rows with the scores that a scan returned, for any `Capabilities.scores`."""


@runtime_checkable
class SupportsPurge(Protocol):
    """A storage whose files contain bytes of erased rows until they are rewritten."""

    def purge(self) -> None:
        """Rewrites the files with erased rows. This may take as long as copying the table."""


@runtime_checkable
class SupportsCopy(Protocol):
    """A storage that can read rows without changing its caches and counters."""

    def copy_into(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        """Reads rows like `Storage.find_into`.

        Args:
            keys: ``(n,)`` unique int64, C-contiguous, ``n >= 1``.
            columns: the columns of each row to read.
            rows: ``(n, width of columns)`` of the table's dtype, C-contiguous; filled.
            found: ``(n,)``; filled.
        """


@runtime_checkable
class SupportsPush(Protocol):
    """A storage that accepts gradients and updates its rows itself, such as a parameter service."""

    def push(self, keys: Keys, gradients: Rows, choice: MethodChoice) -> None:
        """Updates rows with the gradients of one step. The container does not write these rows.

        Args:
            keys: ``(n,)`` unique.
            gradients: ``(n, dim)`` of the table's computing dtype, finite.
            choice: the update method; the storage may count steps itself.

        Raises:
            SparringError: no row has changed, or the error states which rows have.
        """


@runtime_checkable
class SupportsReplaceAll(Protocol):
    """A storage whose embeddings can only be replaced together, for all tables of a service."""

    rows_dtype: str
    """Dtype of the rows in the service; embeddings may be read in another dtype."""

    def replace_all(self, embeddings: Mapping[str, Rows]) -> None:
        """Replaces the rows of all tables and resets the optimizer state.

        Args:
            embeddings: table → ``(n, dim)`` embeddings of the keys 0 to n - 1.

        Raises:
            SparringError: a table is missing or has a different dim, or the service raised an error.
        """


@runtime_checkable
class SupportsBackground(Protocol):
    """A storage that writes to slower storages in the background."""

    def use_background(self, background: Background) -> None:
        """Runs background work on another object from now on.

        Args:
            background: runs the calls, and reports their failures before the next step.
        """

    def wait_for_capacity(self) -> None:
        """Waits until a write can proceed without waiting for background work. Changes no row.

        A step calls this for all storages before it changes the first of them.

        Raises:
            DeadlineError: the background work did not finish in time.
            CapacityError: the background work failed, so there is no space for new rows.
        """


class FirstTierAccess(Protocol):
    """Callbacks of native code that works on the rows of a native first tier.

    ``native/bindings/front.h`` calls them.
    """

    @property
    def first(self) -> object:
        """Capsule of the first tier."""

    def begin_visit(self) -> None:
        """Called before a read of rows in the first tier; `end_visit` must follow."""

    def end_visit(self, num_served: int, read_bytes: int, seconds: float) -> None:
        """Called after a read, with the number of keys and bytes read and the time that it took."""

    def begin_update(self, keys: Keys) -> None:
        """Called before rows in the first tier change; `end_update` or `abort_update` must follow."""

    def bring_up(self, keys: Keys, missing: Keys) -> bool:
        """Copies rows from lower tiers to the first tier.

        Args:
            keys: all keys of the update.
            missing: the keys that are not in the first tier.

        Returns:
            Whether all existing rows of `keys` are now in the first tier.
        """

    def end_update(
        self,
        keys: Keys,
        num_inserted: int,
        evicted: tuple[Keys, Rows, Scores] | None,
        seconds: float,
    ) -> tuple[Keys, Rows, Scores] | None:
        """Called after an update with the rows evicted from the first tier.

        Returns:
            The rows that were evicted from the whole storage.
        """

    def abort_update(self) -> None:
        """Called instead of `end_update` if no row has changed."""


@runtime_checkable
class SupportsFirstTier(Protocol):
    """A stack of storages whose first tier native code can access directly."""

    def first_tier_access(self) -> FirstTierAccess | None:
        """Returns the callbacks for native code; None if the first tier is not native."""


@runtime_checkable
class SupportsCapsule(Protocol):
    """A storage with a native handle: a struct of ``storage_abi.h``."""

    def __sparring_storage__(self) -> object:
        """Returns a capsule named ``sparring.storage`` that owns the struct.

        Raises:
            ClosedError: the storage was closed.
        """


class Write(Protocol):
    """One write that a watcher observes."""

    def note_evicted(self, evicted: EvictedRows) -> None:
        """Called with the rows that the write evicted."""

    def note_erased(self) -> None:
        """Called after the write has removed its keys."""


class Watcher(Protocol):
    """Observer of writes to a storage. It is called on the thread that writes.

    Only `check_written` may raise.
    """

    def check_written(self, keys: Keys) -> None:
        """Raises if another rank owns a key. Called before `upsert` or `update_rows` changes a row.

        It is not called by loads, which only contain keys of this rank, nor by methods without
        checks.
        """

    def writing(self, keys: Keys) -> AbstractContextManager[Write]:
        """Returns a context for a write; it is entered before the first row changes."""

    def clearing(self) -> None:
        """Called before all rows are removed."""


class _Unwatched:
    def note_evicted(self, evicted: EvictedRows) -> None:
        pass

    def note_erased(self) -> None:
        pass


UNWATCHED: AbstractContextManager[Write] = nullcontext(_Unwatched())
"""Context of a write without a watcher."""


def watched(watcher: Watcher | None, keys: Keys) -> AbstractContextManager[Write]:
    """Returns the context for a write to the rows of `keys`.

    Args:
        watcher: the observer, or None.
        keys: ``(n,)``; empty if the caller does not know them.
    """
    return UNWATCHED if watcher is None else watcher.writing(keys)


def check_written(watcher: Watcher | None, keys: Keys) -> None:
    """Calls `Watcher.check_written` if there is a watcher."""
    if watcher is not None:
        watcher.check_written(keys)


if TYPE_CHECKING:
    from sparring.contracts.storage.updates import MethodChoice
    from sparring.runtime.pool import Task


class Background(Protocol):
    """Runs calls on separate threads and reports failures.

    `sparring.runtime.events.EventLoop` implements it. Its owner checks for failures before each step.
    """

    def submit(
        self, work: Callable[[], object], *, name: str | None = None, timeout: float | None = None
    ) -> Task[Any]:
        """Starts a call that may block.

        Args:
            work: a callable without arguments.
            name: name of the work in error messages.
            timeout: seconds to wait for space in the queue.

        Raises:
            DeadlineError: the queue remained full.
            ClosedError: it was closed.
        """
