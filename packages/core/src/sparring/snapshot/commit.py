"""How the ranks of one attempt to save commit it, or learn why not, by small files in its staging folder.

    all ranks      put their part there: the files that they wrote, with their hashes
    rank 0         puts all parts into one manifest, which commits
    the others     find their files in the manifest

    a rank fails       removes its data files, and leaves a mark with the cause
    rank 0 sees it     fails for the same cause, and leaves a mark of its own
    all others         see that of rank 0, fail for the same cause, and leave theirs
    rank 0             removes the folder once all have left one, or the grace is over. Where no rank
                       sees that a folder is gone, its mark stays for those that are late

So every rank ends soon after the first that fails, each knows why, and no rank waits for a part that
never comes. A rank that has finished leaves a mark only where rank 0 has left one: until then a
commit may be under way. Ranks do not tell each other by their collective, which steps use meanwhile:
docs/decisions/ranks-that-agree.md.
"""

from __future__ import annotations

import json
import logging
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
"""How long rank 0 keeps the folder of an attempt that failed, for others to read why."""

POLL_SECONDS = 1.0
"""How often a rank that has other things to do looks."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,199}\Z")
_TOKEN = re.compile(r"[A-Za-z0-9_\-]{1,64}\Z")
_MIN_POLL_SECONDS = 0.01
_MARK_BYTES = 1 << 16
_MAX_CAUSE_CHARACTERS = 4096

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Attempt:
    """One rank's side of an attempt to save.

    Args:
        url: of the snapshot.
        name: of the snapshot in its place.
        place: where it is to be.
        folder: the staging folder.
        rank: this one.
        world_size, token, step, base: the same on all ranks.
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
    """On rank 0, which has failed: its mark, if others have not read it."""
    abort_reason: BaseException | None = None
    """Reason why this rank is to give it up, from another thread; None: it is not."""
    _first: tuple[int, str] | None = None
    _next_poll: float = 0.0
    _watched: range = field(init=False)

    def __post_init__(self) -> None:
        self._watched = range(1) if self.rank else range(1, self.world_size)

    def check(self) -> None:
        """Looks whether the attempt has failed elsewhere.

        Raises:
            BaseException: `abort_reason`.
            SnapshotError: it has, with the first cause.
            SnapshotIOError: the file system failed.
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
        """As `check`, at most once a second, by a rank whose part is not finished."""
        now = time.monotonic()
        if self._watched and now >= self._next_poll:
            self._next_poll = now + POLL_SECONDS
            self.check()
            if self.rank and self.folder.is_gone():
                raise self._abandoned_error()

    def report_failure(
        self, cause: BaseException, own_files: Iterable[str], *, was_finished: bool
    ) -> bool:
        """Leaves a mark: this rank has failed. Its files go first, as the disk may be full.

        Returns:
            Whether the other ranks get the cause; otherwise they see that the folder is gone.
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
            _log.warning("%s; other ranks may not be told of the cause", error)
            return False
        return True

    def _await_marks(self) -> None:
        """On rank 0, which has failed: returns when all others have read of it, or soon."""
        waiting = set(self._watched)
        for is_late in _polls(GRACE_SECONDS):
            waiting = {rank for rank in waiting if self._read_mark(rank) is None}
            if not waiting or is_late:
                break
        self.unread_mark = _mark_name(self.rank) if waiting else None

    def await_manifest(self, deadline_seconds: float) -> Manifest:
        """On rank 0: one manifest of the parts of all ranks, once they are there.

        Raises:
            DeadlineError: one did not come in time.
            SnapshotError: a rank has failed, a part is of another attempt, or ranks describe a table
                differently.
            SnapshotIOError: the file system failed.
        """
        parts: dict[int, Part] = {}
        for is_late in _polls(deadline_seconds, longest=0.1):
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
                    f"snapshot {self.url}: another rank failed and removed what was staged, before "
                    f"the parts of ranks {missing} had come; nothing was committed. Their errors "
                    "tell why",
                    url=self.url,
                    ranks=tuple(missing),
                )
            if is_late:
                raise DeadlineError(
                    f"snapshot {self.url}: the parts of ranks {missing} did not come within "
                    f"{deadline_seconds} s; nothing was committed. See why they failed, or allow "
                    "more time",
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
                    f"snapshot {self.url}: {name} cannot be read: {error}; nothing was committed",
                    file=name,
                ) from error
        if part is None:
            return None
        found = (part.token, part.rank, part.step, part.world_size, part.base)
        asked = (self.token, rank, self.step, self.world_size, self.base)
        if found != asked:
            raise SnapshotError(
                f"snapshot {self.url}: {name} is of (token, rank, step, world_size, base) {found}, "
                f"expected {asked}; ranks of one attempt must give the same"
            )
        return part

    def _merge(self, parts: list[Part]) -> Manifest:
        tables: dict[str, TableEntry] = {}
        scored = {table.name for part in parts for table in part.tables if table.has_scores}
        for part in parts:
            having_rows = {file.table for file in part.files if file.kind == "rows"}
            for table in part.tables:
                if table.name in scored and table.name not in having_rows:
                    # A rank that keeps no row of it has opened no storage, which would have told.
                    table = table.model_copy(update={"has_scores": True})  # noqa: PLW2901
                known = tables.setdefault(table.name, table)
                if known != table:
                    raise SnapshotError(
                        f"snapshot {self.url}: rank {part.rank} describes table {table.name!r} as "
                        f"{table.description}, another rank as {known.description}; nothing was "
                        "committed"
                    )
        return Manifest(
            step=self.step,
            world_size=self.world_size,
            base=self.base,
            tables=list(tables.values()),
            files=[file for part in parts for file in part.files],
        )

    def await_commit(self, entries: Iterable[FileEntry], deadline_seconds: float) -> None:
        """On another rank, which has done its part: returns when rank 0 has committed it.

        Raises:
            SnapshotError: rank 0 has given the attempt up.
            DeadlineError: it has done neither in time.
            SnapshotIOError: the file system failed.
        """
        mine = {(each.name, each.hash) for each in entries}
        for is_late in _polls(deadline_seconds):
            self.check()
            # In this order: a folder that is gone was renamed before.
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
                    f"snapshot {self.url}: rank 0 has not committed it within "
                    f"{deadline_seconds} s after this rank had done its part; see what holds it "
                    "up, or allow more time",
                    ranks=(0,),
                )

    def _abandoned_error(self) -> SnapshotError:
        return SnapshotError(
            f"snapshot {self.url}: rank 0 has given this attempt up; its own error tells why",
            url=self.url,
            ranks=(0,),
        )

    def _read_mark(self, rank: int) -> tuple[int, str] | None:
        """The rank that failed first, and why, as `rank` has it."""
        with writing(self.url, _mark_name(rank)):
            try:
                text = self.folder.read(_mark_name(rank), _MARK_BYTES)
                if text is None:
                    return None
                mark = json.loads(text)
                return int(mark["rank"]), str(mark["cause"])
            except (ValueError, KeyError, TypeError) as error:
                return rank, f"its own error tells why ({error})"


