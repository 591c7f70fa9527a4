"""Optional parts of the storage contract, and the watcher that is told of writes.

A backend offers a part by defining its methods; most backends define none. Storages without a part
get the default:

    part                      default
    SupportsNotes             notes are kept for as long as the storage is open
    SupportsRestore           rows of a snapshot are upserted
    SupportsCopy              `find_into`
    SupportsReplaceAll        rows are upserted
    SupportsPurge             files may keep bytes of erased rows until they are rewritten
    SupportsBackground        every call does its work itself
    SupportsTiers             rows are in one storage (`sparring.contracts.storage.tiers`)
    SupportsFirstTier         native code calls the storage for each read and write
    SupportsCapsule           the storage is wrapped: native code reaches it under the GIL

Arguments of ``_impl`` methods have been checked, as `sparring.contracts.storage.storage` says.
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
"""The note that names a load from its first row to its last. `Storage.clear` forgets it."""

PART_NOTE = "part"
"""The note that says which ranks' rows a storage contains. `Storage.clear` keeps it."""


@runtime_checkable
class SupportsNotes(Protocol):
    """Keeps short texts with the rows of a table; a note outlives the process as the rows do.

    A backend that defines this sets `Capabilities.notes`.
    """

    def _write_note_impl(self, name: str, text: str | None) -> None:
        """Keeps `text` under `name`; None removes the note.

        The note is durable before any write that follows, and is removed after all writes before.
        """

    def _read_note_impl(self, name: str) -> str | None:
        """Returns the note, or None."""


@runtime_checkable
class SupportsRestore(Protocol):
    """Has a policy of its own, and goes on with the scores of a snapshot as if it had never stopped."""

    def _restore_impl(self, keys: Keys, rows: Rows, scores: Scores) -> EvictedRows:
        """Upserts rows with the scores that a scan gave, whatever `Capabilities.scores` is."""


@runtime_checkable
class SupportsPurge(Protocol):
    """Keeps rows in files of its own, which have bytes of erased rows until they are rewritten."""

    def purge(self) -> None:
        """Rewrites what has bytes of erased rows; it may take as long as to copy the table."""


