"""One attempt to save: checks of its arguments, the parts of all ranks, and the manifest of them."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass

from sparring.contracts.storage_arguments import is_whole
from sparring.errors import DeadlineError, InvalidArgumentError, SnapshotError
from sparring.snapshot.format.manifest import (
    MANIFEST_BYTES,
    Base,
    FileEntry,
    Manifest,
    Part,
    TableEntry,
    decode_text,
)
from sparring.snapshot.place.place import Place, WriteFolder, writing
from sparring.snapshot.reader import locate, open_snapshot

__all__ = [
    "Attempt",
    "GRACE_SECONDS",
    "LOOK_SECONDS",
    "Outcome",
    "await_parts",
    "base_entry",
    "check_name",
    "check_place",
    "check_state_name",
    "checked_token",
    "merged",
    "part_name",
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,199}\Z")
_TOKEN = re.compile(r"[A-Za-z0-9_\-]{1,64}\Z")
_SHORTEST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.01, 0.1


@dataclass(frozen=True, slots=True)
class Attempt:
    """The facts that all parts of one attempt to save share."""

    url: str
    token: str
    step: int
    world_size: int
    base: Base | None


def part_name(rank: int) -> str:
    """The file of a rank's part in the staging folder."""
    return f"part-{rank:05d}.json"


def await_parts(
    attempt: Attempt, folder: WriteFolder, outcome: Outcome, deadline_seconds: float
) -> list[Part]:
    """The parts of all ranks, in their order.

    Raises:
        DeadlineError: one did not come in time.
        SnapshotError: a rank has failed, or a part is of another attempt.
        SnapshotIOError: the file system failed.
    """
    end = time.monotonic() + deadline_seconds
    every = range(attempt.world_size)
    parts: dict[int, Part] = {}
    poll_seconds = _SHORTEST_POLL_SECONDS
    while True:
        outcome.check()
        for rank in every:
            part = parts.get(rank) or _read_part(attempt, folder, rank)
            if part is not None:
                parts[rank] = part
        missing = [rank for rank in every if rank not in parts]
        if not missing:
            return [parts[rank] for rank in every]
        if folder.is_gone():
            raise SnapshotError(
                f"snapshot {attempt.url}: another rank failed and removed what was staged, before "
                f"the parts of ranks {missing} had come; nothing was committed. Their errors tell "
                "why",
                url=attempt.url,
                ranks=tuple(missing),
            )
        if time.monotonic() > end:
            raise DeadlineError(
                f"snapshot {attempt.url}: the parts of ranks {missing} did not come within "
                f"{deadline_seconds} s; nothing was committed. See why they failed, or allow more "
                "time",
                ranks=tuple(missing),
            )
        time.sleep(poll_seconds)
        poll_seconds = min(2 * poll_seconds, _LONGEST_POLL_SECONDS)


def _read_part(attempt: Attempt, folder: WriteFolder, rank: int) -> Part | None:
    name = part_name(rank)
    with writing(attempt.url, name):
        try:
            text = folder.read(name, MANIFEST_BYTES)
            part = None if text is None else decode_text(text, Part)[0]
        except ValueError as error:
            raise SnapshotError(
                f"snapshot {attempt.url}: {name} cannot be read: {error}; nothing was committed",
                file=name,
            ) from error
    if part is None:
        return None
    found = (part.token, part.rank, part.step, part.world_size, part.base)
    asked = (attempt.token, rank, attempt.step, attempt.world_size, attempt.base)
    if found != asked:
        raise SnapshotError(
            f"snapshot {attempt.url}: {name} is of (token, rank, step, world_size, base) {found}, "
            f"expected {asked}; ranks of one attempt must give the same"
        )
    return part


def merged(attempt: Attempt, parts: list[Part]) -> Manifest:
    """One manifest of all parts.

    Raises:
        SnapshotError: ranks describe a table differently.
    """
    tables: dict[str, TableEntry] = {}
    for part in parts:
        for table in part.tables:
            known = tables.setdefault(table.name, table)
            if known != table:
                raise SnapshotError(
                    f"snapshot {attempt.url}: rank {part.rank} describes table {table.name!r} as "
                    f"{table.description}, another rank as {known.description}; nothing was "
                    "committed"
                )
    return Manifest(
        step=attempt.step,
        world_size=attempt.world_size,
        base=attempt.base,
        tables=list(tables.values()),
        files=[file for part in parts for file in part.files],
    )


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


def check_place(step: int, rank: int, world_size: int) -> None:
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


def checked_token(token: str | None, world_size: int) -> str:
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


def base_entry(root: str, base: str | None) -> Base | None:
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


GRACE_SECONDS = 5.0
"""How long rank 0 keeps the folder of an attempt that failed, for others to read why."""

LOOK_SECONDS = 1.0
"""How often a rank that has other things to do looks."""

_SHORTEST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.01, 0.25
_MARK_BYTES = 1 << 16
_MOST_CHARACTERS = 4096

