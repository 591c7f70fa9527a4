"""A cache before a backend that a trainer in another process writes to, as one storage that is read.

    find      cache ──missing──► filter of existing keys ──may exist──► backend ──► into the cache
    notes     filter swapped, changed keys read again, erased keys removed (`follower`)

Guarantees, each for one table:
  - a row is never torn;
  - finds that follow each other never see a row go back to an older one (`cache_fills`);
  - `CacheCounters.behind_seconds` ago, or later, every cached row was as new as the newest note.
There is no version over several tables.

Thread rule: as `Storage`, and any thread may `find` at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from sparring.contracts import (
    Capabilities,
    ChangeLog,
    Columns,
    EvictedRows,
    Keys,
    Rows,
    ScanChunk,
    Scores,
    Storage,
    TableConfig,
    call_each,
    check_columns,
    check_keys,
)
from sparring.errors import InvalidArgumentError, SparringError, StorageIOError, UnsupportedError
from sparring_tiered.cache.cache_fills import CacheFills
from sparring_tiered.cache.follower import Follower
from sparring_tiered.options import RefreshOptions

__all__ = ["AvailableRows", "CacheCounters", "CachedStorage", "NotesProgress"]


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """One cached table since it was opened."""

    hits: int
    """Keys that a find had from the cache."""
    misses: int
    """Keys that the backend was asked for."""
    filtered: int
    """Keys that no one was asked for, as the filter of existing keys ruled them out."""
    cached_rows: int
    """Rows in the cache now."""
    dropped_rows: int
    """Rows that were read and not kept, as they might have been older than a note or another read."""
    notes: int
    """Notes that were taken."""
    missed_notes: int
    """Times that notes were missed, or that any row may have changed: the cache was emptied gradually."""
    reread_rows: int
    """Cached keys that were read again because of notes."""
    erased_rows: int
    """Keys that left the cache because notes said that they were erased."""
    rows_to_drop: int
    """Cached rows that are still to be removed after a missed note."""
    refresh_seconds: float
    """Time that the last note took to be taken."""
    behind_seconds: float
    """Time since all cached rows were as new as the newest note: the bound of staleness."""
    sequence: int
    """Number of the newest note that was taken."""
    step: int
    """Step of training of that note."""
    failed_looks: int
    """Looks for notes that failed."""

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class AvailableRows:
    """The rows of a find that could be read."""

    rows: Rows
    """``(n, columns)``; rows that were not found or not read are zeros."""
    found: npt.NDArray[np.bool_]
    """``(n,)``: whether the key has a row that was read."""
    failed: npt.NDArray[np.bool_]
    """``(n,)``: whether the backend was needed for the key and failed."""
    failure: str
    """The message of the failure; empty if nothing failed."""


@dataclass(frozen=True, slots=True)
class NotesProgress:
    """How far a reader has followed the notes of a table."""

    run: str
    """Of the newest note that was taken; empty before the first."""
    step: int
    """Of training, at that note."""
    published: float
    """When that was, in seconds since 1970."""
    behind_seconds: float
    """As of `CacheCounters`."""


class CachedStorage(Storage):
    """Embeddings of one table: the hot ones in a cache, all in a backend that others write to.

    Args:
        table: without an optimizer's state: of it rows have the embedding only.
        cache: an empty storage of `table` that readers may read while it is written to; bounded ones
            must evict.
        backend: the storage of all rows; its rows may have state behind the embedding. It is read only.
        log: the notes of the table.
        options: how they are followed.

    All three are closed with this.

    Raises:
        InvalidArgumentError: the tables differ, the cache cannot be used as one, or there are no notes.
        SparringError: the notes cannot be read.
    """

    capabilities = Capabilities(persistent=True, shared=True, concurrent_reads=True)

    def __init__(
        self,
        table: TableConfig,
        cache: Storage,
        backend: Storage,
        log: ChangeLog,
        options: RefreshOptions,
    ) -> None:
        super().__init__(table)
        _check(table, cache, backend)
        self.options = options
        self._cache, self._backend = cache, backend
        self._fills = CacheFills(cache)
        self._counting = threading.Lock()
        self._hits = self._misses = self._filtered = 0
        self._failed_until = 0.0
        self._failure = ""
        self._embedding = Columns(0, table.dim)
        self._follower = Follower(table, backend, self._fills, log, options)

    # -- reading ------------------------------------------------------------

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        self._read_misses(self._find_cached(keys, columns, rows, found), keys, columns, rows, found)

    def find_available(self, keys: npt.ArrayLike, columns: Columns | None = None) -> AvailableRows:
        """Finds rows as `find`, and marks the keys that could not be read if the backend fails.

        Args:
            keys: ``(n,)`` distinct.
            columns: of the rows; None: all.
        """
        self._check_open()
        checked = check_keys(keys, self.table.name, unique=self.validate)
        span = check_columns(columns, self.table)
        rows = np.empty((len(checked), span.end - span.begin), self.table.numpy_dtype)
        found, failed = np.empty(len(checked), np.bool_), np.zeros(len(checked), np.bool_)
        asked = self._find_cached(checked, span, rows, found)
        try:
            self._read_misses(asked, checked, span, rows, found)
        except SparringError as error:
            failed[asked] = True
            return AvailableRows(rows, found, failed, str(error))
        return AvailableRows(rows, found, failed, "")

    def _find_cached(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.intp]:
        """Finds what the cache has; returns the places of the keys to ask the backend for."""
        existing = self._follower.existing
        self._cache.find_into(keys, columns, rows, found)
        missing = np.flatnonzero(~found)
        asked = missing[existing.contains(keys[missing])]
        with self._counting:
            self._hits += len(keys) - len(missing)
            self._misses += len(asked)
            self._filtered += len(missing) - len(asked)
        return asked

    def _read_misses(
        self,
        asked: npt.NDArray[np.intp],
        keys: Keys,
        columns: Columns,
        rows: Rows,
        found: npt.NDArray[np.bool_],
    ) -> None:
        """Fills the rows of the keys at the places `asked` from the backend."""
        if not len(asked):
            return
        asked_keys = keys[asked]
        hits = keys[found] if self._cache.capabilities.touch else None
        read, is_there = self._read_through(asked_keys, hits)
        rows[asked] = read[:, columns.begin : columns.end]
        found[asked] = is_there

    def _read_through(self, keys: Keys, hits: Keys | None) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Reads keys from the backend, and puts them into the cache."""
        if time.monotonic() < self._failed_until:
            self._reject_misses(len(keys))
        rows = np.empty((len(keys), self.table.width), self.table.numpy_dtype)
        found = np.empty(len(keys), np.bool_)
        begun = self._fills.begin()
        try:
            self._backend.find_into(keys, self._embedding, rows, found)
        except BaseException as error:
            self._fills.abandon(begun)
            if isinstance(error, SparringError):
                self._failure = str(error)
                self._failed_until = time.monotonic() + self.options.poll_seconds
            raise
        self._fills.end(begun, keys, rows, found, hits)
        return rows, found

    def _reject_misses(self, count: int) -> NoReturn:
        raise StorageIOError(
            f"table {self.table.name!r}: {count} of the keys are not in the cache, and the backend "
            f"failed less than {self.options.poll_seconds:g} s ago ({self._failure}); cached rows are "
            "still found. Mend the backend, or try again",
            table=self.table.name,
        )

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        return self._backend.scan(chunk_rows, columns)

    def _size_impl(self) -> int:
        return self._backend.size

    @property
    def max_num_rows(self) -> int:
        """Rows of the table, by the filter of existing keys: erased ones included."""
        self._check_open()
        return self._follower.num_existing

    @property
    def memory_bytes(self) -> int:
        self._check_open()
        return sum(each.memory_bytes for each in (self._cache, self._fills, self._follower))

    # -- notes ------------------------------------------------------------------

    def refresh(self) -> bool:
        """Looks for notes now and takes them; returns whether there were any.

        Raises:
            SparringError: the notes or the backend cannot be read. What is cached is found as before.
            DeadlineError: it goes on in the background.
        """
        self._check_open()
        return self._follower.refresh()

    def progress(self) -> NotesProgress:
        """How far the notes were taken."""
        follower = self._follower
        return NotesProgress(
            follower.run, follower.step, follower.published, follower.behind_seconds
        )

    def counters(self) -> CacheCounters:
        """Counters since this was opened."""
        self._check_open()
        follower = self._follower
        return CacheCounters(
            hits=self._hits,
            misses=self._misses,
            filtered=self._filtered,
            cached_rows=self._cache.size,
            dropped_rows=self._fills.num_dropped,
            notes=follower.num_notes,
            missed_notes=follower.num_missed,
            reread_rows=follower.num_reread,
            erased_rows=follower.num_erased,
            rows_to_drop=follower.num_to_drop,
            refresh_seconds=follower.refresh_seconds,
            behind_seconds=follower.behind_seconds,
            sequence=follower.sequence,
            step=follower.step,
            failed_looks=follower.num_failed,
        )

    # -- writing ----------------------------------------------------------------

    def _upsert_impl(self, keys: Keys, rows: Rows, scores: Scores | None) -> EvictedRows:
        self._reject("upsert")

    def _erase_impl(self, keys: Keys) -> int:
        self._reject("erase")

    def _clear_impl(self) -> None:
        self._reject("clear")

    def _reject(self, operation: str) -> NoReturn:
        raise UnsupportedError(
            f"{operation} on table {self.table.name!r}: it was opened with refresh, to read what a "
            "trainer writes; leave refresh out where rows are trained",
            table=self.table.name,
            operation=operation,
        )

    def _close_impl(self) -> None:
        call_each([self._follower.close, self._cache.close, self._backend.close])


def _check(table: TableConfig, cache: Storage, backend: Storage) -> None:
    name = table.name
    if table.state_width:
        raise InvalidArgumentError(
            f"table {name!r}: a cache holds embeddings and no state of an optimizer, asked was for "
            f"{table.row_label!r}; declare the table without state",
            table=name,
        )
    if cache.table != table or backend.table.with_state(0) != table:
        raise InvalidArgumentError(
            f"table {name!r}: cache and backend were opened for {cache.table} and {backend.table}; "
            f"open both for {table}",
            table=name,
        )
    offered = cache.capabilities
    if not offered.concurrent_reads or (offered.bounded and not offered.evicts):
        raise InvalidArgumentError(
            f"table {name!r}: {type(cache).__name__} cannot be the cache (concurrent_reads is "
            f"{offered.concurrent_reads}, evicts is {offered.evicts}); choose a storage that is read "
            "while it is written to, and a policy that evicts where it is bounded, as hkv with lru",
            table=name,
        )
