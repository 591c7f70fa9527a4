"""Averages of the rows of two models: each update visits only the rows that changed since the last one.

    rows e of the copy      average at the update j in which the row was visited last
    `_visited`: q, j        row of the model at that update, which it keeps until it is visited again

An update k with weight w averages ``e += w · (p - e)``. While a row does not change, each update moves
its average towards the same q, so that it follows from the last visit, exactly::

    e(k) = q + a(j+1) · … · a(k) · (e(j) - q)          a = 1 - w

`_sums` contains the sums of log a. A row without an entry in `_visited` equals its average. Averages are
brought up to date before they are read: those of the ids that are looked up, or all of them.
"""

from __future__ import annotations

import math
import weakref
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import StepContainer, TableConfig, open_storage
from sparring_torch.state.copied_rows import (
    Keys,
    Rows,
    find_rows,
    list_keys,
    split_keys,
    write_rows,
)

__all__ = ["TableAverage"]

_PART = 1 << 20
"""Counts are stored in two elements of a row, which are exact for float32."""


class _ChangedKeys:
    """Observes writes to a table, and collects the keys."""

    def __init__(self) -> None:
        self.are_all = True
        """Whether any row may have changed."""
        self.is_paused = False
        """Whether writes are not collected."""
        self._pending: list[Keys] = []
        self._num_pending = self._num_distinct = 0

    def before_write(self, keys: Keys) -> None:
        """Does nothing; keys count as changed after the write."""

    def after_write(self, keys: Keys, evicted: Any, *, is_erased: bool) -> None:
        if self.are_all or self.is_paused:
            return
        for each in (keys,) if evicted is None else (keys, evicted.keys):
            self._pending.append(np.array(each, np.int64))
            self._num_pending += len(each)
        if self._num_pending > 2 * self._num_distinct + (1 << 20):
            self._pending = [self.distinct()]
            self._num_pending = self._num_distinct = len(self._pending[0])

    def rows_cleared(self, table: str) -> None:
        self.clear()
        self.are_all = not self.is_paused

    def distinct(self) -> Keys:
        """Returns the changed keys, each once."""
        return np.unique(np.concatenate([np.empty(0, np.int64), *self._pending]))

    def clear(self) -> None:
        """Starts to collect the keys that change from now on."""
        self._pending, self.are_all = [], False
        self._num_pending = self._num_distinct = 0


