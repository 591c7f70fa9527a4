"""Publishes change notes, which report changed rows to readers with caches in front of a shared backend.

    take the keys that changed ──► flush ──► gather from all ranks ──► rank 0: base if due, note

The first note of a process reports that any row may have changed, and is published with a base. This
includes changes of an earlier process that were not published. If publishing a note fails, the next note
contains its keys.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from sparring import make_plugin_manager
from sparring.adapter import BloomFilter, Coordinator, GrowingBloomFilter
from sparring.contracts import (
    ChangeLog,
    Closable,
    Columns,
    Keys,
    Storage,
    SupportsCopy,
    TableConfig,
    call_each,
)
from sparring.errors import InvalidArgumentError, StorageIOError, UnsupportedError
from sparring_tiered.changelog.change_note import CHANGED_RATE, ChangeNote, NotesBase
from sparring_tiered.changelog.open_log import open_change_log
from sparring_tiered.changelog.unpublished_keys import TakenKeys, UnpublishedKeys

if TYPE_CHECKING:
    from sparring import StepContainer
    from sparring.adapter import TableEntry

__all__ = ["ChangePublisher"]

_EXISTING_RATE = 0.01
_PLANNED_KEYS = 65_536
_MAX_ERASED_SHARE = 0.25
_PROBE_BATCH_ROWS = 65_536
_NONE: Keys = np.empty(0, np.int64)


class ChangePublisher(Closable):
    """Publishes the change notes of the tables of a container.

    Every rank must create one with the same arguments, and call its methods in the same order.

    Args:
        container: Container of the tables.
        tables: Names of the tables; None for all. Their rows must not be split by columns.
        url: Folder for notes, a path or a URL of fsspec. None stores them in the backend of the rows, if
            it stores notes, as Redis does.
        keep: Number of notes to keep, at least 2. A reader that misses more notes empties its cache
            gradually.
        run: Name of the run, for readers.

    Raises:
        InvalidArgumentError: `keep` is too small, a table is unknown, or its backend stores no notes.
        UnsupportedError: The rows of a table are split by columns.
    """

    def __init__(
        self,
        container: StepContainer,
        *,
        tables: Sequence[str] | None = None,
        url: str | None = None,
        keep: int = 64,
        run: str = "",
    ) -> None:
        if keep < 2:
            raise InvalidArgumentError(
                f"change notes: keep must be at least 2, found {keep}; keep more notes"
            )
        self._container = container
        self._keep, self._run = keep, run
        self._session = secrets.token_hex(8)
        entries = [container.entry(name) for name in tables or container.tables]
        self._tables = [_PublishedTable(entry) for entry in entries]
        is_first = container.collective.rank == 0
        try:
            for each in self._tables:
                places = container.tiers(each.name)
                if url is None and not places:
                    raise InvalidArgumentError(
                        f"change notes of table {each.name!r}: the container received an open "
                        "storage, so its location is unknown; pass a folder for the notes as url",
                        table=each.name,
                    )
                if (
                    is_first or url is None
                ):  # so that every rank raises if the backend stores no notes
                    last = (places[-1].backend, places[-1].options) if places else ("memory", {})
                    each.log = open_change_log(each.name, url, *last, make_plugin_manager())
        except BaseException:
            self.close()
            raise
        for each in self._tables:
            each.entry.write_log.add_observer(each.unpublished)

    def publish(self, step: int) -> Mapping[str, int]:
        """Flushes the storages, and publishes a note per table. Call it between steps, on all ranks.

        Args:
            step: Training step, for readers.

        Returns:
            Table → number of keys in the note; -1 if any row may have changed. Tables without a storage
            are omitted.

        Raises:
            SparringError: A storage or the location of the notes failed on this or another rank. The next
                note contains the unpublished changes.
        """
        container = self._container
        container.quiesce()
        taken = [(each, each.unpublished.take()) for each in self._tables if each.has_storage]
        try:
            container.flush()
            told = {}
            for each, keys in taken:
                told[each.name] = self._publish(each, each.exclude_rejected(keys), step)
        except BaseException:
            for each, keys in taken:
                each.unpublished.put_back(keys)
            raise
        return told

    def close(self) -> None:
        """Stops collecting changed keys, and closes the logs. Does not publish a note."""
        for each in self._tables:
            each.entry.write_log.remove_observer(each.unpublished)
        call_each([each.log.close for each in self._tables if each.log is not None])

    # -- one table ------------------------------------------------------------------

    def _publish(self, table: _PublishedTable, own: TakenKeys, step: int) -> int:
        collective = self._container.collective
        if collective.world_size == 1:
            changed, erased, is_everything = own.changed, own.erased, own.is_everything
        else:
            changed = np.unique(np.concatenate(collective.all_gather(own.changed)))
            erased = np.unique(np.concatenate(collective.all_gather(own.erased)))
            is_everything = any(Coordinator(collective, "change notes").gather(own.is_everything))
        coordinator = Coordinator(collective, f"change notes of table {table.name!r}")
        is_new_filter = is_everything or coordinator.gather(table.is_filter_old)[0]
        error: Exception | None = None
        existing = self._build_filter(table) if is_new_filter else table.existing
        if existing is not None:
            try:
                self._append(table, existing, TakenKeys(changed, erased, is_everything), step)
            except Exception as failure:
                error = failure
        coordinator.agree(error)
        return -1 if is_everything else len(changed)

    def _append(
        self, table: _PublishedTable, existing: GrowingBloomFilter, taken: TakenKeys, step: int
    ) -> None:
        log = table.log
        assert log is not None
        newest = log.newest()
        if not taken.is_everything and newest != table.sequence:
            # Another publisher wrote notes, or notes were removed, so readers cannot detect missed notes.
            table.restart()
            raise StorageIOError(
                f"change notes of table {table.name!r} at {log.place}: the newest note is {newest}, but "
                f"this trainer wrote {table.sequence} last; stop other trainers that publish there. The "
                "next note reports that any row may have changed",
                table=table.name,
            )
        is_new_filter = existing is not table.existing
        lineage = secrets.token_hex(8) if is_new_filter else table.lineage
        sequence = newest + 1
        if taken.is_everything:
            # Leaves a gap in the numbers, which readers detect even if the earlier notes were lost.
            sequence = max(sequence, time.time_ns() // 1_000_000)
        keys = taken.changed
        new = _NONE if is_new_filter else keys[~existing.contains(keys)]
        note = ChangeNote(
            sequence,
            self._session,
            lineage,
            self._run,
            step,
            time.time(),
            None if taken.is_everything else _build_changed_filter(keys),
            len(keys),
            new,
            taken.erased,
        )
        content = note.to_bytes()
        if is_new_filter or sequence - table.base_sequence > self._keep // 2:
            base = NotesBase(sequence - 1, self._session, lineage, table.description, existing)
            log.write_base(base.to_bytes())
            table.base_sequence = sequence - 1
        try:
            log.append(sequence, content, self._keep)
        except BaseException:
            table.restart()  # it is unknown whether readers can read the note
            raise
        # Exactly like readers, because the filters must have the same false positives.
        existing.add(new)
        table.num_erased = 0 if is_new_filter else table.num_erased + len(taken.erased)
        table.existing, table.lineage, table.sequence = existing, lineage, sequence

    def _build_filter(self, table: _PublishedTable) -> GrowingBloomFilter | None:
        """Builds a filter of the keys of all ranks; returns it on rank 0."""
        collective = self._container.collective
        storage = table.entry.storage
        assert storage is not None
        is_spread = collective.world_size > 1 and not table.entry.config.is_replicated
        size = storage.size
        if is_spread:
            size = sum(Coordinator(collective, "keys of all ranks").gather(size))
        made = GrowingBloomFilter(
            max(_PLANNED_KEYS, size + size // 4), false_positive_rate=_EXISTING_RATE
        )
        for keys in self._all_keys(storage, is_spread=is_spread):
            if collective.rank == 0 and len(keys):
                made.add(keys)
        return made if collective.rank == 0 else None

    def _all_keys(self, storage: Storage, *, is_spread: bool) -> Iterator[Keys]:
        """Yields the keys of a storage in parts; with `is_spread`, also keys of other ranks."""
        chunks = (chunk.keys for chunk in storage.scan(columns=Columns(0, 1)))
        if not is_spread:
            yield from chunks
            return
        while True:
            parts = self._container.collective.all_gather(next(chunks, _NONE))
            if not any(len(part) for part in parts):
                return
            yield from parts


@dataclass(slots=True, eq=False)
class _PublishedTable:
    """State of the notes of one table."""

    entry: TableEntry
    unpublished: UnpublishedKeys = field(default_factory=UnpublishedKeys)
    log: ChangeLog | None = None
    existing: GrowingBloomFilter | None = None
    """Keys in the filter of readers; set on rank 0 after a base was written."""
    lineage: str = ""
    sequence: int = 0
    base_sequence: int = 0
    num_erased: int = 0

    def __post_init__(self) -> None:
        if self.entry.has_column_blocks:
            raise UnsupportedError(
                f"change notes of table {self.name!r}: it is sharded {self.entry.layout.kind}, so "
                "no storage has whole rows for readers; choose a kind that does not split rows, "
                "such as row_wise",
                table=self.name,
            )

    @property
    def name(self) -> str:
        return self.entry.config.name

    @property
    def description(self) -> TableConfig:
        return self.entry.config.with_state(0)

    @property
    def has_storage(self) -> bool:
        return self.entry.storage is not None

    @property
    def is_filter_old(self) -> bool:
        """Whether many keys of the filter on rank 0 were erased; a filter cannot remove keys."""
        if self.existing is None:
            return False
        return self.num_erased > max(1_024, _MAX_ERASED_SHARE * self.existing.num_added)

    def exclude_rejected(self, taken: TakenKeys) -> TakenKeys:
        """Removes keys that were not admitted, because they would fill the filter of readers."""
        if self.entry.config.admission is None:
            return taken
        storage = self.entry.storage
        assert storage is not None
        copy = storage.copy_into if isinstance(storage, SupportsCopy) else storage.find_into
        room = np.empty((_PROBE_BATCH_ROWS, 1), storage.table.numpy_dtype)
        kept = [taken.erased]
        for begin in range(0, len(taken.changed), _PROBE_BATCH_ROWS):
            keys = taken.changed[begin : begin + _PROBE_BATCH_ROWS]
            found = np.empty(len(keys), np.bool_)
            copy(keys, Columns(0, 1), room[: len(keys)], found)
            kept.append(keys[found])
        changed = np.unique(np.concatenate(kept))
        return TakenKeys(changed, taken.erased, taken.is_everything)

    def restart(self) -> None:
        """Makes the next note report that any row may have changed."""
        self.unpublished.note_everything()
        self.existing = None


def _build_changed_filter(keys: Keys) -> BloomFilter:
    made = BloomFilter(max(1_024, len(keys)), false_positive_rate=CHANGED_RATE)
    made.add(keys)
    return made
