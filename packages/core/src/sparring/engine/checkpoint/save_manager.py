"""Writes one rank's part of a snapshot while later steps run. A container runs one save at a time.

If steps keep all cores busy, each second of a save's computation delays a thread of a step. The threads
of a step wait for each other, so this delays the whole step. Therefore `Throttle` limits the processor
time of all threads of a save together to a share of one core. A lower thread priority would not help: a
thread that owns the interpreter lock but gets no core blocks the step completely. A step takes 7.6 ms
without a save, 38.2 ms during an unthrottled save, and 9.1 ms with a share of 0.15
(docs/explanation/performance-techniques.md).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from sparring import _native
from sparring.contracts.checkpoint import Retention, SaveResult, State
from sparring.contracts.storage.column_block import ColumnBlock
from sparring.contracts.storage.results import Keys, ScanChunk
from sparring.engine.checkpoint.copy_on_write import CopyOnWriteView, UndoBudget
from sparring.engine.tables.write_log import WriteLog
from sparring.errors import DeadlineError, PeerFailure, SnapshotError
from sparring.runtime.events import EventLoop
from sparring.runtime.pool import Task
from sparring.snapshot.commit import GRACE_SECONDS
from sparring.snapshot.format.manifest import TableDescription
from sparring.snapshot.retention import retain
from sparring.snapshot.writer import SnapshotWriter

__all__ = ["SaveCounters", "SaveManager", "SnapshotJob", "TableJob", "Throttle", "give_up"]

_WAIT_SECONDS = 30.0

_MAX_HISTORY = 1_000
"""Maximum length of `SaveManager.history`. Older snapshots are treated like snapshots of other runs."""

_log = logging.getLogger(__name__)

_AHEAD_DIVISOR = 64
"""A table whose undo rows take less than this fraction of the budget is not written ahead, because that
would create many small files."""


@dataclass(slots=True)
class TableJob:
    """The part of a save that concerns one table."""

    description: TableDescription
    view: CopyOnWriteView | None
    """None if this rank has no rows of the table to write."""
    log: WriteLog
    is_delta: bool
    columns: ColumnBlock | None = None
    """Columns of the rows that this rank stores; None if it stores all columns."""
    counted: _native.KeySet | None = None
    """Keys that had changed since the last base, if this snapshot becomes the next base."""
    num_rows: int = 0

    def chunks(self, pause: Callable[[], None]) -> Iterator[ScanChunk]:
        if self.view is not None:
            yield from self._counted(self.view.chunks(pause))

    def undo_chunks(self) -> Iterator[ScanChunk]:
        """Yields the undo rows that have not been written yet."""
        if self.view is not None:
            yield from self._counted(self.view.undo_chunks())

    @property
    def undo_bytes(self) -> int:
        """Bytes of the undo rows that have not been written yet."""
        return 0 if self.view is None else self.view.undo_bytes

    def _counted(self, chunks: Iterator[ScanChunk]) -> Iterator[ScanChunk]:
        owners = self.log.owners
        for chunk in chunks:
            if owners is not None:
                owners.check_saved(chunk.keys)
            self.num_rows += len(chunk)
            yield chunk

    def erased(self) -> Iterator[Keys]:
        """Yields the erased keys of a delta. Must be called after all chunks were read. Omits keys that
        other ranks own, because only the owner of a key knows that the key has no row."""
        if self.view is None or not self.is_delta:
            return
        owners = self.log.owners
        for keys in self.view.erased:
            yield keys if owners is None else keys[owners.are_own(keys)]

    def begin(self) -> None:
        """Starts collecting undo rows of this table."""
        if self.view is not None:
            self.log.add_observer(self.view)

    def release(self) -> None:
        """Stops collecting undo rows of this table."""
        if self.view is not None:
            self.log.remove_observer(self.view)


@dataclass(slots=True)
class SnapshotJob:
    """A rank's part of a snapshot, from the freeze to the end of the save."""

    url: str
    step: int
    base: str | None
    writer: SnapshotWriter
    tables: list[TableJob]
    states: Mapping[str, State]
    budget: UndoBudget
    retention: Retention | None
    history: deque[str]
    """See `SaveManager.history`."""
    begin: float
    throttle: Throttle
    deadline_seconds: float
    """Timeout in seconds of operations that wait for the save."""
    failure: BaseException | None = None
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> SaveResult:
        """Writes this rank's part; rank 0 also commits. Tables are released even if the save fails.

        Raises:
            SnapshotError: the file system or another rank failed.
            SparringError: the rows of the frozen tables are no longer available.
        """
        try:
            return self._run()
        except BaseException as error:
            self.failure = error
            # Released first, so that steps do not wait for a failed save.
            self.release()
            give_up(self.writer, error)
            raise
        finally:
            self.release()
            self.is_over.set()

    def release(self) -> None:
        """Stops collecting undo rows, and wakes the steps that wait for this save."""
        for table in self.tables:
            table.release()
        self.budget.end()

    def fail(self, error: BaseException) -> None:
        """Marks the save as failed. The thread of the save aborts it at its next check."""
        self.writer.fail(error)
        for table in self.tables:
            if table.view is not None:
                table.view.fail(error)
        self.budget.end()

    def _run(self) -> SaveResult:
        self.throttle.begin()
        waiting = list(self.tables)
        while waiting:
            # Writes the table with the most undo rows first, so that steps do not wait.
            table = max(waiting, key=_urgency)
            waiting.remove(table)
            chunks = self._chunks(table, waiting)
            self.writer.write_table(table.description, chunks, table.erased(), table.columns)
            if table.view is not None:
                table.view.check_whole()
            table.release()
        for name, state in self.states.items():
            self.writer.write_state(name, state.values, dict(state.arrays))
        self.writer.finish()
        if self.writer.rank == 0:
            self.writer.commit()
            self.history.append(self.url)
            self._retain()
        else:
            self.writer.await_commit()
        rows = {
            table.description.name: table.num_rows
            for table in self.tables
            if table.columns is None or table.columns.begin == 0
        }
        seconds = time.perf_counter() - self.begin
        return SaveResult(self.url, self.step, self.base, rows, seconds)

    def _chunks(self, table: TableJob, waiting: Sequence[TableJob]) -> Iterator[ScanChunk]:
        """Yields the rows of a table, and writes undo rows of the waiting tables in between."""
        for chunk in table.chunks(partial(self._pause, waiting)):
            yield chunk
            self._pause(waiting)

    def _pause(self, waiting: Sequence[TableJob]) -> None:
        while self.budget.is_half_used and self._write_ahead(waiting):
            self.throttle.pause()
        self.writer.check_other_ranks()
        self.throttle.pause()

    def _write_ahead(self, waiting: Sequence[TableJob]) -> bool:
        """Writes the undo rows of a waiting table if they take much of the budget. Returns whether any
        were written."""
        table = max(waiting, key=_urgency, default=None)
        if table is None or _AHEAD_DIVISOR * table.undo_bytes < self.budget.limit_bytes:
            return False
        self.writer.write_ahead(table.description, table.undo_chunks(), table.columns)
        return True

    def _retain(self) -> None:
        """Removes old snapshots. Failures are logged, because the new snapshot is already committed."""
        if self.retention is None:
            return
        try:
            removed = retain(
                self.retention.root,
                self.retention.keep,
                newest=self.history,
                damaged=self.retention.damaged,
                pinned=self.retention.pinned,
            )
            left = [url for url in self.history if url not in removed]
            self.history.clear()
            self.history.extend(left)
        except Exception as error:
            _log.warning(
                "snapshots older than %s could not be removed: %s; the next save tries again, or remove "
                "them yourself",
                self.url,
                error,
            )


