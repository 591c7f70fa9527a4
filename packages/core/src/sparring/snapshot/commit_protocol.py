"""How the ranks of one attempt learn how it ends, by small files in its staging folder.

    a rank fails       removes its data files, and leaves a mark with the cause
    rank 0 sees it     fails for the same cause, and leaves a mark of its own
    all others         see that of rank 0, fail for the same cause, and leave theirs
    rank 0             removes the folder once all have left one, or the grace is over. Where no rank
                       sees that a folder is gone, its mark stays for those that are late
    rank 0 commits     the others find their files in the manifest

So every rank ends soon after the first that fails, each knows why, and no rank waits for a part that
never comes. A rank that has finished leaves a mark only where rank 0 has left one: until then a
commit may be under way.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable

from sparring.errors import DeadlineError, SnapshotError
from sparring.snapshot.file_errors import writing
from sparring.snapshot.format.manifest import FileEntry
from sparring.snapshot.place.place import Place, WriteFolder
from sparring.snapshot.reader import open_snapshot

__all__ = ["GRACE_SECONDS", "LOOK_SECONDS", "Outcome"]

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
