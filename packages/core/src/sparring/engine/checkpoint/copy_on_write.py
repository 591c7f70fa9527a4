"""The rows of one table at one moment, while steps change them (copy on write).

The save reads one group of partitions after another. A step that is about to write reads the old rows
of the keys that the save still needs, and stores them for the save as undo rows:

    step     keys of unsaved groups, not touched yet ──► find old rows ──► undo rows ──► write
    save     find the rows of group g ──► without rows that a step touched ──► file
             undo rows since ──► file

This is exact for the following reasons. A step adds its keys to `touched` before it writes the first of
them. The save reads rows first and checks `touched` afterwards: if a key is not in it, no write of the
key had started when its row was read. If a write may remove rows of other keys, as in a storage that
evicts, the lock is held during the write, so that no unsaved row is lost. A group counts as saved from
the moment of the check; from then on steps ignore its keys. Therefore each key is yielded once, even if
the scan of a storage returns some keys twice.

The keys come from a scan, which returns all keys that exist from its beginning to its end. All other
keys were written, and so have undo rows. Scores change with every write, and storages cannot look them
up by key. Therefore, if a storage has scores, they are copied with the keys when the table is frozen.
The undo rows of all tables of a save share one memory budget.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.ranks.shard_map import NUM_PARTITIONS
from sparring.contracts.storage.optional import SupportsCopy
from sparring.contracts.storage.results import Columns, EvictedRows, Keys, Rows, ScanChunk, Scores
from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InternalError, InvalidArgumentError
from sparring.snapshot.format.manifest import no_pause
from sparring.snapshot.row_router import allocate_returnable

__all__ = ["CopyOnWriteView", "UndoBudget", "UndoRows"]


@dataclass(frozen=True, slots=True)
class UndoRows:
    """Rows before a step wrote to them."""

    keys: Keys
    """``(n,)``"""
    rows: Rows
    """``(n, width)``; undefined if `found` is False."""
    found: npt.NDArray[np.bool_]
    """``(n,)``: whether the key had a row."""

    @property
    def num_bytes(self) -> int:
        return self.keys.nbytes + self.rows.nbytes + self.found.nbytes


class UndoBudget:
    """Memory budget for the undo rows of all tables of a save.

    If the budget is used up, a step waits until the save has written some undo rows. Therefore the
    maximum memory is the budget plus the undo rows of one step.

    Args:
        limit_bytes: size of undo rows from which steps wait.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.max_used_bytes = 0
        self.num_rows = 0
        self.wait_seconds = 0.0
        self._used_bytes = 0
        self._is_over = False
        self._changed = threading.Condition()

    def take(self, rows: UndoRows) -> None:
        """Adds undo rows to the used bytes."""
        with self._changed:
            self._used_bytes += rows.num_bytes
            self.num_rows += len(rows.keys)
            self.max_used_bytes = max(self.max_used_bytes, self._used_bytes)

    @property
    def is_half_used(self) -> bool:
        """Whether undo rows of tables that are not being written yet should be written ahead."""
        return 2 * self._used_bytes >= self.limit_bytes

    @property
    def is_urgent(self) -> bool:
        """Whether steps may soon have to wait, or the save is over."""
        return 4 * self._used_bytes >= 3 * self.limit_bytes or self._is_over

    def give_back(self, num_bytes: int) -> None:
        """Subtracts the bytes of undo rows that were written and freed."""
        if num_bytes:
            with self._changed:
                self._used_bytes -= num_bytes
                self._changed.notify_all()

    def end(self) -> None:
        """Ends all waits of steps, because the save is over."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_for_capacity(self, seconds: float) -> bool:
        """Waits until there is space for undo rows; returns False after a timeout in seconds."""
        with self._changed:
            if self._used_bytes < self.limit_bytes or self._is_over:
                return True
            begin = time.perf_counter()
            has_room = self._changed.wait_for(
                lambda: self._used_bytes < self.limit_bytes or self._is_over, seconds
            )
            self.wait_seconds += time.perf_counter() - begin
            return has_room


_GROUP_BYTES = 4 << 20
"""Approximate bytes of the rows of a group, which the save keeps in memory."""
_WINDOW_KEYS = 4 << 20
"""Approximate number of keys that the save collects per scan."""
_SCAN_ROWS = 65_536
Groups = npt.NDArray[np.uint16]
Positions = npt.NDArray[np.int64]

_PIECE_KEYS = 1024
"""Number of keys per read of a save: so few that a storage reads them on one thread, and the other
threads stay free for steps."""


class CopyOnWriteView:
    """View of a storage at the moment of its creation, when no step may be in progress.

    `chunks` and `undo_chunks` are called on the thread of the save, all other methods on the writing
    thread.

    Args:
        table: configuration of the table.
        storage: storage of the rows.
        budget: budget for undo rows, shared with other tables of the save.
        changed: keys to which the view is restricted; None for all keys.
    """

    def __init__(
        self,
        table: TableConfig,
        storage: Storage,
        budget: UndoBudget,
        changed: _native.KeySet | None = None,
    ) -> None:
        self.table = table
        self.num_keys = storage.size if changed is None else len(changed)
        self.erased: list[Keys] = []
        """Keys of `changed` that had no row; complete after `chunks` has ended."""
        self._storage, self._budget, self._changed = storage, budget, changed
        self._copy_into = (
            storage.copy_into if isinstance(storage, SupportsCopy) else storage.find_into
        )
        bits = (max(1, self.num_keys * table.row_bytes) // _GROUP_BYTES).bit_length()
        self._num_groups = min(1 << bits, NUM_PARTITIONS)
        self._shift = (NUM_PARTITIONS // self._num_groups).bit_length() - 1
        self._whole = Columns(0, table.width)
        # A write may remove rows of other keys, or reads are not allowed during a write.
        offered = storage.capabilities
        self._is_locked_by_writes = offered.evicts or offered.evict or not offered.concurrent_reads
        self._lock = threading.Lock()  # guards the attributes below
        self._touched = _native.KeySet()
        self._undo: list[UndoRows] = []
        self._is_given = np.zeros(self._num_groups, np.bool_)
        self._failure: BaseException | None = None
        self._rows: Rows = np.empty((0, table.width), table.numpy_dtype)
        self._scores: _CopiedScores | None = None
        if storage.capabilities.scores != "none":
            self._scores = _CopiedScores(storage, self._groups_of, self._num_groups)

    # -- for the thread that writes ------------------------------------------------

    def before_write(self, keys: Keys) -> None:
        """Stores undo rows for `keys` that the save still needs. `after_write` must follow."""
        self._lock.acquire()
        try:
            if self._failure is None:
                self._keep(keys, None)
        except Exception as error:  # fails the save, not the step
            self._failure = error
        except BaseException as error:  # for example Ctrl-C: no write follows
            self._failure = InternalError(
                f"save: the step that read undo rows was stopped ({error!r}); save again"
            )
            if self._is_locked_by_writes:
                self._lock.release()
            raise
        finally:
            if not self._is_locked_by_writes:
                self._lock.release()

    def after_write(self, keys: Keys, evicted: EvictedRows | None, *, is_erased: bool) -> None:
        """Stores undo rows for evicted rows."""
        if not self._is_locked_by_writes:
            return
        try:
            if evicted is not None and self._failure is None:
                self._keep(evicted.keys, evicted.rows)
        except Exception as error:
            self._failure = error
        finally:
            self._lock.release()

    def rows_cleared(self, table: str) -> None:
        """Fails the save, because its rows are about to be removed or moved to another storage."""
        self.fail(
            InvalidArgumentError(
                f"table {table!r} was cleared, or its rows were moved to another storage, while it was "
                "being saved; save again",
                table=table,
            )
        )

    def fail(self, error: BaseException) -> None:
        """Marks the rows as no longer available; `chunks` raises `error`."""
        with self._lock:
            self._failure = self._failure or error

    def _keep(self, keys: Keys, rows: Rows | None) -> None:
        """Stores undo rows of keys that were not touched yet. If `rows` is None, reads them from the
        storage."""
        wanted = ~self._is_given[self._groups_of(keys)]
        if self._changed is not None:
            wanted &= self._changed.contains(keys)
        if not wanted.all():
            keys = keys[wanted]
            rows = None if rows is None else rows[wanted]
        is_new = self._touched.add(keys)
        if not is_new.all():
            keys = keys[is_new]
            rows = None if rows is None else rows[is_new]
        if not len(keys):
            return
        found = np.ones(len(keys), np.bool_)
        if rows is None:
            rows = np.empty((len(keys), self.table.width), self.table.numpy_dtype)
            self._copy_into(keys, self._whole, rows, found)
        undo = UndoRows(keys, rows, found)
        self._undo.append(undo)
        self._budget.take(undo)

    def _groups_of(self, keys: Keys) -> Groups:
        groups: Groups = np.right_shift(_native.partition(keys), np.uint16(self._shift))
        return groups

    # -- for the save ----------------------------------------------------------------

    def chunks(self, pause: Callable[[], None] = no_pause) -> Iterator[ScanChunk]:
        """Yields all rows of the view, except those that `undo_chunks` has yielded; each key once. The
        arrays of a chunk are reused for the next one.

        Args:
            pause: called after each part of the work that yields no chunk.

        Raises:
            SparringError: the rows are no longer available.
        """
        for groups in self._windows():
            keys = yield from self._collect_keys(groups, pause)
            for group in groups:
                yield from self._group(group, keys.pop(group, []))
        yield from self.undo_chunks()

    def _windows(self) -> Iterator[range]:
        num_windows = max(1, -(-self.num_keys // _WINDOW_KEYS))
        size = max(1, self._num_groups // num_windows)
        for first in range(0, self._num_groups, size):
            yield range(first, min(first + size, self._num_groups))

    def _collect_keys(
        self, groups: range, pause: Callable[[], None]
    ) -> Generator[ScanChunk, None, dict[int, list[Keys]]]:
        """Returns the keys of each non-empty group, possibly with repeats. Yields undo rows in between,
        because a scan of a large table takes longer than steps can wait for space."""
        if self._changed is not None:
            source: Iterable[Keys] = [self._changed.keys()]
        elif self._scores is not None:
            return {group: [self._scores.keys(group)] for group in groups}
        else:
            source = self._scan_keys()
        collected: dict[int, list[Keys]] = {}
        for keys in source:
            for group, places in _split_by_group(self._groups_of(keys), groups).items():
                collected.setdefault(group, []).append(keys[places])
            pause()
            yield from self.undo_chunks()
        return collected

    def _scan_keys(self) -> Iterator[Keys]:
        chunks = self._storage.scan(_SCAN_ROWS, Columns(0, 1))
        while True:
            with self._reading():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk.keys

    def _reading(self) -> AbstractContextManager[object]:
        return nullcontext() if self._storage.capabilities.concurrent_reads else self._lock

    def _group(self, group: int, parts: list[Keys]) -> Iterator[ScanChunk]:
        keys = _sort_unique(parts)
        # Touched keys already have undo rows, so they are not read again.
        keys = keys[~self._touched.contains(keys)]
        rows = self._reuse_rows(len(keys))
        found = np.empty(len(keys), np.bool_)
        for begin in range(0, len(keys), _PIECE_KEYS):
            piece = slice(begin, begin + _PIECE_KEYS)
            with self._reading():
                self._copy_into(keys[piece], self._whole, rows[piece], found[piece])
        with self._lock:
            if self._failure is not None:
                raise self._failure
            is_touched = self._touched.contains(keys)
            self._is_given[group] = True
        if self._changed is not None:
            self.erased.append(keys[~found & ~is_touched])
        count = _close_gaps(keys, rows, ~found | is_touched)
        if count:
            keys, rows = keys[:count], rows[:count]
            yield ScanChunk(keys, rows, self._scores_of(keys))
        yield from self.undo_chunks()

    def _reuse_rows(self, num_rows: int) -> Rows:
        """Returns memory for the rows of a group. It is reused, because new pages cost as much as the
        copy."""
        if len(self._rows) < num_rows:
            width = self.table.width
            flat = allocate_returnable((num_rows + num_rows // 8) * width, self.table.numpy_dtype)
            self._rows = flat.reshape(-1, width)
        return self._rows[:num_rows]

    def undo_chunks(self) -> Iterator[ScanChunk]:
        """Yields the undo rows of all groups since the last call."""
        with self._lock:
            undo, self._undo = self._undo, []
        while undo:
            each = undo.pop()
            if self._changed is not None:
                self.erased.append(each.keys[~each.found])
            keys, rows = each.keys, each.rows
            if not each.found.all():
                keys, rows = keys[each.found], rows[each.found]
            if len(keys):
                yield ScanChunk(keys, rows, self._scores_of(keys))
            self._budget.give_back(each.num_bytes)

    def _scores_of(self, keys: Keys) -> Scores:
        return np.zeros(len(keys), np.uint64) if self._scores is None else self._scores.of(keys)

    @property
    def undo_bytes(self) -> int:
        """Bytes of the undo rows that have not been yielded yet."""
        with self._lock:
            return sum(each.num_bytes for each in self._undo)

    def check_whole(self) -> None:
        """Checks that the rows were available until now.

        Raises:
            SparringError: as `chunks`.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure


def _sort_unique(parts: list[Keys]) -> Keys:
    """Returns the unique keys ``(u,)``, sorted. This is much faster than `numpy.unique`, which
    hashes."""
    keys: Keys = np.concatenate([np.empty(0, np.int64), *parts])
    keys.sort()
    is_first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return keys if is_first.all() else keys[is_first]


def _close_gaps(keys: Keys, rows: Rows, is_gap: npt.NDArray[np.bool_]) -> int:
    """Moves the last rows into the gaps, which are few, and returns the number of remaining rows."""
    gaps = np.flatnonzero(is_gap)
    count = len(keys) - len(gaps)
    last = count + np.flatnonzero(~is_gap[count:])
    gaps = gaps[: len(last)]
    keys[gaps], rows[gaps] = keys[last], rows[last]
    return count


def _split_by_group(groups: Groups, wanted: range) -> dict[int, Positions]:
    """Returns the positions of each non-empty group of `wanted`.

    Args:
        groups: ``(n,)``: the group of each position.
        wanted: groups to return.
    """
    order = np.argsort(groups, kind="stable")
    borders = np.searchsorted(groups[order], np.arange(wanted.start, wanted.stop + 1))
    return {
        wanted[membership]: order[borders[membership] : borders[membership + 1]]
        for membership in np.flatnonzero(np.diff(borders)).tolist()
    }