@runtime_checkable
class SupportsCopy(Protocol):
    """Reads rows without a trace: no cache keeps them and no counter changes."""

    def copy_into(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        """Reads rows as `Storage.find_into` does."""


@runtime_checkable
class SupportsPush(Protocol):
    """Takes gradients, and updates its rows where they are: a service whose tables learn."""

    def push(self, keys: Keys, gradients: Rows, choice: MethodChoice) -> None:
        """Updates rows in one step; a step of a container does nothing else to them.

        Args:
            keys: ``(n,)`` unique.
            gradients: ``(n, dim)`` of the table's computing dtype, finite.
            choice: the update method; the storage may count steps itself.

        Raises:
            SparringError: no row has changed, or the error says which have.
        """


@runtime_checkable
class SupportsReplaceAll(Protocol):
    """Takes the embeddings of all tables at once: a service that takes no single rows."""

    rows_dtype: str
    """Of the rows where they are; embeddings that are read here may be of another."""

    def replace_all(self, embeddings: Mapping[str, Rows]) -> None:
        """Replaces the rows of all tables; optimizer state begins again.

        Args:
            embeddings: table → ``(n, dim)`` of the keys 0 to n - 1.

        Raises:
            SparringError: a table is missing or of another dim, or the service refused.
        """


@runtime_checkable
class SupportsBackground(Protocol):
    """Writes to slower storage in the background."""

    def use_background(self, background: Background) -> None:
        """Runs background work there from now on."""

    def wait_for_capacity(self) -> None:
        """Returns when a write will not have to wait for background work. No row has changed.

        A step over several storages calls this before it changes the first of them.

        Raises:
            DeadlineError, CapacityError: the background work is late, or failed and leaves no room.
        """


class FirstTierAccess(Protocol):
    """Calls that native code makes around its work on the rows of a native first tier.

    ``native/bindings/front.h`` is the caller.
    """

    @property
    def first(self) -> object:
        """The capsule of the first tier."""

    def begin_visit(self) -> None:
        """Begins to read rows of the first tier; `end_visit` must follow."""

    def end_visit(self, num_served: int, read_bytes: int, seconds: float) -> None:
        """Ends it: so many keys were read, in so long."""

    def begin_update(self, keys: Keys) -> None:
        """Begins to change rows of the first tier; `end_update` or `abort_update` must follow."""

    def bring_up(self, keys: Keys, missing: Keys) -> bool:
        """Copies rows of lower tiers into the first.

        Args:
            keys: of the update.
            missing: those that the first tier lacks.

        Returns:
            Whether all of `keys` that exist are in the first tier now.
        """

    def end_update(
        self,
        keys: Keys,
        num_inserted: int,
        evicted: tuple[Keys, Rows, Scores] | None,
        seconds: float,
    ) -> tuple[Keys, Rows, Scores] | None:
        """Ends it: `evicted` left the first tier. Returns the rows that left the storage."""

    def abort_update(self) -> None:
        """Ends it: no row has changed."""


@runtime_checkable
class SupportsFirstTier(Protocol):
    """A stack of storages whose first tier native code can work on directly."""

    def first_tier_access(self) -> FirstTierAccess | None:
        """Returns the calls around that work; None where the first tier is not native."""


@runtime_checkable
class SupportsCapsule(Protocol):
    """Has a native handle: a struct of ``storage_abi.h``."""

    def __sparring_storage__(self) -> object:
        """Returns a capsule named ``sparring.storage`` that owns the struct.

        Raises:
            ClosedError: the storage was closed.
        """


class Write(Protocol):
    """One watched write."""

    def note_evicted(self, evicted: EvictedRows) -> None:
        """Takes the rows that left to make room for the write."""

    def note_erased(self) -> None:
        """The write has removed its keys."""


class Watcher(Protocol):
    """Observer of the writes to a storage, on the thread that writes. Only `check_written` may raise."""

    def check_written(self, keys: Keys) -> None:
        """Refuses keys whose rows another rank keeps, before `upsert` or `update_rows` changes a row.

        Not called where a load restores rows, for it brings keys of this rank only, nor by the
        unchecked methods.
        """

    def writing(self, keys: Keys) -> AbstractContextManager[Write]:
        """Surrounds a write to rows of `keys`: entered before the first of them changes."""

    def clearing(self) -> None:
        """All rows are about to be removed."""


class _Unwatched:
    def note_evicted(self, evicted: EvictedRows) -> None:
        pass

    def note_erased(self) -> None:
        pass


UNWATCHED: AbstractContextManager[Write] = nullcontext(_Unwatched())
"""Surrounds a write that has no watcher."""


def watched(watcher: Watcher | None, keys: Keys) -> AbstractContextManager[Write]:
    """Surrounds a write to rows of `keys`.

    Args:
        watcher: told of the write; None: there is none.
        keys: ``(n,)``; empty where the caller cannot name them.
    """
    return UNWATCHED if watcher is None else watcher.writing(keys)


def check_written(watcher: Watcher | None, keys: Keys) -> None:
    """Refuses keys that are not to be written here, where there is a watcher that knows."""
    if watcher is not None:
        watcher.check_written(keys)


if TYPE_CHECKING:
    from sparring.contracts.storage.updates import MethodChoice
    from sparring.runtime.pool import Task


class Background(Protocol):
    """Runs calls on its own threads and reports those that fail.

    `sparring.runtime.events.EventLoop` is one. The owner, who hands it to storages, asks it for
    failures before each step.
    """

    def submit(
        self, work: Callable[[], object], *, name: str | None = None, timeout: float | None = None
    ) -> Task[Any]:
        """Begins a call that may block.

        Args:
            work: the call, without arguments.
            name: for errors.
            timeout: seconds to wait for room.

        Raises:
            DeadlineError: no room.
            ClosedError: it takes no more work.
        """
