"""Saves of a container: what one rank writes of a snapshot while later steps run, one at a time.

Where steps keep all cores busy, a second that a save computes is a second that some thread of a step
waits; and as the threads of a step wait for each other, the step loses all of it. So the processor time
of all threads of a save together is kept to a share (`Throttle`). A lower thread priority does not help:
a thread that holds the interpreter's lock and is given no core stops the step altogether. Steps alone
take 7.6 ms, with a save without pauses 38.2 ms, with a share of 0.15 9.1 ms
(docs/explanation/performance.md).
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
from sparring.errors import DeadlineError, SnapshotError
from sparring.runtime.events import EventLoop
from sparring.runtime.pool import Task
from sparring.snapshot.format.manifest import TableDescription
from sparring.snapshot.retention import retain
from sparring.snapshot.writer import SnapshotWriter

__all__ = ["SaveCounters", "SaveManager", "SnapshotJob", "TableJob", "Throttle", "give_up"]

_WAIT_SECONDS = 30.0

_MAX_HISTORY = 1_000
"""Snapshots that are remembered; older ones count as those of other runs do."""

_log = logging.getLogger(__name__)

_AHEAD_DIVISOR = 64
"""A table whose old rows take less than this part of the budget waits for its turn: many small files
would be written otherwise."""


@dataclass(slots=True)
class TableJob:
    """One table of a save."""

    description: TableDescription
    view: CopyOnWriteView | None
    """None: this rank has no rows of it to write."""
    log: WriteLog
    is_delta: bool
    columns: ColumnBlock | None = None
    """Of its rows; None: all."""
    counted: _native.KeySet | None = None
    """The keys that had changed since the last base, if this snapshot is to be the next."""
    num_rows: int = 0

    def chunks(self, pause: Callable[[], None]) -> Iterator[ScanChunk]:
        if self.view is not None:
            yield from self._counted(self.view.chunks(pause))

    def undo_chunks(self) -> Iterator[ScanChunk]:
        """Undo rows that wait to be written."""
        if self.view is not None:
            yield from self._counted(self.view.undo_chunks())

    @property
    def undo_bytes(self) -> int:
        """Bytes of undo rows that wait."""
        return 0 if self.view is None else self.view.undo_bytes

    def _counted(self, chunks: Iterator[ScanChunk]) -> Iterator[ScanChunk]:
        owners = self.log.owners
        for chunk in chunks:
            if owners is not None:
                owners.check_saved(chunk.keys)
            self.num_rows += len(chunk)
            yield chunk

    def erased(self) -> Iterator[Keys]:
        """To be read after all chunks. Only a key's owner can say that it has no row."""
        if self.view is None or not self.is_delta:
            return
        owners = self.log.owners
        for keys in self.view.erased:
            yield keys if owners is None else keys[owners.are_own(keys)]

    def begin(self) -> None:
        """Keeps old rows of this table from now on."""
        if self.view is not None:
            self.log.add_observer(self.view)

    def release(self) -> None:
        """Ends undo rows of this table."""
        if self.view is not None:
            self.log.remove_observer(self.view)


@dataclass(slots=True)
class SnapshotJob:
    """One save between its freeze and its end: a rank's part of a snapshot."""

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
    """Seconds for which others wait for its end."""
    failure: BaseException | None = None
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> SaveResult:
        """Writes, and commits where this is the first rank. Tables are released, also where it fails.

        Raises:
            SnapshotError: the file system, or another rank, failed.
            SparringError: rows were no longer to be had.
        """
        try:
            return self._run()
        except BaseException as error:
            self.failure = error
            # First: steps need not wait for a save that is lost.
            self.release()
            give_up(self.writer, error)
            raise
        finally:
            self.release()
            self.is_over.set()

    def release(self) -> None:
        """Ends undo rows and waits of steps for this save."""
        for table in self.tables:
            table.release()
        self.budget.end()

    def fail(self, error: BaseException) -> None:
        """Gives the save up, as soon as its thread sees it."""
        self.writer.fail(error)
        for table in self.tables:
            if table.view is not None:
                table.view.fail(error)
        self.budget.end()

    def _run(self) -> SaveResult:
        self.throttle.begin()
        waiting = list(self.tables)
        while waiting:
            # The one with most undo rows first, so that steps need not wait.
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
        """The rows of a table; between them undo rows of those that wait are written."""
        for chunk in table.chunks(partial(self._pause, waiting)):
            yield chunk
            self._pause(waiting)

    def _pause(self, waiting: Sequence[TableJob]) -> None:
        while self.budget.is_half_used and self._write_ahead(waiting):
            self.throttle.pause()
        self.writer.check_other_ranks()
        self.throttle.pause()

    def _write_ahead(self, waiting: Sequence[TableJob]) -> bool:
        """Makes room for undo rows, if another table than the one at hand holds many."""
        table = max(waiting, key=_urgency, default=None)
        if table is None or _AHEAD_DIVISOR * table.undo_bytes < self.budget.limit_bytes:
            return False
        self.writer.write_ahead(table.description, table.undo_chunks(), table.columns)
        return True

    def _retain(self) -> None:
        """Removes old snapshots. That it fails harms nothing that was saved."""
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
            _log.warning("older snapshots than %s could not be removed: %s", self.url, error)


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


