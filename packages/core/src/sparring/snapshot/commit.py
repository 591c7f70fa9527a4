"""Commit of one attempt to save by all of its ranks, through small files in its staging folder.

A successful attempt:

    all ranks      write a part file, which lists their data files with the hashes
    rank 0         merges all parts into one manifest, which commits the snapshot
    other ranks    check that the manifest contains their files

A failed attempt:

    first failed rank   removes its data files, and writes a mark file with the cause
    rank 0              reads the mark, fails with the same cause, and writes its own mark
    other ranks         read the mark of rank 0, fail with the same cause, and write their own marks
    rank 0              removes the folder when all ranks have written a mark, or after the grace period.
                        If the file system cannot report that a folder was removed, the mark of rank 0
                        remains for late ranks

As a result, every rank fails soon after the first one and reports the same cause, and no rank waits for a
part that is never written. A rank that has finished its part writes a mark only after rank 0 has written
one, because until then a commit may be in progress. Ranks do not use their collective for this, because
training steps use it at the same time; see docs/decisions/ranks-that-agree.md.
"""

from __future__ import annotations

import json
import logging
import math
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sparring.contracts.storage.results import is_whole
from sparring.errors import DeadlineError, InvalidArgumentError, SnapshotError, SnapshotIOError
from sparring.snapshot.format.manifest import (
    MANIFEST_BYTES,
    Base,
    FileEntry,
    Manifest,
    Part,
    TableEntry,
    decode_text,
)
from sparring.snapshot.place.place import SnapshotRoot, WriteFolder, writing
from sparring.snapshot.reader import locate, open_snapshot

__all__ = [
    "POLL_SECONDS",
    "Attempt",
    "read_base_entry",
    "check_name",
    "check_step_and_rank",
    "check_state_name",
    "resolve_token",
    "part_name",
]

GRACE_SECONDS = 5.0
"""How long rank 0 keeps the folder of a failed attempt, so that other ranks can read the cause."""

