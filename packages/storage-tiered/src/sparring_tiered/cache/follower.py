"""Follows the change notes of one table, as a coroutine on an event loop.

    look ──► notes after the last one taken, in order
      taken    1. reads under way leave out what the note may have, and erased keys leave the cache
                  (`CacheFills.take_note`)
               2. the filter of existing keys gets the new keys, or is swapped for that of a new base
               3. cached keys that the note may have are read again, in batches
      missed   reads under way are left out, and the filter is swapped for that of the base; what is
               cached leaves, in batches, over `drop_seconds`

Reads come first: where the filter said that a key is gone, a read from before must not bring it back.

A note counts as taken when all of it was done. A look that fails changes nothing that would not be done
again by the next. If the cache has to be emptied, the follower remembers it until the rows to remove are
known, because the base that replaces the old one no longer shows that notes are missing.
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
"""In which a cache is emptied."""
_REFRESH_SECONDS = 60.0
_NONE: Keys = np.empty(0, np.int64)


class Follower:
    """The notes of one table, and what they do to its cache.

    Args:
        table: whose they are.
        backend: read.
        fills: of the cache, which is kept as new as the notes.
        log: the notes; closed with this.
        options: how often, how much at a time.

    Raises:
        InvalidArgumentError: there are no notes, or they are of another table.
        SparringError: they cannot be read.
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
        self._embedding = Columns(0, table.dim)
        self.run, self.step, self.published = "", 0, 0.0
        self.num_notes = self.num_missed = self.num_reread = self.num_erased = self.num_failed = 0
        self.refresh_seconds = 0.0
        self._fresh_at = time.monotonic()
        self._last_failure = ""
        self._dropping: Keys = _NONE
        self._must_clear = False
        """Whether the cache has to be emptied and the rows to remove are not known yet."""
        self.existing = GrowingBloomFilter(1_024)
        """Keys that may have a row in the backend. A find takes it before it looks into the cache: a key
        that an older filter has is asked for, so what the find says of it is as new as what it read."""
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
        """Looks once, and returns whether there was a note."""
        taken: bool = self._events.submit(
            self._poll, name="refresh", timeout=_REFRESH_SECONDS, report_failure=False
        ).result(_REFRESH_SECONDS)
        return taken

    def close(self) -> None:
        """Ends following, when a look under way has ended."""
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
            # The next look may succeed, whatever failed, and every cached row is whole.
            self._report_failure(error)

    def _report_failure(self, error: Exception) -> None:
        self.num_failed += 1
        if str(error) != self._last_failure:
            known = isinstance(error, SparringError)
            _log.warning(
                "table %r: following the change notes failed, cached rows are still found: %s",
                self._table.name, error, exc_info=None if known else error,
            )  # fmt: skip
        self._last_failure = str(error)

    async def _poll(self) -> bool:
        """Takes all notes that there are."""
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
        """Takes the next note; where it is missing, all that are."""
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
            # It may be of a later note, whose new keys it has then.
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
        """Notes were missed, or there are fewer than before: begins with the base again."""
        _log.warning(
            "table %r: notes after %d were missed, the newest is %d; cached rows leave within %g s",
            self._table.name, self.sequence, newest, self._options.drop_seconds,
        )  # fmt: skip
        base, last = await asyncio.to_thread(self._read_up_to, newest)
        self._must_clear = True
        # Rows that are read from here on are as new as the newest note.
        self._fills.take_note(None, _NONE)
        self._swap_filter(base)
        await self._drop_all()
        self._record_position(newest, last)

    def _record_position(self, newest: int, last: ChangeNote | None) -> None:
        if last is not None:
            self._record_note(last)
        # The base may be of a later note that is not there yet; it comes as any other.
        self.sequence = newest

    # -- what a note does ---------------------------------------------------------

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
        """Removes the rows that are cached now: over time, or with `drop_seconds` 0 at once."""
        dropping = await asyncio.to_thread(self._fills.list_cached, None)
        if not self._options.drop_seconds:
            # If it fails, the next look does it again.
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
                f"table {name!r}: there are no change notes at {place}; give the training "
                "configuration a section change_notes, and train",
                table=name,
            )
        base = NotesBase.from_bytes(data, place)
        found, table = base.table, self._table
        if (found.name, found.dim, found.dtype) != (name, table.dim, table.dtype):
            raise InvalidArgumentError(
                f"change notes at {place} are of table {found.name!r} with {found.dtype} x "
                f"{found.dim}, asked was {name!r} with {table.dtype} x {table.dim}; declare it so, or "
                "name another place",
                table=name,
            )
        return base

    def _read_up_to(self, newest: int) -> tuple[NotesBase, ChangeNote | None]:
        """The base with the new keys of notes up to the newest, and the last of these notes."""
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
                        f"change notes at {place}: the base is of note {base.sequence}, and note "
                        f"{sequence + 1} is missing; remove what is there, and let the trainer "
                        "publish again"
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
