"""Errors of file systems, turned into errors that name the snapshot, the file and the offset."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from sparring.errors import SnapshotDamagedError, SnapshotError, SnapshotIOError

__all__ = ["damaged", "reading", "writing"]

_NOT_REGULAR = {errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENOTDIR, errno.ENXIO}


def damaged(url: str, file: str, offset: int, reason: str) -> SnapshotDamagedError:
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
        raise damaged(url, file, offset, "it is missing") from error
    except EOFError as error:
        raise damaged(url, file, offset, str(error)) from error
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise damaged(url, file, offset, f"it is no regular file ({error})") from error
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
