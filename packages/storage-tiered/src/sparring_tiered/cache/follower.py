"""Follows the change notes of one table, as a coroutine on an event loop.

    poll ──► notes after the last applied one, in order
      next     1. reads in progress do not cache keys that the note may contain, and erased keys are
                  removed from the cache (`CacheFills.take_note`)
               2. the new keys are added to the filter of existing keys, or a new base replaces the filter
               3. cached keys that the note may contain are read again, in batches
      missed   reads in progress are not cached, and the filter of the base replaces the filter; the
               cached rows are removed, in batches, over `drop_seconds`

Reads are handled before the filter: after the filter has reported a key as erased, an earlier read must
not cache it again.

A note counts as applied when all of these steps are done. A poll that fails can be repeated completely
by the next one. If the cache has to be emptied, the follower records this until the rows to remove are
known, because the base that replaced the previous one does not show that notes were missed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Future
from contextlib import suppress

import numpy as np

from sparring import EventLoop
from sparring.adapter import BloomFilter, GrowingBloomFilter
from sparring.contracts import ChangeLog, Columns, Keys, Storage, TableConfig
from sparring.errors import InvalidArgumentError, SparringError
from sparring_tiered.cache.cache_fills import CacheFills
from sparring_tiered.changelog.change_note import ChangeNote, NotesBase
from sparring_tiered.options import RefreshOptions

__all__ = ["Follower"]

_log = logging.getLogger(__name__)

_DROP_BATCHES = 100
"""Number of batches in which a cache is emptied."""
_REFRESH_SECONDS = 60.0
_NONE: Keys = np.empty(0, np.int64)


class Follower:
    """Applies the notes of one table to its cache.

    Args:
        table: Table of the notes.
        backend: Storage to read changed rows from.
        fills: Writes to the cache.
        log: Notes of the table; `close` closes it.
        options: Intervals and batch sizes.

    Raises:
        InvalidArgumentError: There are no notes, or they belong to another table.
        SparringError: The notes cannot be read.
    """

    def __init__(
        self,
        table: TableConfig,
        backend: Storage,
        fills: CacheFills,
        log: ChangeLog,
        options: RefreshOptions,
    ) -> None:
        self._table, self._backend = table, backend
        self._fills, self._log, self._options = fills, log, options
        self._embedding = Columns(0, table.embedding_width)
        self.run, self.step, self.published = "", 0, 0.0
        self.num_notes = self.num_missed = self.num_reread = self.num_erased = self.num_failed = 0
        self.refresh_seconds = 0.0
        self._fresh_at = time.monotonic()
        self._last_failure = ""
        self._dropping: Keys = _NONE
        self._must_clear = False
        """Whether the cache has to be emptied, but the rows to remove are not known yet."""
        self.existing = GrowingBloomFilter(1_024)
        """Keys that may have a row in the backend.

        A find uses the filter that was current before it read the cache. If that filter contains a
        key, the find reads it from the backend, so its result is as new as that read."""
        self._session = self._lineage = ""
        self.sequence = 0
        self._events = EventLoop(capacity=8, num_threads=1)
        self._stopped: Future[None] = Future()
        self._one_at_a_time = asyncio.Lock()
        self._drops: asyncio.Task[None] | None = None
        try:
            newest = log.newest()
            base, last = self._read_up_to(newest)
            self._swap_filter(base)
            self._record_position(newest, last)
            self._events.submit(self._follow, name=f"notes of table {table.name!r}")
        except BaseException:
            self.close()
            raise

    @property
    def num_existing(self) -> int:
        return self.existing.num_added

    @property
    def memory_bytes(self) -> int:
        return self.existing.memory_bytes + self._dropping.nbytes

    @property
    def num_to_drop(self) -> int:
        return len(self._dropping)

    @property
    def behind_seconds(self) -> float:
        return time.monotonic() - self._fresh_at

    # -- looking ----------------------------------------------------------------

    def refresh(self) -> bool:
        """Polls once, and returns whether there was a note."""
        taken: bool = self._events.submit(
            self._poll, name="refresh", timeout=_REFRESH_SECONDS, report_failure=False
        ).result(_REFRESH_SECONDS)
        return taken

    def close(self) -> None:
        """Stops following, after a poll in progress has ended."""
        if not self._stopped.done():
            self._stopped.set_result(None)
        with suppress(SparringError):
            self._events.close()
        self._log.close()

    async def _follow(self) -> None:
        stopped = asyncio.wrap_future(self._stopped)
        while not (await asyncio.wait({stopped}, timeout=self._options.poll_seconds))[0]:
            await self._poll_and_report()

    async def _poll_and_report(self) -> None:
        try:
            await self._poll()
            self._last_failure = ""
        except Exception as error:
            # The next poll may succeed after any failure, and no cached row is torn.
            self._report_failure(error)

    def _report_failure(self, error: Exception) -> None:
        self.num_failed += 1
        if str(error) != self._last_failure:
            known = isinstance(error, SparringError)
            _log.warning(
                "table %r: following the change notes failed, cached rows are still available: %s",
                self._table.name, error, exc_info=None if known else error,
            )  # fmt: skip
        self._last_failure = str(error)

    async def _poll(self) -> bool:
        """Applies all available notes."""
        async with self._one_at_a_time:
            is_new = False
            while True:
                begin = time.monotonic()
                newest = await asyncio.to_thread(self._log.newest)
                if newest == self.sequence and not self._must_clear:
                    if not len(self._dropping):
                        self._fresh_at = begin
                    return is_new
                is_new = True
                await self._advance(newest)
                self.refresh_seconds = time.monotonic() - begin

    async def _advance(self, newest: int) -> None:
        """Applies the next note; if it is missing, continues with the newest."""
        place, sequence = self._log.place, self.sequence + 1
        data = await asyncio.to_thread(self._log.read, sequence) if newest >= sequence else None
        if data is None:
            await self._catch_up(newest)
            return
        note = await asyncio.to_thread(ChangeNote.from_bytes, data, place)
        await self._apply(note)

    async def _apply(self, note: ChangeNote) -> None:
        self._must_clear |= note.changed is None or note.session != self._session
        base = None
        if note.lineage != self._lineage:
            # The base may belong to a later note, in which case it contains the new keys of that note.
            base = await asyncio.to_thread(self._read_base)
        self._fills.take_note(note.changed, note.erased)
        if base is not None:
            self._swap_filter(base)
        if note.lineage == self._lineage:
            self.existing.add(note.new)
        self.num_erased += len(note.erased)
        if note.changed is None or self._must_clear:
            await self._drop_all()
        else:
            await self._reread(note.changed)
        self._record_note(note)

    def _record_note(self, note: ChangeNote) -> None:
        self.run, self.step, self.published = note.run, note.step, note.published
        self.sequence = note.sequence
        self.num_notes += 1

    async def _catch_up(self, newest: int) -> None:
        """Starts again from the base, because notes were missed or are fewer than before."""
        _log.warning(
            "table %r: notes after %d were missed, the newest is %d; cached rows are removed within %g s",
            self._table.name, self.sequence, newest, self._options.drop_seconds,
        )  # fmt: skip
        base, last = await asyncio.to_thread(self._read_up_to, newest)
        self._must_clear = True
        # Rows that are read from now on are at least as new as the newest note.
        self._fills.take_note(None, _NONE)
        self._swap_filter(base)
        await self._drop_all()
        self._record_position(newest, last)

    def _record_position(self, newest: int, last: ChangeNote | None) -> None:
        if last is not None:
            self._record_note(last)
        # The base may belong to a later note that is not available yet; it is applied like any other.
        self.sequence = newest

    # -- effects of a note --------------------------------------------------------

    async def _reread(self, changed: BloomFilter) -> None:
        keys = await asyncio.to_thread(self._fills.list_cached, changed)
        for begin in range(0, len(keys), self._options.batch_rows):
            batch = keys[begin : begin + self._options.batch_rows]
            await asyncio.to_thread(self._reread_batch, batch)
            self.num_reread += len(batch)

    def _reread_batch(self, keys: Keys) -> None:
        rows = np.empty((len(keys), self._table.width), self._table.numpy_dtype)
        found = np.empty(len(keys), np.bool_)
        begun = self._fills.begin()
        try:
            self._backend.find_into(keys, self._embedding, rows, found)
        except BaseException:
            self._fills.abandon(begun)
            raise
        self._fills.end(begun, keys, rows, found, is_new=False)

    async def _drop_all(self) -> None:
        """Removes the rows that are cached now, over `drop_seconds`, or immediately if that is 0."""
        dropping = await asyncio.to_thread(self._fills.list_cached, None)
        if not self._options.drop_seconds:
            # If it fails, the next poll repeats it.
            await asyncio.to_thread(self._fills.erase, dropping)
            dropping = _NONE
        self._dropping = dropping
        self._must_clear = False
        self.num_missed += 1
        if self._drops is not None:
            self._drops.cancel()
        self._drops = asyncio.create_task(self._drop_gradually())

    async def _drop_gradually(self) -> None:
        stopped = asyncio.wrap_future(self._stopped)
        seconds = self._options.drop_seconds
        batch = -(-len(self._dropping) // _DROP_BATCHES)
        while len(self._dropping):
            pause = seconds / _DROP_BATCHES
            try:
                await asyncio.to_thread(self._fills.erase, self._dropping[:batch])
                self._dropping = self._dropping[batch:]
            except Exception as error:
                self._report_failure(error)
                pause = max(pause, self._options.poll_seconds)
            if (await asyncio.wait({stopped}, timeout=pause))[0]:
                return

    # -- base -------------------------------------------------------------------

    def _read_base(self) -> NotesBase:
        place, name = self._log.place, self._table.name
        data = self._log.read_base()
        if data is None:
            raise InvalidArgumentError(
                f"table {name!r}: there are no change notes at {place}; add a section change_notes to "
                "the training configuration, and train",
                table=name,
            )
        base = NotesBase.from_bytes(data, place)
        found, table = base.table, self._table
        if (found.name, found.dim, found.dtype) != (name, table.dim, table.dtype):
            raise InvalidArgumentError(
                f"change notes at {place} belong to table {found.name!r} with {found.dtype} x "
                f"{found.dim}, expected {name!r} with {table.dtype} x {table.dim}; declare the "
                "table with these values, or set notes to another folder",
                table=name,
            )
        return base

    def _read_up_to(self, newest: int) -> tuple[NotesBase, ChangeNote | None]:
        """Returns the base with the new keys of the notes up to the newest, and the last of these
        notes."""
        place = self._log.place
        base, last = self._read_base(), None
        sequence = base.sequence
        while sequence < newest:
            data = self._log.read(sequence + 1)
            note = None if data is None else ChangeNote.from_bytes(data, place)
            if note is None or note.lineage != base.lineage:
                again = self._read_base()
                if again.sequence <= base.sequence:
                    raise InvalidArgumentError(
                        f"change notes at {place}: the base belongs to note {base.sequence}, but note "
                        f"{sequence + 1} is missing; remove all notes there, and let the trainer publish "
                        "again"
                    )
                base, last = again, None
                sequence = base.sequence
                continue
            base.existing.add(note.new)
            sequence += 1
            last = note
        return base, last

    def _swap_filter(self, base: NotesBase) -> None:
        self.existing, self._session, self._lineage = base.existing, base.session, base.lineage