def _urgency(table: TableJob) -> tuple[int, int]:
    return table.undo_bytes, 0 if table.view is None else table.view.num_keys


class SaveManager:
    """See `StepContainer.save`."""

    def __init__(self, events: EventLoop) -> None:
        self.counters = SaveCounters()
        self.history: deque[str] = deque(maxlen=_MAX_HISTORY)
        """Snapshots that this rank loaded or committed, oldest first."""
        self.newest: tuple[str, int] | None = None
        """URL and step of the snapshot that was saved or loaded last, on every rank; None also where rows
        have come from elsewhere since."""
        self.running: SnapshotJob | None = None
        self.task: Task[SaveResult] | None = None
        self.base: str | None = None
        """Snapshot since which changed keys are counted, which a delta may name."""
        events.on_await(self.unthrottle)

    def unthrottle(self) -> None:
        """Ends the pauses of a save that runs, as a caller waits for its end."""
        running = self.running
        if running is not None:
            running.throttle.unthrottle()

    def wait_for_capacity(self) -> None:
        """Called before a step writes: returns when a running save has room for undo rows."""
        running = self.running
        if running is None:
            return
        if running.is_over.is_set():
            self.account(running)
            return
        if not running.budget.wait_for_capacity(_WAIT_SECONDS):
            running.fail(
                DeadlineError(
                    f"save of {running.url}: a step waited {_WAIT_SECONDS} s for room for undo rows, "
                    "and the save wrote none meanwhile; find out what holds it up. The save is "
                    "given up, the step goes on",
                    url=running.url,
                    timeout=_WAIT_SECONDS,
                )
            )

    def join(self, timeout: float | None = None) -> None:
        """Returns when no save runs.

        Args:
            timeout: seconds; None: the `deadline_seconds` that the save was given.

        Raises:
            DeadlineError: it still does.
        """
        running = self.running
        if running is None:
            return
        self.unthrottle()
        seconds = running.deadline_seconds if timeout is None else timeout
        if not running.is_over.wait(seconds):
            raise DeadlineError(
                f"the save of {running.url} has not ended within {seconds} s; wait longer, or find "
                "out what holds it up",
                url=running.url,
                timeout=seconds,
            )
        if self.task is not None:
            # The event loop has its failure too when this returns: `EventLoop.check` tells of it.
            with suppress(Exception):
                self.task.result(seconds)
        self.account(running)

    def account(self, job: SnapshotJob) -> None:
        """Counts a save that is over."""
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
    """Totals of saves since the container was made, on this rank."""

    saves: int = 0
    """That have ended well."""
    failed: int = 0
    """That have not, in the background or not."""
    freeze_seconds: float = 0.0
    """For which steps stood still while tables were frozen."""
    wait_seconds: float = 0.0
    """For which steps waited, as too many old rows were kept already."""
    work_seconds: float = 0.0
    """Processor time of all threads that saved."""
    undo_rows: int = 0
    """Old rows that steps read for a save."""
    most_undo_bytes: int = 0
    """That were held at a time."""


_POLL_SECONDS = 0.02
"""Interval at which a pause looks for a reason to end."""


class Throttle:
    """Holds the threads of a save to a share of the time of one core.

    Each thread tells when it has ended a piece of work. What that took is booked on a calendar that
    all of them share, the longer the smaller the share is, and the thread sleeps to the end of its
    entry. So together they take the share, however many they are. Unused time is not saved up.

    Args:
        share: of the time of one core, above 0; 1 or more: no pauses.
        budget: of undo rows: there is no pause while it is nearly used up, or when the save is over.
    """

    def __init__(self, share: float, budget: UndoBudget) -> None:
        self._share, self._budget = share, budget
        self._thread = threading.local()
        self._is_awaited = threading.Event()
        self._lock = threading.Lock()  # guards what follows
        self._free_at = 0.0
        self.worked_seconds = 0.0
        """Processor time of all threads, as far as it was booked."""

    def begin(self) -> None:
        """Leaves out what the calling thread did before. Threads that the save starts need not call
        it."""
        self._thread.before = time.thread_time()

    def unthrottle(self) -> None:
        """Ends all pauses, as a caller waits for the end of the save."""
        self._is_awaited.set()

    def pause(self) -> None:
        """Called by each thread after each piece of work, of some milliseconds at best."""
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
            with self._lock:  # what an urgent save does without pauses is not paid for later
                self._free_at = min(self._free_at, now)
