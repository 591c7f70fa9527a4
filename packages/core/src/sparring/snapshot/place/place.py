"""Contract of a file system that holds snapshots, and how its errors are told.

A place is a folder of snapshots. `sparring.snapshot.place.local` and
`sparring.snapshot.place.remote` implement it; tests put one around it that fails or kills at any call.
Names are single path components. Methods raise OSError as the file system gives it; callers turn it into
errors that name the snapshot, the file and the offset, by `reading` and `writing`.
"""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from sparring.errors import SnapshotDamagedError, SnapshotError, SnapshotIOError
from sparring.runtime.lifecycle import Closable
from sparring.snapshot.format.manifest import FileHashes

__all__ = [
    "SnapshotRoot",
    "ReadFile",
    "ReadFolder",
    "WriteFile",
    "WriteFolder",
    "damaged_error",
    "reading",
    "writing",
]


class ReadFile(Closable):
    """A regular file, open for reading."""

    size_bytes: int

    @abstractmethod
    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fills `buffer` from `offset` on; EOFError where the file ends before."""


class ReadFolder(Closable):
    """A committed snapshot's folder."""

    @abstractmethod
    def names(self) -> list[str]:
        """All entries, of whatever kind."""

    @abstractmethod
    def open(self, name: str) -> ReadFile:
        """Opens a regular file, through no link. Never waits, as for a FIFO."""


class WriteFile(Closable):
    """A new file that only its writer knows of."""

    size_bytes: int

    @abstractmethod
    def append(self, pieces: Iterable[memoryview]) -> None: ...

    @abstractmethod
    def rewrite(self, data: bytes) -> None:
        """Replaces the first bytes of the file."""

    @abstractmethod
    def seal(self, pause: Callable[[], None]) -> FileHashes:
        """Returns when the file is durable. Nothing is written to it afterwards.

        Args:
            pause: called after each piece of the work.
        """


class WriteFolder(Closable):
    """The staging folder of one attempt, which the ranks share."""

    @abstractmethod
    def stored_name(self, name: str) -> str:
        """The name in the snapshot of a file called `name`."""

    @abstractmethod
    def create(self, name: str) -> WriteFile:
        """A new file; FileExistsError where there is one."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Writes a small file that others see whole or not at all, and returns when it is durable."""

    @abstractmethod
    def read(self, name: str, most: int) -> bytes | None:
        """A small file, or None where there is none; ValueError if longer than `most` bytes."""

    @abstractmethod
    def discard(self, names: Iterable[str]) -> None:
        """Removes files; unknown ones are no error."""

    @abstractmethod
    def is_gone(self) -> bool:
        """Whether it was published or removed, where that can be seen; otherwise False."""


class SnapshotRoot(ABC):
    """A folder of snapshots.

    Args:
        url: of the folder.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def url_of(self, name: str) -> str:
        """The URL of a snapshot."""

    @abstractmethod
    def names(self) -> list[str]:
        """The folders in this place, committed or not, without staging folders."""

    @abstractmethod
    def is_committed(self, name: str) -> bool:
        """Whether a folder of this name has a manifest."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether a snapshot of this name cannot be written any more."""

    @abstractmethod
    def open(self, name: str) -> ReadFolder: ...

    @abstractmethod
    def stage(self, name: str, token: str) -> WriteFolder:
        """The staging folder of an attempt; the first rank makes it."""

    @abstractmethod
    def check_usable(self, token: str) -> None:
        """Returns if it is, or can be made, a folder to write to, as far as that shows.

        Args:
            token: of no attempt.
        """

    @abstractmethod
    def publish(self, staging: WriteFolder, name: str, manifest: bytes) -> None:
        """Writes the manifest last and makes the snapshot visible; returns when that is durable.

        FileExistsError where there is one of that name.
        """

    @abstractmethod
    def abandon(self, name: str, token: str, unread_mark: str | None = None) -> None:
        """Removes what an attempt has staged that was not published.

        Args:
            unread_mark: a file of it that tells other ranks why, and that some have not read yet: it
                stays where `WriteFolder.is_gone` could not tell them.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Removes a snapshot, its visibility first."""

    @abstractmethod
    def remove_stale(self, older_than_seconds: float) -> list[str]:
        """Removes staging folders without writes for that long; returns their names."""


_NOT_REGULAR = {errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ENXIO}


def damaged_error(url: str, file: str, offset: int, reason: str) -> SnapshotDamagedError:
    """The error that a file is damaged."""
    return SnapshotDamagedError(
        f"snapshot {url}: {file} is damaged at byte {offset:,}: {reason}; load an older snapshot",
        url=url,
        file=file,
        offset=offset,
    )


@contextmanager
def reading(url: str, file: str, offset: int = 0) -> Iterator[None]:
    """Turns errors of reading into those of snapshots.

    Raises:
        SnapshotDamagedError: the file is missing, too short or no regular file.
        SnapshotIOError: the file system failed.
    """
    try:
        yield
    except SnapshotError:
        raise
    except FileNotFoundError as error:
        raise damaged_error(url, file, offset, "it is missing") from error
    except EOFError as error:
        raise damaged_error(url, file, offset, str(error)) from error
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise damaged_error(url, file, offset, f"it is no regular file ({error})") from error
        raise SnapshotIOError(
            f"snapshot {url}: reading {file} at byte {offset:,} failed: {error}; look there, then "
            "load again",
            url=url,
            file=file,
            offset=offset,
        ) from error


@contextmanager
def writing(url: str, file: str, offset: int = 0) -> Iterator[None]:
    """Turns errors of writing into those of snapshots.

    Raises:
        SnapshotIOError: the file system failed.
    """
    try:
        yield
    except SnapshotError:
        raise
    except OSError as error:
        raise SnapshotIOError(
            f"snapshot {url}: writing {file} at byte {offset:,} failed: {error}; nothing was "
            "committed. Make room or mend the disk, then save again",
            url=url,
            file=file,
            offset=offset,
        ) from error
