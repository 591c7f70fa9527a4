"""Writes one rank's part of a snapshot, and commits the whole.

    write_table, write_state …   data files, each synced and hashed
    finish                       the rank's part: its files, with their hashes
    commit (rank 0)              all parts → the manifest → rename → sync of the folder above
    await_commit (all others)    until it is there, or rank 0 has given up

Before the commit no reader sees the snapshot; after it, no one changes it.
"""

from __future__ import annotations

import json
import logging
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
"""Files that wait to be sealed, each open: meanwhile the next table may begin."""
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
        """Begin of its name."""
        if self.columns is None:
            return f"{self.kind}.{self.table}"
        return f"{self.kind}.{self.table}.columns-{self.columns.begin}-{self.columns.end}"


class SnapshotWriter:
    """One rank's part of one snapshot. Used by one thread.

    Args:
        url: of the snapshot itself, as ``…/step-000000123``; all ranks give the same.
        step: the number of the step whose state this is.
        rank: that writes this part.
        world_size: ranks that write parts.
        base: the URL of the snapshot in the same folder that this is a delta over; None: a full
            snapshot.
        deadline_seconds: how long `commit` waits for the parts of other ranks, and they for it.
        token: names this attempt to save; all its ranks give the same one, and no other attempt
            does. None draws one, which only a single rank can.
        options: how files are cut, and where threads may pause.

    Raises:
        InvalidArgumentError: any of these is out of range.
        SnapshotError: the snapshot exists already, or the base is none.
        SnapshotIOError: the file system failed.
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
        self._state = "writing"
        with writing(self.url, "the staging folder"):
            if self._place.exists(self._name):
                raise SnapshotError(
                    f"snapshot {self.url} exists already, and a snapshot is never written twice; "
                    "choose another name, or remove it first",
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
        """Writes this rank's rows of a table, in bounded memory; or, called for each of some blocks of
        columns, the rows of these.

        Args:
            table: the same on all ranks, and for all its blocks.
            chunks: rows of unique keys, in any order; their arrays may be used again by the
                iterator. Scores are read where `table.has_scores`.
            erased: of a delta: keys that had rows in the base and have none now.
            columns: that rows of `chunks` have; None: all.

        Raises:
            InvalidArgumentError: the table was written already, chunks do not fit it, or a full
                snapshot is to have erased keys.
            SnapshotError: another rank failed, with its cause.
            SnapshotIOError: the file system failed.
        """
        self._check_unwritten(table, columns)
        self._written.add((table.name, columns))
        known = self._tables.get(table.name)
        if known is None or table.has_scores:  # a block without a storage does not know of scores
            self._tables[table.name] = TableEntry.of(table)
        self._write_rows(table, chunks, self._options, columns)
        self._write_erased(table, erased, columns)

    def write_ahead(
        self,
        table: TableDescription,
        chunks: Iterable[ScanChunk],
        columns: ColumnBlock | None = None,
    ) -> None:
        """Writes some rows of a table before its turn, into files of their own: of all partitions,
        each segment of one range.

        It may be called while `write_table` takes the rows of another table. `write_table` must
        follow, with the other rows.

        Args:
            table: the same on all ranks.
            chunks: as for `write_table`.
            columns: as for `write_table`.

        Raises:
            InvalidArgumentError: the table was written already, or chunks do not fit it.
            SnapshotError: another rank failed, with its cause.
            SnapshotIOError: the file system failed.
        """
        self._check_unwritten(table, columns)
        options = replace(
            self._options, buffer_bytes=_AHEAD_BUFFER_BYTES, small_bytes=_AHEAD_SMALL_BYTES
        )
        self._write_rows(table, chunks, options, columns, is_ahead=True)

    def start_threads(self) -> None:
        """Starts the threads that write and seal: none may be while the interpreter ends. Without it
        the first file does, or large table."""
        self._threads.start()
        self._row_thread.start()

    def check_other_ranks(self) -> None:
        """Looks, at most once a second, whether the attempt has failed on another rank.

        Raises:
            SnapshotError: it has, with its cause.
            SnapshotIOError: the file system failed.
        """
        self._attempt.poll()

    def fail(self, reason: BaseException) -> None:
        """Lets the thread that writes, or waits for other ranks, raise `reason` soon; from another
        thread."""
        self._attempt.abort_reason = reason

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
                f"snapshot {self.url}: table {table.name!r} was written already; write each once",
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
            router.finish()
        finally:
            router.close()

    def write_state(
        self, name: str, values: JSON = None, arrays: Mapping[str, npt.ArrayLike] | None = None
    ) -> None:
        """Writes state other than tables: step counts, counters, random state, model parameters.

        Args:
            name: unique within the rank; letters, digits, ``_``, ``.``, ``-``.
            values: JSON, infinity and NaN included.
            arrays: name → array of booleans, integers or floats.

        Raises:
            InvalidArgumentError: a name given twice, or something that cannot be saved exactly.
            SnapshotIOError: the file system failed.
        """
        self._check_state("writing")
        check_state_name(name)
        stored = self._new_name(f"state.{name}.{self.rank:05d}.safetensors")
        given = {key: np.asarray(value) for key, value in (arrays or {}).items()}
        try:
            text = json.dumps(values)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(
                f"state {name!r}: values must be JSON ({error}); pass arrays as arrays"
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
        """Returns when this rank's part is durable and listed in the staging folder.

        Raises:
            SnapshotIOError: the file system failed.
        """
        self._check_state("writing")
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
            # The part may be there all the same, and rank 0 be committing it.
            if self._exists(name, len(text)):
                self._state = "finished"
            raise
        self._state = "finished"

    def _exists(self, name: str, most: int) -> bool:
        """Whether a file is in the staging folder; True where that cannot be found out."""
        try:
            with writing(self.url, name):
                return self._folder.read(name, most) is not None
        except (SnapshotIOError, ValueError):
            return True

    def commit(self) -> Snapshot:
        """Makes the snapshot visible, once all ranks have finished. Only rank 0 calls it.

        Raises:
            DeadlineError: a rank's part did not come in time.
            SnapshotError: another rank failed, with its cause; parts do not go together, or another
                attempt was committed meanwhile.
            SnapshotIOError: the file system failed.
        """
        self._check_state("finished")
        if self.rank:
            raise InvalidArgumentError(
                f"snapshot {self.url}: rank {self.rank} called commit; only rank 0 does"
            )
        manifest = encode_text(self._attempt.await_manifest(self._deadline_seconds))
        if len(manifest) > MANIFEST_BYTES:
            raise SnapshotError(
                f"snapshot {self.url}: its manifest has {len(manifest)} bytes, at most "
                f"{MANIFEST_BYTES} are read; save fewer rows into one snapshot"
            )
        with writing(self.url, "the manifest"):
            self._folder.discard([part_name(rank) for rank in range(self.world_size)])
            try:
                self._place.publish(self._folder, self._name, manifest)
            except FileExistsError as error:
                raise SnapshotError(
                    f"snapshot {self.url} was committed by another attempt meanwhile, and a "
                    "snapshot is never written twice; this attempt is given up",
                    url=self.url,
                ) from error
        self._state = "committed"
        self._release()
        return open_snapshot(self.url)

    def await_commit(self) -> None:
        """Returns when rank 0 has committed the snapshot. All other ranks may call it.

        Raises:
            DeadlineError: it did not within the deadline.
            SnapshotError: rank 0 has given the attempt up, with the cause.
            SnapshotIOError: the file system failed.
        """
        self._check_state("finished")
        if not self.rank:
            raise InvalidArgumentError(
                f"snapshot {self.url}: rank 0 called await_commit; it calls commit"
            )
        self._attempt.await_commit(self._entries, self._deadline_seconds)
        self._state = "committed"
        self._release()

    def abandon(self, cause: BaseException | None = None) -> None:
        """Gives the attempt up, and removes what it staged. A second call does nothing.

        A rank other than 0 that has finished leaves its files: rank 0 may just be committing.
        `retain` removes left-over files.

        Args:
            cause: what other ranks are told, so that they give up soon and for the same cause; None:
                they know already.

        Raises:
            SnapshotIOError: the file system failed.
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
                f"snapshot {self.url}: this part is {self._state}, the call needs it {expected}; "
                "call finish once, after all tables and state, and then commit on rank 0"
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
                        f"snapshot {self.url}: table {table.name!r} has erased keys, but a full "
                        "snapshot has no base that could hold them; name the base",
                        table=table.name,
                    )
                router.add(keys, None, None)
            router.finish()
        finally:
            router.close()

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
                f"snapshot {self.url}: {name} was written already; give each state a name of its own"
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
        """Waits until at most `most` files are being sealed."""
        while len(self._sealing) > most:
            self.check_other_ranks()
            if wait(self._sealing[:1], POLL_SECONDS).done:
                self._entries.append(self._sealing.pop(0).result())
