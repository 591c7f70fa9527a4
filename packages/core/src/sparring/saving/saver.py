"""What one rank writes of one snapshot, beside the steps that follow it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sparring import _native
from sparring.errors import SnapshotError
from sparring.saving.freezing import FrozenTable
from sparring.saving.kept_rows import KeptBudget
from sparring.saving.pace import Pace
from sparring.saving.requests import Retention, Saved, State
from sparring.saving.table_watch import TableWatch
from sparring.snapshot import SnapshotWriter, TableDescription
from sparring.storage.contract import Keys, ScanChunk

__all__ = ["Saver", "SavingTable"]

_log = logging.getLogger(__name__)


_FEWEST_AHEAD = 64
"""A table whose old rows take less than this part of the budget waits for its turn: many small files
would be written otherwise."""


@dataclass(slots=True)
class SavingTable:
    """One table of a save."""

    description: TableDescription
    frozen: FrozenTable | None
    """None: this rank has no rows of it to write."""
    watch: TableWatch
    is_delta: bool
    counted: _native.KeySet | None = None
    """The keys that had changed since the last base, if this snapshot is to be the next."""
    num_rows: int = 0

    def chunks(self, pause: Callable[[], None]) -> Iterator[ScanChunk]:
        if self.frozen is not None:
            yield from self._counted(self.frozen.chunks(pause))

    def old_chunks(self) -> Iterator[ScanChunk]:
        """Of `chunks`, those that steps have kept and that wait."""
        if self.frozen is not None:
            yield from self._counted(self.frozen.old_chunks())

    @property
    def kept_bytes(self) -> int:
        """Old rows that wait."""
        return 0 if self.frozen is None else self.frozen.kept_bytes

    def _counted(self, chunks: Iterator[ScanChunk]) -> Iterator[ScanChunk]:
        for chunk in chunks:
            self.num_rows += len(chunk)
            yield chunk

    def erased(self) -> Iterator[Keys]:
        """To be read after all chunks."""
        if self.frozen is not None and self.is_delta:
            yield from self.frozen.erased

    def thaw(self) -> None:
        """Steps keep no more rows for it."""
        self.watch.frozen = None


@dataclass(slots=True)
class Saver:
    """A save between its freeze and its end."""

    url: str
    step: int
    base: str | None
    writer: SnapshotWriter
    tables: list[SavingTable]
    states: Mapping[str, State]
    budget: KeptBudget
    retention: Retention | None
    line: deque[str]
    """See `Saves.line`."""
    begin: float
    pace: Pace
    deadline_seconds: float
    """How long others wait for its end."""
    failure: BaseException | None = None
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> Saved:
        """Writes, and commits where this is the first rank. Whatever happens, tables are thawed.

        Raises:
            SnapshotError: the file system, or another rank, failed.
            SparringError: rows were no longer to be had.
        """
        try:
            return self._run()
        except BaseException as error:
            self.failure = error
            # First: steps need not wait for a save that is lost.
            self.thaw()
            give_up(self.writer, error)
            raise
        finally:
            self.thaw()
            self.is_over.set()

    def thaw(self) -> None:
        """No step keeps rows or waits for this save any more."""
        for table in self.tables:
            table.thaw()
        self.budget.end()

    def fail(self, error: BaseException) -> None:
        """Gives the save up, as soon as its thread sees it."""
        for table in self.tables:
            if table.frozen is not None:
                table.frozen.fail(error)
        self.budget.end()

    def _run(self) -> Saved:
        self.pace.begin()
        waiting = list(self.tables)
        while waiting:
            # The one that most old rows wait for, so that steps need not wait.
            table = max(waiting, key=_urgency)
            waiting.remove(table)
            self.writer.write_table(table.description, self._chunks(table, waiting), table.erased())
            if table.frozen is not None:
                table.frozen.check_whole()
            table.thaw()
        for name, state in self.states.items():
            self.writer.write_state(name, state.values, dict(state.arrays))
        self.writer.finish()
        if self.writer.rank == 0:
            self.writer.commit()
            self.line.append(self.url)
            self._retain()
        else:
            self.writer.await_commit()
        rows = {table.description.name: table.num_rows for table in self.tables}
        seconds = time.perf_counter() - self.begin
        return Saved(self.url, self.step, self.base, rows, seconds)

    def _chunks(self, table: SavingTable, waiting: Sequence[SavingTable]) -> Iterator[ScanChunk]:
        """The rows of a table; between them old rows of those that wait are written."""
        for chunk in table.chunks(partial(self._pause, waiting)):
            yield chunk
            self._pause(waiting)

    def _pause(self, waiting: Sequence[SavingTable]) -> None:
        while self.budget.is_half_used and self._write_ahead(waiting):
            self.pace.pause()
        self.writer.check_others()
        self.pace.pause()

    def _write_ahead(self, waiting: Sequence[SavingTable]) -> bool:
        """Makes room for old rows, if another table than the one at hand holds many."""
        table = max(waiting, key=_urgency, default=None)
        if table is None or _FEWEST_AHEAD * table.kept_bytes < self.budget.limit_bytes:
            return False
        self.writer.write_ahead(table.description, table.old_chunks())
        return True

    def _retain(self) -> None:
        """Removes old snapshots. That it fails harms nothing that was saved."""
        if self.retention is None:
            return
        from sparring.snapshot import retain

        try:
            removed = retain(
                self.retention.root,
                self.retention.keep,
                newest=self.line,
                damaged=self.retention.damaged,
            )
            left = [url for url in self.line if url not in removed]
            self.line.clear()
            self.line.extend(left)
        except Exception as error:
            _log.warning("snapshots beside %s could not be removed: %s", self.url, error)


def give_up(writer: SnapshotWriter, cause: BaseException | None = None) -> None:
    """Abandons an attempt for a reason of its own, which an error of this must not hide.

    Args:
        cause: what other ranks are told; None: they know already.
    """
    try:
        writer.abandon(cause)
    except SnapshotError as error:
        # Other ranks may be writing into the folder still. `retain` removes what is left.
        _log.warning("what was staged of %s was not removed: %s", writer.url, error)


def _urgency(table: SavingTable) -> tuple[int, int]:
    return table.kept_bytes, 0 if table.frozen is None else table.frozen.num_keys
