"""Contract of a file system for snapshots, and the conversion of its errors.

`sparring.snapshot.place.local` and `sparring.snapshot.place.remote` implement it. Tests wrap an
implementation to fail or to kill the process at any call. Names are single path components. Methods
raise the OSError of the file system. Callers use `reading` and `writing` to convert it into an error
with the snapshot, the file and the offset.
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
        """Fills `buffer` with the bytes from `offset`. Raises EOFError if the file is too short."""


class ReadFolder(Closable):
    """A committed snapshot's folder."""

    @abstractmethod
    def names(self) -> list[str]:
        """Returns the names of all entries, of any type."""

    @abstractmethod
    def open(self, name: str) -> ReadFile:
        """Opens a regular file. Follows no symbolic link, and does not block, for example on a FIFO."""


class WriteFile(Closable):
    """A new file, visible only to its writer until it is sealed."""

    size_bytes: int

    @abstractmethod
    def append(self, pieces: Iterable[memoryview]) -> None: ...

    @abstractmethod
    def rewrite(self, data: bytes) -> None:
        """Replaces the first bytes of the file."""

    @abstractmethod
    def seal(self, pause: Callable[[], None]) -> FileHashes:
        """Makes the file durable, and returns its hashes. Nothing may be written to it afterwards.

        Args:
            pause: Called after each piece of work.
        """


class WriteFolder(Closable):
    """The staging folder of one attempt, shared by all ranks."""

    @abstractmethod
    def stored_name(self, name: str) -> str:
        """Returns the name in the snapshot of the file `name`."""

    @abstractmethod
    def create(self, name: str) -> WriteFile:
        """Creates a file. Raises FileExistsError if it exists."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Writes a small file atomically, and returns when it is durable."""

    @abstractmethod
    def read(self, name: str, most: int) -> bytes | None:
        """Reads a small file; None if it does not exist. Raises ValueError if it exceeds `most` bytes."""

    @abstractmethod
    def discard(self, names: Iterable[str]) -> None:
        """Removes files. Ignores names that do not exist."""

    @abstractmethod
    def is_gone(self) -> bool:
        """Whether the folder was published or removed; False if the file system cannot report this."""


class SnapshotRoot(ABC):
    """A folder of snapshots.

    Args:
        url: URL of the folder.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def url_of(self, name: str) -> str:
        """Returns the URL of a snapshot."""

    @abstractmethod
    def names(self) -> list[str]:
        """Returns the names of the snapshots in the folder, committed or not, without staging folders."""

    @abstractmethod
    def is_committed(self, name: str) -> bool:
        """Whether the snapshot `name` has a manifest."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether the name is in use, so that a new snapshot cannot have it."""

    @abstractmethod
    def open(self, name: str) -> ReadFolder: ...

    def identity(self, name: str) -> tuple[int, ...] | None:
        """Returns numbers that change if the manifest of a snapshot, or the set of its files, changes.
        None: unknown."""
        return None

    @abstractmethod
    def stage(self, name: str, token: str) -> WriteFolder:
        """Opens the staging folder of an attempt, and creates it if no rank has created it."""

    @abstractmethod
    def check_usable(self, token: str) -> None:
        """Checks, as far as possible, that the folder exists or can be created, and is writable.

        Args:
            token: Token that no attempt uses.
        """

    @abstractmethod
    def publish(self, staging: WriteFolder, name: str, manifest: bytes) -> None:
        """Writes the manifest, makes the snapshot visible, and returns when this is durable.

        Raises FileExistsError if a snapshot of that name exists.
        """

    @abstractmethod
    def abandon(self, name: str, token: str, unread_mark: str | None = None) -> None:
        """Removes the staged files of an attempt that was not published.

        Args:
            unread_mark: Mark file with the cause that some ranks have not read. It is kept if
                `WriteFolder.is_gone` cannot report to them that the folder was removed.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Makes a snapshot invisible, and then removes its files."""

    @abstractmethod
    def remove_stale(self, older_than_seconds: float) -> list[str]:
        """Removes staging folders without writes in this period, and returns their names."""


_NOT_REGULAR = {errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ENXIO}


def damaged_error(url: str, file: str, offset: int, reason: str) -> SnapshotDamagedError:
    """Creates the error for a damaged file."""
    return SnapshotDamagedError(
        f"snapshot {url}: {file} is damaged at byte {offset:,}: {reason}; load an older snapshot",
        url=url,
        file=file,
        offset=offset,
    )


@contextmanager
def reading(url: str, file: str, offset: int = 0) -> Iterator[None]:
    """Converts errors of reading a file into errors of snapshots.

    Args:
        url: URL of the snapshot, for messages.
        file: Name of the file, for messages.
        offset: Position of the read in the file, in bytes.

    Raises:
        SnapshotDamagedError: The file is missing, too short or not a regular file.
        SnapshotIOError: The file system failed.
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
            raise damaged_error(url, file, offset, f"it is not a regular file ({error})") from error
        raise SnapshotIOError(
            f"snapshot {url}: reading {file} at byte {offset:,} failed: {error}; check the file "
            "system, then load again",
            url=url,
            file=file,
            offset=offset,
        ) from error


@contextmanager
def writing(url: str, file: str, offset: int = 0) -> Iterator[None]:
    """Converts errors of writing a file into errors of snapshots.

    Raises:
        SnapshotIOError: The file system failed.
    """
    try:
        yield
    except SnapshotError:
        raise
    except OSError as error:
        raise SnapshotIOError(
            f"snapshot {url}: writing {file} at byte {offset:,} failed: {error}; nothing was "
            "committed. Free disk space or repair the file system, then save again",
            url=url,
            file=file,
            offset=offset,
        ) from error