def give_up(writer: SnapshotWriter, cause: BaseException | None = None) -> None:
    """Abandons a save after an error. A failure to clean up is logged, so that it does not hide the
    error.

    Args:
        writer: writer of the snapshot.
        cause: error that is reported to other ranks; None: they already know it.
    """
    try:
        writer.abandon(cause)
    except SnapshotError as error:
        # Other ranks may still be writing into the folder. `retain` removes the remaining files.
        _log.warning(
            "the staged files of %s were not removed: %s; a later save with retention removes them",
            writer.url,
            error,
        )


def _urgency(table: TableJob) -> tuple[int, int]:
    return table.undo_bytes, 0 if table.view is None else table.view.num_keys


class SaveManager:
    """The saves of a container; see `StepContainer.save`."""

    def __init__(self, events: EventLoop) -> None:
        self.counters = SaveCounters()
        self.history: deque[str] = deque(maxlen=_MAX_HISTORY)
        """Snapshots that this rank loaded or committed, oldest first."""
        self.newest: tuple[str, int] | None = None
        """URL and step of the snapshot that was saved or loaded last, on every rank; None if rows have
        been assigned since then."""
        self.running: SnapshotJob | None = None
        self.task: Task[SaveResult] | None = None
        self.base: str | None = None
        """The snapshot that the next delta can be based on. Keys that changed after it are tracked."""
        events.on_await(self.unthrottle)

    def unthrottle(self) -> None:
        """Ends the pauses of a running save, because a caller waits for its end."""
        running = self.running
        if running is not None:
            running.throttle.unthrottle()

    def limit_waits(self, error: BaseException, deadline_seconds: float) -> None:
        """Limits how long a running save waits for other ranks, because this rank ends with an error.

        Args:
            error: the error of this rank.
            deadline_seconds: limit if all other ranks may still write their parts.
        """
        running = self.running
        if running is not None:
            is_alone = isinstance(error, PeerFailure)
            running.writer.limit_waits(GRACE_SECONDS if is_alone else deadline_seconds)

    def wait_for_capacity(self) -> None:
        """Waits until a running save has space for undo rows. Must be called before a step writes."""
        running = self.running
        if running is None:
            return
        if running.is_over.is_set():
            self.account(running)
            return
        if not running.budget.wait_for_capacity(_WAIT_SECONDS):
            running.fail(
                DeadlineError(
                    f"save of {running.url}: a step waited {_WAIT_SECONDS} s for space for undo rows, "
                    "but the save did not write any. The save was aborted, and the step continues; find "
                    "out why the file system is slow, or raise undo_bytes",
                    url=running.url,
                    timeout=_WAIT_SECONDS,
                )
            )

    def join(self, timeout: float | None = None) -> None:
        """Waits until the running save has ended.

        Args:
            timeout: timeout in seconds; None: the `deadline_seconds` of the save.

        Raises:
            DeadlineError: the save did not finish in time.
        """
        running = self.running
        if running is None:
            return
        self.unthrottle()
        seconds = running.deadline_seconds if timeout is None else timeout
        if not running.is_over.wait(seconds):
            raise DeadlineError(
                f"the save of {running.url} has not ended within {seconds} s; raise its "
                "deadline_seconds, or find out why the file system is slow",
                url=running.url,
                timeout=seconds,
            )
        if self.task is not None:
            # `EventLoop.check` reports its failure.
            with suppress(Exception):
                self.task.result(seconds)
        self.account(running)

    def account(self, job: SnapshotJob) -> None:
        """Adds a finished save to the counters."""
        if self.running is job:
            self.running = None
            self.counters.saves += job.failure is None
            self.counters.failed += job.failure is not None
            self.counters.wait_seconds += job.budget.wait_seconds
            self.counters.undo_rows += job.budget.num_rows
            self.counters.work_seconds += job.throttle.worked_seconds
            self.counters.most_undo_bytes = max(
                self.counters.most_undo_bytes, job.budget.max_used_bytes
            )


