"""Writes one rank's part of a snapshot, and commits the snapshot.

    write_table, write_state …   write data files, each synced and hashed
    finish                       writes the rank's part file: its data files with their hashes
    commit (rank 0)              all parts → the manifest → rename → sync of the parent folder
    await_commit (other ranks)   waits until rank 0 has committed or abandoned the snapshot

A snapshot is invisible to readers before the commit, and immutable after it. The file is long because
one class contains all stages, which share the state of the attempt.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.column_block import ColumnBlock
from sparring.contracts.storage.results import Keys, ScanChunk, check_keys, check_rows, check_scores
from sparring.errors import ClosedError, InvalidArgumentError, SnapshotError, SnapshotIOError
from sparring.runtime.threads import Threads
from sparring.snapshot.changed_keys import CHANGED_KEYS, index_keys
from sparring.snapshot.commit import (
    POLL_SECONDS,
    Attempt,
    check_name,
    check_state_name,
    check_step_and_rank,
    part_name,
    read_base_entry,
    resolve_token,
)
from sparring.snapshot.format.data_file import DataFile, write_state_file
from sparring.snapshot.format.manifest import (
    JSON,
    MANIFEST_BYTES,
    FileEntry,
    FileHashes,
    Part,
    TableDescription,
    TableEntry,
    encode_text,
)
from sparring.snapshot.place.place import writing
from sparring.snapshot.reader import Snapshot, locate, open_snapshot
from sparring.snapshot.row_router import RowLayout, RowRouter, SnapshotOptions

__all__ = ["SnapshotWriter"]

_SEALING_THREADS = 2
_MAX_SEALING = 32
"""Maximum number of open files that wait to be sealed while the next table is written."""
_AHEAD_BUFFER_BYTES, _AHEAD_SMALL_BYTES = 10 << 20, 2 << 20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _TableFile:
    """Kind, table and columns of a file of rows or erased keys."""

    kind: Literal["rows", "erased"]
    table: str
    columns: ColumnBlock | None

    @property
    def stem(self) -> str:
        """First part of the file name."""
        if self.columns is None:
            return f"{self.kind}.{self.table}"
        return f"{self.kind}.{self.table}.columns-{self.columns.begin}-{self.columns.end}"


class SnapshotWriter:
    """Writes one rank's part of one snapshot. Only one thread may use it.

    Args:
        url: URL of the snapshot itself, such as ``…/step-000000123``; the same on all ranks.
        step: Step whose state the snapshot contains.
        rank: Rank that writes this part.
        world_size: Number of ranks that write parts.
        base: URL of the base of a delta, a snapshot in the same folder; None for a full snapshot.
        deadline_seconds: How long `commit` waits for the parts of other ranks, and `await_commit` for
            the commit.
        token: Unique name of this attempt to save, the same on all ranks. None generates one, which is
            only possible with a single rank.
        options: Sizes of files and buffers, and a function that pauses writing threads.

    Raises:
        InvalidArgumentError: An argument is out of range.
        SnapshotError: The snapshot exists already, or `base` is not a snapshot.
        SnapshotIOError: The file system failed.

    Examples:
        >>> import tempfile
        >>> import numpy as np
        >>> from sparring import ScanChunk, SnapshotWriter, TableDescription
        >>> chunk = ScanChunk(np.arange(2), np.ones((2, 4), np.float32), np.zeros(2, np.uint64))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     writer = SnapshotWriter(f"{folder}/step-000000005", step=5)
        ...     writer.write_table(TableDescription("item", dim=4), [chunk])
        ...     writer.finish()
        ...     writer.commit().step
        5
    """

    def __init__(
        self,
        url: str,
        *,
        step: int,
        rank: int = 0,
        world_size: int = 1,
        base: str | None = None,
        deadline_seconds: float = 60.0,
        token: str | None = None,
        options: SnapshotOptions | None = None,
    ) -> None:
        check_step_and_rank(step, rank, world_size)
        self._place, self._name = locate(url)
        check_name(url, self._name)
        self.url = self._place.url_of(self._name)
        self.step, self.rank, self.world_size = step, rank, world_size
        self.token = resolve_token(token, world_size)
        self._deadline_seconds = deadline_seconds
        self._options = options or SnapshotOptions()
        self._base = read_base_entry(self._place.url, base)
        self._tables: dict[str, TableEntry] = {}
        self._written: set[tuple[str, ColumnBlock | None]] = set()
        self._entries: list[FileEntry] = []
        self._names: set[str] = set()
        self._files: list[str] = []
        self._sealing: list[Future[FileEntry]] = []
        self._changed: dict[str, list[Keys]] | None = None
        if self._options.index_keys and self._base is not None:
            self._changed = {}
        self._state = "writing"
        with writing(self.url, "the staging folder"):
            if self._place.exists(self._name):
                raise SnapshotError(
                    f"snapshot {self.url} exists already, and a snapshot is never overwritten; choose "
                    "another name, or remove the snapshot first",
                    url=self.url,
                )
            self._folder = self._place.stage(self._name, self.token)
        place, folder = self._place, self._folder
        self._attempt = Attempt(
            self.url, self._name, place, folder, rank, world_size, self.token, step, self._base
        )
        self._threads = Threads("sparring-snapshot", _SEALING_THREADS)
        self._row_thread = Threads("sparring-snapshot-rows")

    def write_table(
        self,
        table: TableDescription,
        chunks: Iterable[ScanChunk],
        erased: Iterable[Keys] = (),
        columns: ColumnBlock | None = None,
    ) -> None:
        """Writes this rank's rows of a table, in bounded memory.

        Call it once per table, or once per block of columns if the rows are split by columns.

        Args:
            table: Description of the table, the same on all ranks and for all blocks of columns.
            chunks: Rows of unique keys, in any order. The iterator may reuse the arrays. Scores are
                read if `table.has_scores`.
            erased: For a delta: keys that had a row in the base and have none now.
            columns: Columns in the rows of `chunks`; None for all.

        Raises:
            InvalidArgumentError: The table was written already, the chunks do not fit it, or erased
                keys were passed for a full snapshot.
            SnapshotError: Another rank failed; the message contains its cause.
            SnapshotIOError: The file system failed.
        """
        self._check_unwritten(table, columns)
        self._written.add((table.name, columns))
        known = self._tables.get(table.name)
        if known is None or table.has_scores:  # without a storage, a block has no scores to report
            self._tables[table.name] = TableEntry.of(table)
        self._write_rows(table, chunks, self._options, columns)
        self._write_erased(table, erased, columns)

    def write_ahead(
        self,
        table: TableDescription,
        chunks: Iterable[ScanChunk],
        columns: ColumnBlock | None = None,
    ) -> None:
        """Writes some rows of a table before the call of `write_table`, into separate files.

        It may be called while `write_table` reads the rows of another table. A call of `write_table`
        with the remaining rows must follow. Such a file spans all partitions, and each of its segments
        contains one range.

        Args:
            table: Description of the table, the same on all ranks.
            chunks: As for `write_table`.
            columns: As for `write_table`.

        Raises:
            InvalidArgumentError: The table was written already, or the chunks do not fit it.
            SnapshotError: Another rank failed; the message contains its cause.
            SnapshotIOError: The file system failed.
        """
        self._check_unwritten(table, columns)
        options = replace(
            self._options, buffer_bytes=_AHEAD_BUFFER_BYTES, small_bytes=_AHEAD_SMALL_BYTES
        )
        self._write_rows(table, chunks, options, columns, is_ahead=True)

    def start_threads(self) -> None:
        """Starts the threads that write and seal files.

        Otherwise the first file or the first large table starts them, which is not possible while the
        interpreter shuts down.
        """
        self._threads.start()
        self._row_thread.start()

    def check_other_ranks(self) -> None:
        """Checks, at most once per second, whether the attempt has failed on another rank.

        Raises:
            SnapshotError: Another rank failed; the message contains its cause.
            SnapshotIOError: The file system failed.
        """
        self._attempt.poll()

    def fail(self, reason: BaseException) -> None:
        """Makes the thread that writes or waits for other ranks raise `reason` soon.

        It may be called on any thread.

        Args:
            reason: The error to raise.
        """
        self._attempt.abort_reason = reason

    def limit_waits(self, seconds: float) -> None:
        """Ends waits for other ranks after `seconds`, on any thread.

        Args:
            seconds: Time in seconds from now.
        """
        self._attempt.waits_until = time.monotonic() + seconds

    def _check_unwritten(self, table: TableDescription, columns: ColumnBlock | None) -> None:
        self._check_state("writing")
        if (
            any(name == table.name and None in {columns, other} for name, other in self._written)
            or (
                table.name,
                columns,
            )
            in self._written
        ):
            raise InvalidArgumentError(
                f"snapshot {self.url}: table {table.name!r} was written already; write each table "
                "only once",
                table=table.name,
            )

    def _write_rows(
        self,
        table: TableDescription,
        chunks: Iterable[ScanChunk],
        options: SnapshotOptions,
        columns: ColumnBlock | None,
        *,
        is_ahead: bool = False,
    ) -> None:
        config = table.config if columns is None else columns.table_of(table.config)
        layout = RowLayout(config.width, config.numpy_dtype, table.has_scores)
        file = _TableFile("rows", table.name, columns)
        router = self._router(file, layout, options, is_ahead=is_ahead)
        try:
            for chunk in chunks:
                self.check_other_ranks()
                keys = check_keys(chunk.keys, table.name, unique=False)
                rows = check_rows(chunk.rows, len(keys), config)
                scores = (
                    check_scores(chunk.scores, len(keys), table.name) if table.has_scores else None
                )
                router.add(keys, rows, scores)
                self._index(table, keys)
            router.finish()
        finally:
            router.close()

    def write_state(
        self, name: str, values: JSON = None, arrays: Mapping[str, npt.ArrayLike] | None = None
    ) -> None:
        """Writes state other than tables, such as step counts, random state or model parameters.

        Args:
            name: Name of the state, unique within the rank: letters, digits, ``_``, ``.``, ``-``.
            values: JSON values, including infinity and NaN.
            arrays: Name → array of booleans, integers or floats.

        Raises:
            InvalidArgumentError: The name was used before, or a value cannot be saved exactly.
            SnapshotIOError: The file system failed.
        """
        self._check_state("writing")
        check_state_name(name)
        stored = self._new_name(f"state.{name}.{self.rank:05d}.safetensors")
        given = {key: np.asarray(value) for key, value in (arrays or {}).items()}
        try:
            text = json.dumps(values)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(
                f"state {name!r}: values must be convertible to JSON ({error}); pass arrays in the "
                "argument arrays"
            ) from error
        with writing(self.url, stored):
            file = self._folder.create(stored)
        try:
            write_state_file(self.url, name, stored, file, text, given)
        except BaseException:
            file.close()
            raise
        with writing(self.url, stored), file:
            hashes = file.seal(self._options.pause)
        self._entries.append(
            FileEntry(
                name=stored,
                kind="state",
                rank=self.rank,
                state=name,
                size_bytes=hashes.size_bytes,
                hash=hashes.whole,
                blocks=hashes.blocks,
            )
        )

    def finish(self) -> None:
        """Writes this rank's part file. Returns when all files of the rank are durable.

        Raises:
            SnapshotIOError: The file system failed.
        """
        self._check_state("writing")
        if self._changed is not None:
            index = index_keys(self._changed)
            self.write_state(CHANGED_KEYS, index.values, index.arrays)
        self._collect(0)
        part = Part(
            step=self.step,
            world_size=self.world_size,
            base=self._base,
            tables=list(self._tables.values()),
            files=self._entries,
            token=self.token,
            rank=self.rank,
        )
        name = part_name(self.rank)
        text = encode_text(part)
        try:
            with writing(self.url, name):
                self._folder.put(name, text)
        except SnapshotIOError:
            # The part may exist nevertheless, and rank 0 may be committing it.
            if self._exists(name, len(text)):
                self._state = "finished"
            raise
        self._state = "finished"

    def _exists(self, name: str, most: int) -> bool:
        """Whether a file is in the staging folder; True if this cannot be determined."""
        try:
            with writing(self.url, name):
                return self._folder.read(name, most) is not None
        except (SnapshotIOError, ValueError):
            return True

    def commit(self) -> Snapshot:
        """Makes the snapshot visible after all ranks have finished. Only rank 0 calls it.

        Returns:
            The committed snapshot.

        Raises:
            DeadlineError: A rank did not finish its part before the deadline.
            SnapshotError: Another rank failed (the message contains its cause), the parts do not match,
                or another attempt committed the same snapshot.
            SnapshotIOError: The file system failed.
        """
        self._check_state("finished")
        if self.rank:
            raise InvalidArgumentError(
                f"snapshot {self.url}: rank {self.rank} called commit, which only rank 0 may; call "
                "await_commit on this rank"
            )
        manifest = encode_text(self._attempt.await_manifest(self._deadline_seconds))
        if len(manifest) > MANIFEST_BYTES:
            raise SnapshotError(
                f"snapshot {self.url}: its manifest has {len(manifest)} bytes, more than the "
                f"{MANIFEST_BYTES} that readers accept; save fewer rows per snapshot"
            )
        with writing(self.url, "the manifest"):
            self._folder.discard([part_name(rank) for rank in range(self.world_size)])
            try:
                self._place.publish(self._folder, self._name, manifest)
            except FileExistsError as error:
                raise SnapshotError(
                    f"snapshot {self.url} was committed by another attempt at the same time, and a "
                    "snapshot is never overwritten; save under another name",
                    url=self.url,
                ) from error
        self._state = "committed"
        self._release()
        return open_snapshot(self.url)

    def await_commit(self) -> None:
        """Waits until rank 0 has committed the snapshot. Ranks other than 0 may call it.

        Raises:
            DeadlineError: Rank 0 did not commit it before the deadline.
            SnapshotError: Rank 0 has abandoned the attempt; the message contains the cause.
            SnapshotIOError: The file system failed.
        """
        self._check_state("finished")
        if not self.rank:
            raise InvalidArgumentError(
                f"snapshot {self.url}: rank 0 called await_commit; call commit on rank 0"
            )
        self._attempt.await_commit(self._entries, self._deadline_seconds)
        self._state = "committed"
        self._release()

    def abandon(self, cause: BaseException | None = None) -> None:
        """Abandons the attempt, and removes its staged files. A second call does nothing.

        A rank other than 0 that has finished does not remove its files, because rank 0 may be committing
        them. `retain` removes such files later.

        Args:
            cause: Cause to report to other ranks, so that they fail soon with the same cause; None if
                they know it already.

        Raises:
            SnapshotIOError: The file system failed.
        """
        if self._state in {"committed", "abandoned"}:
            return
        was_finished, self._state = self._state == "finished", "abandoned"
        self._threads.close()
        self._row_thread.close()
        try:
            was_reported = cause is not None and self._attempt.report_failure(
                cause, self._files, was_finished=was_finished
            )
            if self.rank == 0 or not (was_finished or was_reported):
                with writing(self.url, "the staging folder"):
                    self._place.abandon(self._name, self.token, self._attempt.unread_mark)
        finally:
            self._release()

    def _release(self) -> None:
        self._threads.close()
        self._row_thread.close()
        self._folder.close()

    def _check_state(self, expected: str) -> None:
        if self._state != expected:
            raise ClosedError(
                f"snapshot {self.url}: this part is in state {self._state!r}, the call requires "
                f"{expected!r}; call finish once, after all tables and state, and then commit on rank 0"
            )

    def _write_erased(
        self, table: TableDescription, erased: Iterable[Keys], columns: ColumnBlock | None
    ) -> None:
        layout = RowLayout(0, np.dtype(np.uint8), False)
        router = self._router(_TableFile("erased", table.name, columns), layout, self._options)
        try:
            for given in erased:
                keys = check_keys(given, table.name, unique=False)
                if len(keys) and self._base is None:
                    raise InvalidArgumentError(
                        f"snapshot {self.url}: table {table.name!r} has erased keys, which a full "
                        "snapshot does not support; pass the base of a delta",
                        table=table.name,
                    )
                router.add(keys, None, None)
                self._index(table, keys)
            router.finish()
        finally:
            router.close()

    def _index(self, table: TableDescription, keys: Keys) -> None:
        if self._changed is not None:
            self._changed.setdefault(table.name, []).append(keys.copy())

    def _router(
        self,
        file: _TableFile,
        layout: RowLayout,
        options: SnapshotOptions,
        *,
        is_ahead: bool = False,
    ) -> RowRouter:
        return RowRouter(
            layout,
            options,
            create=partial(self._create, file),
            seal=partial(self._seal, file),
            writer=self._row_thread,
            is_shared=is_ahead,
        )

    def _create(self, of: _TableFile, partitions: tuple[int, int]) -> DataFile:
        stem = f"{of.stem}.{partitions[0]:04d}-{partitions[1]:04d}.{self.rank:05d}"
        number = 0
        while self._folder.stored_name(f"{stem}.{number}.safetensors") in self._names:
            number += 1
        name = self._new_name(f"{stem}.{number}.safetensors")
        with writing(self.url, name):
            return DataFile(self.url, name, self._folder.create(name), partitions)

    def _new_name(self, name: str) -> str:
        stored = self._folder.stored_name(name)
        if stored in self._names:
            raise InvalidArgumentError(
                f"snapshot {self.url}: {name} was written already; use a different name for each state"
            )
        self._names.add(stored)
        self._files.append(name)
        return stored

    def _seal(self, of: _TableFile, file: DataFile, is_alone: bool) -> None:
        self._collect(_MAX_SEALING)

        def entry(hashes: FileHashes) -> FileEntry:
            return FileEntry(
                name=file.name,
                kind=of.kind,
                rank=self.rank,
                table=of.table,
                partitions=file.partitions,
                columns=None if of.columns is None else (of.columns.begin, of.columns.end),
                num_keys=file.num_keys,
                size_bytes=hashes.size_bytes,
                hash=hashes.whole,
                blocks=hashes.blocks,
            )

        self._sealing.append(
            self._threads.submit(lambda: entry(file.seal(self._options.pause, is_alone=is_alone)))
        )

    def _collect(self, most: int) -> None:
        """Waits until at most `most` files are still being sealed."""
        while len(self._sealing) > most:
            self.check_other_ranks()
            if wait(self._sealing[:1], POLL_SECONDS).done:
                self._entries.append(self._sealing.pop(0).result())