class TableAverage:
    """The averages of one table, which are the rows of a `StepContainer`."""

    def __init__(self, container: StepContainer, table: str) -> None:
        self._container = weakref.ref(container)
        self._table = table
        config = container.tables[table]
        described = TableConfig(
            f"{table}.visited", config.dim + 2, dtype=config.computing_dtype.name
        )
        backend = "memory" if _is_in_memory(container, table) else "hkv"
        self._visited = open_storage(backend, described, validate=False)
        self._sums = array("d", [0.0])
        self._changed = _ChangedKeys()
        self._changed_here = _ChangedKeys()
        """Rows of the copy that others wrote, for example by a load."""
        self._source: weakref.ref[StepContainer] | None = None
        self._detach: Callable[[], object] | None = None
        container.entry(table).write_log.add_observer(self._changed_here)

    @property
    def memory_bytes(self) -> int:
        """Memory in addition to the rows."""
        return self._visited.memory_bytes

    def update(self, source: StepContainer, weight: float) -> None:
        """See `StepContainer.average`."""
        container = self._container()
        assert container is not None
        if self._source is None or self._source() is not source:
            self._observe(source)
        self._take_foreign_writes()
        keys = self._changed.distinct()
        if self._changed.are_all:
            keys = np.union1d(list_keys(container, self._table), list_keys(source, self._table))
        # Removed first, because a full table has no capacity for others.
        is_kept = np.concatenate(
            [find_rows(source, self._table, part)[1] for part in split_keys(keys)]
            or [np.empty(0, np.bool_)]
        )
        self._erase(container, keys[~is_kept])
        self._sums.append(self._sums[-1] + math.log1p(-weight))
        for part in split_keys(keys[is_kept]):
            self._average(container, source, part, weight)
        self._changed.clear()

    def _observe(self, source: StepContainer) -> None:
        if self._detach is not None:
            self._detach()
        log = source.entry(self._table).write_log
        self._changed, self._source = _ChangedKeys(), weakref.ref(source)
        log.add_observer(self._changed)
        self._detach = weakref.finalize(self, log.remove_observer, self._changed)

    def _take_foreign_writes(self) -> None:
        """Makes rows of the copy that others wrote the current averages."""
        mine = self._changed_here
        if mine.are_all:
            self._visited.clear()
            self._changed.are_all = True
        elif len(keys := mine.distinct()):
            self._visited.erase(keys)
            if not self._changed.are_all:
                self._changed.after_write(keys, None, is_erased=False)
        mine.clear()

    def _average(
        self, container: StepContainer, source: StepContainer, keys: Keys, weight: float
    ) -> None:
        found, _ = find_rows(source, self._table, keys)
        before = self._current(container, keys, len(self._sums) - 2)
        after = before + found.dtype.type(weight) * (found - before)
        self._write(container, keys, after)
        self._note(keys, found, after)

    def _current(self, container: StepContainer, keys: Keys, update: int) -> Rows:
        """Returns averages after an update."""
        rows, _ = find_rows(container, self._table, keys)
        visited = self._visited.find(keys)
        places = np.flatnonzero(visited.found)
        if len(places):
            was, at = visited.rows[places, :-2], _counts(visited.rows[places])
            factors = np.exp(self._sums[update] - np.frombuffer(self._sums)[at])
            rows[places] = was + factors[:, None].astype(rows.dtype) * (rows[places] - was)
        return rows

    def _note(self, keys: Keys, rows: Rows, averages: Rows) -> None:
        """Records a visit of keys in the last update."""
        differs = (rows != averages).any(axis=1)
        if not differs.all():
            self._visited.erase(keys[~differs])
        if differs.any():
            update = len(self._sums) - 1
            counts = np.broadcast_to(np.asarray(divmod(update, _PART), rows.dtype), (len(rows), 2))
            self._visited.upsert(
                keys[differs], np.ascontiguousarray(np.hstack([rows, counts])[differs])
            )

    def _write(self, container: StepContainer, keys: Keys, averages: Rows) -> None:
        self._changed_here.is_paused = True
        try:
            write_rows(container, self._table, keys, averages)
        finally:
            self._changed_here.is_paused = False

    def _erase(self, container: StepContainer, keys: Keys) -> None:
        self._visited.erase(keys)
        storage = container.entry(self._table).storage
        self._changed_here.is_paused = True
        try:
            if storage is not None:
                storage.erase(keys)
        finally:
            self._changed_here.is_paused = False

    def bring_up_to_date(self, keys: Keys | None) -> None:
        """Writes the current averages of keys, or of all rows, to the table."""
        container = self._container()
        if container is None or len(self._sums) == 1:
            return
        self._forget_foreign_writes()
        if not self._visited.size:
            return
        if keys is not None:
            self._visit(container, keys)
            return
        for chunk in list(self._visited.scan()):
            self._visit(container, chunk.keys)
        if not self._visited.size:
            self._sums = array("d", [0.0])

    def _forget_foreign_writes(self) -> None:
        """Keeps rows of the copy that others wrote."""
        mine = self._changed_here
        if mine.are_all:
            self._visited.clear()
        elif len(keys := mine.distinct()):
            self._visited.erase(keys)

    def _visit(self, container: StepContainer, keys: Keys) -> None:
        last = len(self._sums) - 1
        visited = self._visited.find(keys)
        is_behind = visited.found.copy()
        is_behind[visited.found] = _counts(visited.rows[visited.found]) < last
        if not is_behind.any():
            return
        keys = keys[is_behind]
        averages = self._current(container, keys, last)
        self._write(container, keys, averages)
        self._note(keys, visited.rows[is_behind, :-2], averages)


def _is_in_memory(container: StepContainer, table: str) -> bool:
    return [each.backend for each in container.tiers(table)] == ["memory"]


def _counts(visited: Rows) -> npt.NDArray[np.int64]:
    counts = visited[:, -2:].astype(np.int64)
    return counts[:, 0] * _PART + counts[:, 1]
