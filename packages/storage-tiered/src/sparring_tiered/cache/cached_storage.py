"""A read-only storage: a cache in front of a backend that a trainer in another process writes to.

    find      cache ──missing──► filter of existing keys ──may exist──► backend ──► into the cache
    notes     replace the filter, read changed keys again, remove erased keys (`follower`)

Guarantees, each for one table:
  - a row is never torn;
  - consecutive finds never return an older row of a key than before (`cache_fills`);
  - every cached row was as new as the newest note at most `CacheCounters.behind_seconds` ago.
There is no guarantee over several tables: their rows may be of different training steps.

Any thread may call `find` at any time. Otherwise the rules of `Storage` for threads apply.
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
    """Counters of one cached table since it was opened."""

    hits: int
    """Keys that finds read from the cache."""
    misses: int
    """Keys that finds read from the backend."""
    filtered: int
    """Keys that finds did not read, because the filter of existing keys does not contain them."""
    cached_rows: int
    """Rows in the cache now."""
    dropped_rows: int
    """Rows that were read but not cached, because they might be older than a note or another read."""
    notes: int
    """Applied notes."""
    missed_notes: int
    """Times that notes were missed or reported that any row may have changed, so that the cache was
    emptied gradually."""
    reread_rows: int
    """Cached keys that were read again because of notes."""
    erased_rows: int
    """Keys that were removed from the cache because notes reported them as erased."""
    rows_to_drop: int
    """Cached rows that are still to be removed after a missed note."""
    refresh_seconds: float
    """Time to apply the last note."""
    behind_seconds: float
    """Time since all cached rows were last as new as the newest note. No cached row is staler than
    this."""
    sequence: int
    """Number of the newest applied note."""
    step: int
    """Training step of that note."""
    failed_polls: int
    """Polls for notes that failed."""

    def as_dict(self) -> dict[str, float]:
        """Returns the counters as a dict for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class AvailableRows:
    """Result of a find that may have failed for some keys."""

    rows: Rows
    """``(n, columns)``; zeros for rows that do not exist or could not be read."""
    found: npt.NDArray[np.bool_]
    """``(n,)``: whether the row of the key was read."""
    failed: npt.NDArray[np.bool_]
    """``(n,)``: whether the backend was needed for the key and failed."""
    failure: str
    """Message of the failure; empty if nothing failed."""


@dataclass(frozen=True, slots=True)
class NotesProgress:
    """Position of a reader in the notes of a table."""

    run: str
    """Run of the newest applied note; empty before the first one."""
    step: int
    """Training step of that note."""
    published: float
    """Time when it was published, in seconds since 1970."""
    behind_seconds: float
    """See `CacheCounters.behind_seconds`."""


class CachedStorage(Storage):
    """Reads the embeddings of one table from a cache of recently used rows and, if they are not
    cached, from a backend that a trainer writes to.

    `close` closes the cache, the backend and the log.

    Args:
        table: Declaration of the table without optimizer state; rows consist of the embedding only.
        cache: Empty storage of `table` that supports concurrent readers. If it is bounded, it must evict.
        backend: Storage of all rows, which is only read. Its rows may have optimizer state.
        log: Notes of the table.
        options: How the notes are followed.

    Raises:
        InvalidArgumentError: The tables differ, `cache` cannot be used as a cache, or there are no notes.
        SparringError: The notes cannot be read.
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
        self._embedding = Columns(0, table.embedding_width)
        self._follower = Follower(table, backend, self._fills, log, options)

    # -- reading ------------------------------------------------------------

    def _find_impl(
        self, keys: Keys, columns: Columns, rows: Rows, found: npt.NDArray[np.bool_]
    ) -> None:
        self._read_misses(self._find_cached(keys, columns, rows, found), keys, columns, rows, found)

    def find_available(self, keys: npt.ArrayLike, columns: Columns | None = None) -> AvailableRows:
        """Finds rows like `find`, but marks the keys that could not be read if the backend fails.

        Args:
            keys: ``(n,)`` distinct int64.
            columns: Columns to read; None for all.
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
        """Finds rows in the cache; returns the positions of the keys to read from the backend."""
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
        """Fills the rows of the keys at the positions `asked` from the backend."""
        if not len(asked):
            return
        asked_keys = keys[asked]
        hits = keys[found] if self._cache.capabilities.touch else None
        read, is_there = self._read_through(asked_keys, hits)
        rows[asked] = read[:, columns.begin : columns.end]
        found[asked] = is_there

    def _read_through(self, keys: Keys, hits: Keys | None) -> tuple[Rows, npt.NDArray[np.bool_]]:
        """Reads keys from the backend, and adds them to the cache."""
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
            f"find in table {self.table.name!r}: {count} of the keys are not in the cache, and "
            f"the backend failed less than {self.options.poll_seconds:g} s ago ({self._failure}); "
            "cached rows are still available. Repair the backend, or try again",
            table=self.table.name,
        )

    def _scan_impl(self, chunk_rows: int, columns: Columns) -> Iterator[ScanChunk]:
        return self._backend.scan(chunk_rows, columns)

    def _size_impl(self) -> int:
        return self._backend.size

    @property
    def max_num_rows(self) -> int:
        """Upper bound of the number of rows in the table, from the filter of existing keys.

        It includes erased keys until the filter is rebuilt.
        """
        self._check_open()
        return self._follower.num_existing

    @property
    def memory_bytes(self) -> int:
        self._check_open()
        return sum(each.memory_bytes for each in (self._cache, self._fills, self._follower))

    # -- notes ------------------------------------------------------------------

    def refresh(self) -> bool:
        """Polls for notes and applies them; returns whether there were any.

        Raises:
            SparringError: The notes or the backend cannot be read. Cached rows are still available.
            DeadlineError: The call takes too long; its work continues in the background.
        """
        self._check_open()
        return self._follower.refresh()

    def progress(self) -> NotesProgress:
        """Returns the position in the notes."""
        follower = self._follower
        return NotesProgress(
            follower.run, follower.step, follower.published, follower.behind_seconds
        )

    def counters(self) -> CacheCounters:
        """Returns the counters since the storage was opened."""
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
            failed_polls=follower.num_failed,
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
            f"{operation} on table {self.table.name!r}: it was opened with refresh and is read-only; "
            "remove refresh in the process that trains the rows",
            table=self.table.name,
            operation=operation,
        )

    def _close_impl(self) -> None:
        call_each([self._follower.close, self._cache.close, self._backend.close])


def _check(table: TableConfig, cache: Storage, backend: Storage) -> None:
    name = table.name
    if table.state_width:
        raise InvalidArgumentError(
            f"table {name!r}: a cache contains embeddings without optimizer state, found "
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
            f"{offered.concurrent_reads}, evicts is {offered.evicts}); choose a storage that supports "
            "concurrent reads, with a policy that evicts if it is bounded, such as hkv with lru",
            table=name,
        )
