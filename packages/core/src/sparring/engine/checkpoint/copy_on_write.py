"""The rows of one table as they were at one moment, while steps change them.

Copy on write. The save reads one group of partitions after another; a step that is about to write
reads the old rows of the keys that the save still needs, and keeps them for it as undo rows:

    step     keys of groups to come, not touched yet ──► find old rows ──► undo rows ──► write
    save     find the rows of group g ──► without those that a step touched ──► file
             undo rows since ──► file

Why that is exact. A step enters its keys into `touched` before it writes the first of them. The
save reads rows first and looks at `touched` afterwards: of a key that is not in it, no write had
begun when the row was read. Where a write may remove rows of other keys, as a storage that evicts
does, the lock is held for as long as it lasts, so that no row is missing that is yet to be handed
over. A group is given in the moment in which the save looks; from then on steps ignore its keys.
So each key is given once, also by a storage whose scan gives some twice.

The keys come from a scan, which promises those that are there from its beginning to its end; all
others were written to, and so kept. Scores change with every write and no storage can be asked for
them by key: where a storage has scores, they are copied with the keys when the table is frozen.
Undo rows of all tables of a save share one budget of memory.
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
    """Rows as they were before a step wrote to them."""

    keys: Keys
    """``(n,)``"""
    rows: Rows
    """``(n, width)``; undefined where `found` is False."""
    found: npt.NDArray[np.bool_]
    """``(n,)``: False where the key had no row."""

    @property
    def num_bytes(self) -> int:
        return self.keys.nbytes + self.rows.nbytes + self.found.nbytes


class UndoBudget:
    """Bytes of undo rows that all tables of a save may hold together.

    A step that finds the budget used up waits until the save has written some. So the most that
    is held is the budget and the rows of one step.

    Args:
        limit_bytes: from which on steps wait.
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
        """Counts rows that are held from now on."""
        with self._changed:
            self._used_bytes += rows.num_bytes
            self.num_rows += len(rows.keys)
            self.max_used_bytes = max(self.max_used_bytes, self._used_bytes)

    @property
    def is_half_used(self) -> bool:
        """Whether it is time to write undo rows of tables whose turn has not come."""
        return 2 * self._used_bytes >= self.limit_bytes

    @property
    def is_urgent(self) -> bool:
        """Whether steps may soon have to wait, or the save is over."""
        return 4 * self._used_bytes >= 3 * self.limit_bytes or self._is_over

    def give_back(self, num_bytes: int) -> None:
        """Undo rows of so many bytes were written and freed."""
        if num_bytes:
            with self._changed:
                self._used_bytes -= num_bytes
                self._changed.notify_all()

    def end(self) -> None:
        """The save is over: no step waits any more."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_for_capacity(self, seconds: float) -> bool:
        """Returns True when a step may hold more rows, False if that takes longer."""
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
"""Of the rows of a group, about: what the save holds at a time."""
_WINDOW_KEYS = 4 << 20
"""About how many keys the save collects in one scan."""
_SCAN_ROWS = 65_536
Groups = npt.NDArray[np.uint16]
Positions = npt.NDArray[np.int64]

_PIECE_KEYS = 1024
"""So few that a storage does not spread the call over threads, which the steps need."""


class CopyOnWriteView:
    """One storage at the moment in which this is made: no step may be under way then.

    `chunks` and `undo_chunks` are for the save's thread, all else for the thread that writes.

    Args:
        table: what the rows are.
        storage: that holds them.
        budget: for old rows, shared with other tables of the save.
        changed: a set of keys: only these are given; None: all.
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
        """Of `changed`, those that had no row; complete when `chunks` has ended."""
        self._storage, self._budget, self._changed = storage, budget, changed
        self._copy_into = (
            storage.copy_into if isinstance(storage, SupportsCopy) else storage.find_into
        )
        bits = (max(1, self.num_keys * table.row_bytes) // _GROUP_BYTES).bit_length()
        self._num_groups = min(1 << bits, NUM_PARTITIONS)
        self._shift = (NUM_PARTITIONS // self._num_groups).bit_length() - 1
        self._whole = Columns(0, table.width)
        # Rows of other keys leave by a write, or reads may not run concurrently with one.
        offered = storage.capabilities
        self._is_locked_by_writes = offered.evicts or offered.evict or not offered.concurrent_reads
        self._lock = threading.Lock()  # guards what follows
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
        """Keeps the rows of `keys` that the save still needs. `after_write` must follow."""
        self._lock.acquire()
        try:
            if self._failure is None:
                self._keep(keys, None)
        except Exception as error:  # the step goes on; the save does not
            self._failure = error
        except BaseException as error:  # as Ctrl-C: no write follows
            self._failure = InternalError(f"the step that read undo rows was stopped ({error!r})")
            if self._is_locked_by_writes:
                self._lock.release()
            raise
        finally:
            if not self._is_locked_by_writes:
                self._lock.release()

    def after_write(self, keys: Keys, evicted: EvictedRows | None, *, is_erased: bool) -> None:
        """Keeps the rows that left to make room."""
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
        """Ends the save: its rows are about to be removed, or moved to another storage."""
        self.fail(
            InvalidArgumentError(
                f"table {table!r} was cleared, or its rows were moved to another storage, while it was "
                "being saved; save again",
                table=table,
            )
        )

    def fail(self, error: BaseException) -> None:
        """The rows are no longer to be had; `chunks` raises `error`."""
        with self._lock:
            self._failure = self._failure or error

    def _keep(self, keys: Keys, rows: Rows | None) -> None:
        """Keeps undo rows of keys that were not touched yet; None: as the storage has them now."""
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
        """All rows as they were, but for those that `undo_chunks` gave; each key once. The arrays of
        a chunk are used again for the next.

        Args:
            pause: called after each part of the work that gives no chunk.

        Raises:
            SparringError: the rows are no longer to be had.
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
        """The keys of each group that has any, perhaps with repeats. Gives old rows meanwhile, as a
        scan of a large table takes longer than steps can wait for room."""
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
        # What was touched already is kept: it need not be read once more.
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
        """Memory for the rows of a group, the same each time: fresh pages cost as much as copying."""
        if len(self._rows) < num_rows:
            width = self.table.width
            flat = allocate_returnable((num_rows + num_rows // 8) * width, self.table.numpy_dtype)
            self._rows = flat.reshape(-1, width)
        return self._rows[:num_rows]

    def undo_chunks(self) -> Iterator[ScanChunk]:
        """Undo rows since the last call, of any group."""
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
        """Bytes of undo rows that wait."""
        with self._lock:
            return sum(each.num_bytes for each in self._undo)

    def check_whole(self) -> None:
        """Raises what happened to the rows since, if anything did.

        Raises:
            SparringError: as `chunks`.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure


def _sort_unique(parts: list[Keys]) -> Keys:
    """``(u,)``: all keys, each once. Sorting is many times as fast as `numpy.unique`, which hashes."""
    keys: Keys = np.concatenate([np.empty(0, np.int64), *parts])
    keys.sort()
    is_first = np.ones(len(keys), np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
    return keys if is_first.all() else keys[is_first]


def _close_gaps(keys: Keys, rows: Rows, is_gap: npt.NDArray[np.bool_]) -> int:
    """Moves the last ones into the gaps, which are few. Returns how many are left, at the front."""
    gaps = np.flatnonzero(is_gap)
    count = len(keys) - len(gaps)
    last = count + np.flatnonzero(~is_gap[count:])
    gaps = gaps[: len(last)]
    keys[gaps], rows[gaps] = keys[last], rows[last]
    return count


def _split_by_group(groups: Groups, wanted: range) -> dict[int, Positions]:
    """Positions of each of the `wanted` groups that has any.

    Args:
        groups: ``(n,)``, the group of each position.
    """
    order = np.argsort(groups, kind="stable")
    borders = np.searchsorted(groups[order], np.arange(wanted.start, wanted.stop + 1))
    return {
        wanted[membership]: order[borders[membership] : borders[membership + 1]]
        for membership in np.flatnonzero(np.diff(borders)).tolist()
    }


class _CopiedScores:
    """Keys and scores of a whole storage, copied at once: 16 bytes a row.

    They are put in order by the thread that asks, group by group, so that a step waits for no more
    than the copy.

    Args:
        storage: that has scores.
        groups_of: the group of each key.
        num_groups: of all keys.
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
        """All keys of a group, ascending."""
        return self._group(group)[0]

    def of(self, keys: Keys) -> Scores:
        """``(n,)``: the score of each key; 0 where it had no row."""
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