@dataclass(slots=True)
class SaveCounters:
    """Totals of saves since the container was created, on this rank."""

    saves: int = 0
    """Number of successful saves."""
    failed: int = 0
    """Number of failed saves, blocking or in the background."""
    freeze_seconds: float = 0.0
    """Time that steps were blocked while tables were frozen."""
    wait_seconds: float = 0.0
    """Time that steps waited because the undo budget was used up."""
    work_seconds: float = 0.0
    """Processor time of all threads of saves."""
    undo_rows: int = 0
    """Number of undo rows that steps stored for saves."""
    most_undo_bytes: int = 0
    """Largest number of bytes that undo rows occupied at the same time."""


_POLL_SECONDS = 0.02
"""Interval at which a pause checks whether it should end."""


class Throttle:
    """Limits the threads of a save to a share of the time of one core.

    Each thread calls `pause` after a piece of work. All threads have a common schedule. It reserves
    the time of the work divided by the share, after all earlier reservations. The thread sleeps
    until the end of its reserved time. Therefore all threads together use at most the share. Unused
    time is not accumulated.

    Args:
        share: share of the time of one core, greater than 0. If it is 1 or more, there are no pauses.
        budget: budget of undo rows. There are no pauses while it is nearly used up, or if the save is
            over.
    """

    def __init__(self, share: float, budget: UndoBudget) -> None:
        self._share, self._budget = share, budget
        self._thread = threading.local()
        self._is_awaited = threading.Event()
        self._lock = threading.Lock()  # guards the two attributes below
        self._free_at = 0.0
        self.worked_seconds = 0.0
        """Processor time of all threads, up to their last `pause`."""

    def begin(self) -> None:
        """Excludes the previous work of the calling thread. Only threads that existed before the save
        need to call it."""
        self._thread.before = time.thread_time()

    def unthrottle(self) -> None:
        """Ends all pauses, because a caller waits for the end of the save."""
        self._is_awaited.set()

    def pause(self) -> None:
        """Called by each thread after each piece of work, ideally every few milliseconds."""
        before = getattr(self._thread, "before", 0.0)
        self._thread.before = time.thread_time()
        worked = self._thread.before - before
        now = time.perf_counter()
        with self._lock:
            self.worked_seconds += worked
            self._free_at = max(self._free_at, now - worked) + worked / self._share
            end = self._free_at
        if self._share >= 1:
            return
        while now < end and not self._budget.is_urgent:
            if self._is_awaited.wait(min(end - now, _POLL_SECONDS)):
                break
            now = time.perf_counter()
        if now < end:
            with self._lock:  # so that pauses that were cut short do not lengthen later ones
                self._free_at = min(self._free_at, now)