POLL_SECONDS = 1.0
"""Interval at which a rank that is still writing checks for failures of other ranks."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,199}\Z")
_TOKEN = re.compile(r"[A-Za-z0-9_\-]{1,64}\Z")
_MIN_POLL_SECONDS = 0.01
_MARK_BYTES = 1 << 16
_MAX_CAUSE_CHARACTERS = 4096

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Attempt:
    """One rank's view of an attempt to save.

    Args:
        url: URL of the snapshot.
        name: Name of the snapshot in `place`.
        place: Folder that will contain the snapshot.
        folder: Staging folder of the attempt.
        rank: This rank.
        world_size, token, step, base: As for `SnapshotWriter`; the same on all ranks.
    """

    url: str
    name: str
    place: SnapshotRoot
    folder: WriteFolder
    rank: int
    world_size: int
    token: str
    step: int
    base: Base | None
    unread_mark: str | None = None
    """Mark file of rank 0, if rank 0 has failed and not all other ranks have read it."""
    abort_reason: BaseException | None = None
    """Exception to raise on this rank, set by another thread; None to continue."""
    waits_until: float = math.inf
    """Time of `time.monotonic` at which waits for other ranks end, in addition to their deadline; set by
    another thread."""
    _first: tuple[int, str] | None = None
    _next_poll: float = 0.0
    _watched: range = field(init=False)

    def __post_init__(self) -> None:
        self._watched = range(1) if self.rank else range(1, self.world_size)

    def check(self) -> None:
        """Checks whether the attempt has failed on another rank or was aborted.

        Raises:
            BaseException: The value of `abort_reason`, if it is set.
            SnapshotError: Another rank failed; the message contains the first cause.
            SnapshotIOError: The file system failed.
        """
        if self.abort_reason is not None:
            raise self.abort_reason
        for rank in self._watched:
            self._first = self._read_mark(rank)
            if self._first is not None:
                first, cause = self._first
                raise SnapshotError(
                    f"snapshot {self.url}: rank {first} failed, and nothing was committed: {cause}",
                    url=self.url,
                    ranks=(first,),
                )

    def poll(self) -> None:
        """Calls `check` at most once per second, on a rank whose part is not finished."""
        now = time.monotonic()
        if self._watched and now >= self._next_poll:
            self._next_poll = now + POLL_SECONDS
            self.check()
            if self.rank and self.folder.is_gone():
                raise self._abandoned_error()

    def report_failure(
        self, cause: BaseException, own_files: Iterable[str], *, was_finished: bool
    ) -> bool:
        """Writes the mark of this failed rank, after removing its data files in case the disk is full.

        Returns:
            Whether the other ranks can read the cause. Otherwise they detect that the folder was removed.
        """
        if self.world_size == 1:
            return False
        try:
            with writing(self.url, "the mark of a rank that failed"):
                if self.folder.is_gone() or self.place.is_committed(self.name):
                    return False
                if self.rank and was_finished and self._first is None:
                    return False
                first, text = self._first or (self.rank, f"{type(cause).__name__}: {cause}")
                mark = json.dumps({"rank": first, "cause": text[:_MAX_CAUSE_CHARACTERS]})
                self.folder.discard([*own_files, part_name(self.rank)])
                self.folder.put(_mark_name(self.rank), mark.encode())
                if not self.rank:
                    self._await_marks()
        except SnapshotIOError as error:
            _log.warning("%s; therefore other ranks may not report the cause of the failure", error)
            return False
        return True

    def _await_marks(self) -> None:
        """Waits, on failed rank 0, for the marks of all other ranks or the end of the grace period."""
        waiting = set(self._watched)
        for is_late in _polls(GRACE_SECONDS):
            waiting = {rank for rank in waiting if self._read_mark(rank) is None}
            if not waiting or is_late:
                break
        self.unread_mark = _mark_name(self.rank) if waiting else None

    def await_manifest(self, deadline_seconds: float) -> Manifest:
        """Waits on rank 0 for the parts of all ranks, and returns their merged manifest.

        Raises:
            DeadlineError: A part was not written before the deadline.
            SnapshotError: A rank failed, a part belongs to another attempt, or ranks describe a table
                differently.
            SnapshotIOError: The file system failed.
        """
        parts: dict[int, Part] = {}
        for is_late in self._polls(deadline_seconds, longest=0.1):
            self.check()
            for rank in range(self.world_size):
                part = parts.get(rank) or self._read_part(rank)
                if part is not None:
                    parts[rank] = part
            missing = [rank for rank in range(self.world_size) if rank not in parts]
            if not missing:
                break
            if self.folder.is_gone():
                raise SnapshotError(
                    f"snapshot {self.url}: another rank failed and removed the staging folder before "
                    f"ranks {missing} wrote their parts; nothing was committed. See the errors of "
                    "these ranks for the cause",
                    url=self.url,
                    ranks=tuple(missing),
                )
            if is_late:
                raise DeadlineError(
                    f"snapshot {self.url}: ranks {missing} did not write their parts within "
                    f"{self._limit(deadline_seconds)}; nothing was committed. Check these ranks, or "
                    "increase deadline_seconds",
                    ranks=tuple(missing),
                )
        return self._merge([parts[rank] for rank in sorted(parts)])

    def _read_part(self, rank: int) -> Part | None:
        name = part_name(rank)
        with writing(self.url, name):
            try:
                text = self.folder.read(name, MANIFEST_BYTES)
                part = None if text is None else decode_text(text, Part)[0]
            except ValueError as error:
                raise SnapshotError(
                    f"snapshot {self.url}: reading the part {name} failed: {error}; nothing was "
                    "committed. Save again",
                    file=name,
                ) from error
        if part is None:
            return None
        found = (part.token, part.rank, part.step, part.world_size, part.base)
        asked = (self.token, rank, self.step, self.world_size, self.base)
        if found != asked:
            raise SnapshotError(
                f"snapshot {self.url}: {name} has (token, rank, step, world_size, base) {found}, "
                f"expected {asked}; pass the same values on all ranks of an attempt"
            )
        return part

    def _merge(self, parts: list[Part]) -> Manifest:
        tables: dict[str, TableEntry] = {}
        scored = {table.name for part in parts for table in part.tables if table.has_scores}
        for part in parts:
            having_rows = {file.table for file in part.files if file.kind == "rows"}
            for table in part.tables:
                if table.name in scored and table.name not in having_rows:
                    # A rank without rows of the table has no storage that would report its scores.
                    table = table.model_copy(update={"has_scores": True})  # noqa: PLW2901
                known = tables.setdefault(table.name, table)
                if known != table:
                    raise SnapshotError(
                        f"snapshot {self.url}: rank {part.rank} describes table {table.name!r} as "
                        f"{table.description}, another rank as {known.description}; nothing was "
                        "committed. Declare the table identically on all ranks"
                    )
        return Manifest(
            step=self.step,
            world_size=self.world_size,
            base=self.base,
            tables=list(tables.values()),
            files=[file for part in parts for file in part.files],
        )

    def await_commit(self, entries: Iterable[FileEntry], deadline_seconds: float) -> None:
        """Waits on a rank other than 0, whose part is finished, until rank 0 has committed the snapshot.

        Raises:
            SnapshotError: Rank 0 has abandoned the attempt.
            DeadlineError: Rank 0 has neither committed nor abandoned it before the deadline.
            SnapshotIOError: The file system failed.
        """
        mine = {(each.name, each.hash) for each in entries}
        for is_late in self._polls(deadline_seconds):
            self.check()
            # In this order, because a commit renames the folder: if it is gone, the rename has happened.
            with writing(self.url, "the staging folder"):
                is_gone = self.folder.is_gone()
                is_committed = self.place.is_committed(self.name)
            if is_committed and mine <= {
                (each.name, each.hash) for each in open_snapshot(self.url).files()
            }:
                return
            if is_gone or is_committed:
                raise self._abandoned_error()
            if is_late:
                raise DeadlineError(
                    f"snapshot {self.url}: rank 0 did not commit it within "
                    f"{self._limit(deadline_seconds)} after this rank finished its part; check rank 0, "
                    "or increase deadline_seconds",
                    ranks=(0,),
                )

    def _polls(self, seconds: float, longest: float = 0.25) -> Iterator[bool]:
        """Like the function `_polls`, also ends at `waits_until`."""
        for is_late in _polls(seconds, longest):
            yield is_late or time.monotonic() > self.waits_until

    def _limit(self, deadline_seconds: float) -> str:
        """Describes the end of a wait."""
        if self.waits_until < math.inf:
            return "the time that remained after this rank had failed"
        return f"{deadline_seconds} s"

    def _abandoned_error(self) -> SnapshotError:
        return SnapshotError(
            f"snapshot {self.url}: rank 0 has abandoned this attempt; see the error of rank 0 for the "
            "cause",
            url=self.url,
            ranks=(0,),
        )

    def _read_mark(self, rank: int) -> tuple[int, str] | None:
        """Returns the rank that failed first and its cause, from the mark of `rank`."""
        with writing(self.url, _mark_name(rank)):
            try:
                text = self.folder.read(_mark_name(rank), _MARK_BYTES)
                if text is None:
                    return None
                mark = json.loads(text)
                return int(mark["rank"]), str(mark["cause"])
            except (ValueError, KeyError, TypeError) as error:
                return rank, f"see the error of that rank, because its mark is unreadable ({error})"


def _polls(seconds: float, longest: float = 0.25) -> Iterator[bool]:
    """Yields whether `seconds` have passed, endlessly and at growing intervals of up to `longest`."""
    end, pause = time.monotonic() + seconds, _MIN_POLL_SECONDS
    while True:
        yield time.monotonic() > end
        time.sleep(pause)
        pause = min(2 * pause, longest)


def part_name(rank: int) -> str:
    """Returns the name of a rank's part file in the staging folder."""
    return f"part-{rank:05d}.json"