def _polls(seconds: float, longest: float = 0.25) -> Iterator[bool]:
    """Yields ever more rarely, without end: whether `seconds` have passed."""
    end, pause = time.monotonic() + seconds, _MIN_POLL_SECONDS
    while True:
        yield time.monotonic() > end
        time.sleep(pause)
        pause = min(2 * pause, longest)


def part_name(rank: int) -> str:
    """The file of a rank's part in the staging folder."""
    return f"part-{rank:05d}.json"


def _mark_name(rank: int) -> str:
    return f"failed-{rank:05d}.json"


def check_name(url: str, name: str) -> None:
    """Refuses a name that a snapshot cannot have.

    Raises:
        InvalidArgumentError: saying how to name it.
    """
    if not _NAME.match(name):
        raise InvalidArgumentError(
            f"snapshot {url}: its name {name!r} must start with a letter or underscore "
            "and hold only letters, digits, '_', '.', '-'; name it like step-000000123"
        )


def check_state_name(name: object) -> None:
    """Refuses a name that state cannot have.

    Raises:
        InvalidArgumentError: saying what a name may hold.
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidArgumentError(
            f"state {name!r}: its name must start with a letter or underscore and hold only "
            "letters, digits, '_', '.', '-', at most 200 of them"
        )


def check_step_and_rank(step: int, rank: int, world_size: int) -> None:
    """Refuses a step or a rank that cannot be.

    Raises:
        InvalidArgumentError: naming which, and what was found.
    """
    if not is_whole(step) or not 0 <= step < 2**62:
        raise InvalidArgumentError(f"step must be a whole number from 0, found {step!r}")
    if not is_whole(world_size) or world_size < 1:
        raise InvalidArgumentError(
            f"world_size must be a whole number from 1, found {world_size!r}"
        )
    if not is_whole(rank) or not 0 <= rank < world_size:
        raise InvalidArgumentError(f"rank must be from 0 to {world_size - 1}, found {rank!r}")


def resolve_token(token: str | None, world_size: int) -> str:
    """The token; one is drawn where a single rank gives none.

    Raises:
        InvalidArgumentError: it is no token, or missing on several ranks.
    """
    if token is None and world_size == 1:
        return secrets.token_hex(8)
    if not isinstance(token, str) or not _TOKEN.match(token):
        raise InvalidArgumentError(
            f"token must be 1 to 64 letters, digits, '_' or '-', the same on all {world_size} ranks "
            f"of an attempt, found {token!r}; let rank 0 draw one and send it to the others"
        )
    return token


def read_base_entry(root: str, base: str | None) -> Base | None:
    """Returns the manifest entry of the base of a delta in `root`.

    Raises:
        InvalidArgumentError: the base is in another folder.
    """
    if base is None:
        return None
    place, name = locate(base)
    if place.url != root:
        raise InvalidArgumentError(
            f"base {base} must be in the folder of its delta, {root}; copy it there, or save a full "
            "snapshot"
        )
    return Base(name=name, hash=open_snapshot(base).manifest_hash)