_log = logging.getLogger(__name__)


class Outcome:
    """Outcome of an attempt on one rank, and the outcomes that others have left.

    Args:
        url: of the snapshot.
        name: of the snapshot in its place.
        place: where it is to be.
        folder: the staging folder.
        rank: this one.
        world_size: ranks of the attempt.
    """

    def __init__(
        self, url: str, name: str, place: Place, folder: WriteFolder, rank: int, world_size: int
    ) -> None:
        self._url, self._name = url, name
        self._place, self._folder = place, folder
        self._rank, self._world_size = rank, world_size
        self._watched = [0] if rank else list(range(1, world_size))
        self._next_look = 0.0
        self._first: tuple[int, str] | None = None
        self.last_word: str | None = None
        """On rank 0, which has failed: its mark, if others have not read it."""

    @property
    def has_failed(self) -> bool:
        """Whether a `check` has found that it has, elsewhere."""
        return self._first is not None

    def check(self) -> None:
        """Looks whether the attempt has failed elsewhere.

        Raises:
            SnapshotError: it has, with the first cause.
            SnapshotIOError: the file system failed.
        """
        for rank in self._watched:
            self._first = self._read(rank)
            if self._first is not None:
                first, cause = self._first
                raise SnapshotError(
                    f"snapshot {self._url}: rank {first} failed, and nothing was committed: {cause}",
                    url=self._url,
                    ranks=(first,),
                )

    def check_now_and_then(self) -> None:
        """As `check`, at most once a second, by a rank whose part is not finished."""
        now = time.monotonic()
        if self._watched and now >= self._next_look:
            self._next_look = now + LOOK_SECONDS
            self.check()
            if self._rank and self._folder.is_gone():
                raise self._given_up()

    def tell(self, cause: BaseException, own_files: Iterable[str]) -> None:
        """Leaves a mark: this rank has failed. Its files go first, as the disk may be full."""
        first, text = self._first or (self._rank, f"{type(cause).__name__}: {cause}")
        mark = json.dumps({"rank": first, "cause": text[:_MOST_CHARACTERS]})
        with writing(self._url, _mark_name(self._rank)):
            self._folder.discard(own_files)
            self._folder.put(_mark_name(self._rank), mark.encode())

    def await_marks(self) -> None:
        """On rank 0, which has failed: returns when all others have read of it, or soon."""
        end = time.monotonic() + GRACE_SECONDS
        waiting, poll_seconds = set(self._watched), _SHORTEST_POLL_SECONDS
        while waiting and time.monotonic() < end:
            waiting = {rank for rank in waiting if self._read(rank) is None}
            if waiting:
                time.sleep(poll_seconds)
                poll_seconds = min(2 * poll_seconds, _LONGEST_POLL_SECONDS)
        self.last_word = _mark_name(self._rank) if waiting else None

    def await_commit(self, entries: Iterable[FileEntry], deadline_seconds: float) -> None:
        """On another rank, which has done its part: returns when rank 0 has committed it.

        Raises:
            SnapshotError: rank 0 has given the attempt up.
            DeadlineError: it has done neither in time.
            SnapshotIOError: the file system failed.
        """
        mine = {(each.name, each.hash) for each in entries}
        end, poll_seconds = time.monotonic() + deadline_seconds, _SHORTEST_POLL_SECONDS
        while True:
            self.check()
            # In this order: a folder that is gone was renamed before.
            with writing(self._url, "the staging folder"):
                is_gone = self._folder.is_gone()
                is_committed = self._place.is_committed(self._name)
            if is_committed and mine <= {
                (each.name, each.hash) for each in open_snapshot(self._url).files()
            }:
                return
            if is_gone or is_committed:
                raise self._given_up()
            if time.monotonic() > end:
                raise DeadlineError(
                    f"snapshot {self._url}: rank 0 has not committed it within "
                    f"{deadline_seconds} s after this rank had done its part; see what holds it "
                    "up, or allow more time",
                    ranks=(0,),
                )
            time.sleep(poll_seconds)
            poll_seconds = min(2 * poll_seconds, _LONGEST_POLL_SECONDS)

    def _given_up(self) -> SnapshotError:
        return SnapshotError(
            f"snapshot {self._url}: rank 0 has given this attempt up; its own error tells why",
            url=self._url,
            ranks=(0,),
        )

    def _read(self, rank: int) -> tuple[int, str] | None:
        """The rank that failed first, and why, as `rank` has it."""
        with writing(self._url, _mark_name(rank)):
            try:
                text = self._folder.read(_mark_name(rank), _MARK_BYTES)
                if text is None:
                    return None
                mark = json.loads(text)
                return int(mark["rank"]), str(mark["cause"])
            except (ValueError, KeyError, TypeError) as error:
                return rank, f"its own error tells why ({error})"


def _mark_name(rank: int) -> str:
    return f"failed-{rank:05d}.json"