def _mark_name(rank: int) -> str:
    return f"failed-{rank:05d}.json"


def check_name(url: str, name: str) -> None:
    """Checks the name of a snapshot.

    Raises:
        InvalidArgumentError: The name contains a character that is not allowed.
    """
    if not _NAME.match(name):
        raise InvalidArgumentError(
            f"snapshot {url}: its name {name!r} must start with a letter or underscore and contain "
            "only letters, digits, '_', '.', '-'; choose a name such as step-000000123"
        )


def check_state_name(name: object) -> None:
    """Checks the name of state.

    Raises:
        InvalidArgumentError: The name contains a character that is not allowed.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidArgumentError(
            f"state {name!r}: its name must start with a letter or underscore and contain only "
            "letters, digits, '_', '.', '-', at most 200 characters"
        )


def check_step_and_rank(step: int, rank: int, world_size: int) -> None:
    """Checks a step, a rank and a world size.

    Raises:
        InvalidArgumentError: One of them is not an integer or is out of range.
    """
    if not is_whole(step) or not 0 <= step < 2**62:
        raise InvalidArgumentError(
            f"snapshot: step must be an integer of at least 0, found {step!r}; pass the number of "
            "applied steps"
        )
    if not is_whole(world_size) or world_size < 1:
        raise InvalidArgumentError(
            f"snapshot: world_size must be an integer of at least 1, found {world_size!r}; pass the "
            "number of ranks that write parts"
        )
    if not is_whole(rank) or not 0 <= rank < world_size:
        raise InvalidArgumentError(
            f"snapshot: rank must be from 0 to {world_size - 1}, found {rank!r}; pass a rank of this job"
        )


def resolve_token(token: str | None, world_size: int) -> str:
    """Checks a token and returns it. Generates one if a single rank passes None.

    Raises:
        InvalidArgumentError: The token is malformed, or None with several ranks.
    """
    if token is None and world_size == 1:
        return secrets.token_hex(8)
    if not isinstance(token, str) or not _TOKEN.match(token):
        raise InvalidArgumentError(
            f"token must be 1 to 64 letters, digits, '_' or '-', the same on all {world_size} ranks "
            f"of an attempt, found {token!r}; generate one on rank 0 and send it to the others"
        )
    return token


def read_base_entry(root: str, base: str | None) -> Base | None:
    """Returns the manifest entry for the base of a delta in the folder `root`.

    Raises:
        InvalidArgumentError: The base is in another folder.
    """
    if base is None:
        return None
    place, name = locate(base)
    if place.url != root:
        raise InvalidArgumentError(
            f"base {base} must be in the folder of its delta, {root}; copy it to that folder, or save "
            "a full snapshot"
        )
    return Base(name=name, hash=open_snapshot(base).manifest_hash)