class _CopiedScores:
    """Keys and scores of a whole storage, copied at creation: 16 bytes per row.

    They are sorted later, group by group, on the thread that reads them, so that a step waits only for
    the copy.

    Args:
        storage: storage with scores.
        groups_of: returns the group of each key.
        num_groups: number of groups.
    """

    def __init__(
        self, storage: Storage, groups_of: Callable[[Keys], Groups], num_groups: int
    ) -> None:
        self._groups_of = groups_of
        self._copied = [
            (chunk.keys, chunk.scores) for chunk in storage.scan(_SCAN_ROWS, Columns(0, 1))
        ]
        self._parts: list[list[tuple[Keys, Scores]]] = [[] for _ in range(num_groups)]
        self._sorted: dict[int, tuple[Keys, Scores]] = {}

    def keys(self, group: int) -> Keys:
        """Returns all keys of a group, ascending."""
        return self._group(group)[0]

    def of(self, keys: Keys) -> Scores:
        """Returns the score ``(n,)`` of each key; 0 if it had no row."""
        scores = np.zeros(len(keys), np.uint64)
        for group, places in _split_by_group(
            self._groups_of(keys), range(len(self._parts))
        ).items():
            known, its_scores = self._group(group)
            if not len(known):
                continue
            found = np.minimum(np.searchsorted(known, keys[places]), len(known) - 1)
            is_known = known[found] == keys[places]
            scores[places[is_known]] = its_scores[found[is_known]]
        return scores

    def _group(self, group: int) -> tuple[Keys, Scores]:
        while self._copied:
            keys, scores = self._copied.pop()
            every = range(len(self._parts))
            for each, places in _split_by_group(self._groups_of(keys), every).items():
                self._parts[each].append((keys[places], scores[places]))
        if group not in self._sorted:
            parts = self._parts[group]
            keys = np.concatenate([np.empty(0, np.int64), *(each for each, _ in parts)])
            scores = np.concatenate([np.empty(0, np.uint64), *(each for _, each in parts)])
            order = np.argsort(keys)
            self._sorted[group] = keys[order], scores[order]
            self._parts[group] = []
        return self._sorted[group]
