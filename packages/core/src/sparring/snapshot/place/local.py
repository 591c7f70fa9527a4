"""Snapshots on the local file system: staged in the same folder, and renamed on commit.

Every file is opened relative to the descriptor of its folder, without following symbolic links, and must
be a regular file. All disk access calls functions as attributes of `os`, because
`sparring_testing.faults.faulty_disk` replaces them to inject failures.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from sparring.snapshot.format.manifest import MANIFEST_NAME, FileHashes, hash_blocks
from sparring.snapshot.place.place import ReadFile, ReadFolder, SnapshotRoot, WriteFile, WriteFolder

__all__ = ["LocalRoot", "LocalWriteFile"]

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
_WRITE_BEHIND_BYTES = 8 << 20
_SAME_TIME_NANOSECONDS = 100_000_000
_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _LocalReadFile(ReadFile):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise OSError(errno.EINVAL, "not a regular file")
        self.size_bytes = found.st_size

    def read_into(self, offset: int, buffer: memoryview) -> None:
        _read_into(self._descriptor, offset, buffer)

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        _close(descriptor)


class _LocalReadFolder(ReadFolder):
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def names(self) -> list[str]:
        with os.scandir(self._descriptor) as entries:
            return [entry.name for entry in entries]

    def open(self, name: str) -> ReadFile:
        return _LocalReadFile(os.open(name, _READ, dir_fd=self._descriptor))

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        _close(descriptor)


class LocalWriteFile(WriteFile):
    """A new local file.

    Args:
        descriptor: File descriptor, open for reading and writing.
        owned: Whether `close` closes the descriptor.
    """

    def __init__(self, descriptor: int, *, owned: bool = True) -> None:
        self._descriptor = descriptor
        self._is_owned = owned
        self._begun_bytes = 0
        self.size_bytes = 0

    def append(self, pieces: Iterable[memoryview]) -> None:
        for piece in pieces:
            rest = piece.cast("B")
            while rest:
                written = os.write(self._descriptor, rest)
                self.size_bytes += written
                rest = rest[written:]
        if self.size_bytes - self._begun_bytes >= _WRITE_BEHIND_BYTES:
            # Starts to write dirty pages without waiting for them. `sync` then has little to write, and
            # other processes do not compete with a large burst of writes.
            begun, self._begun_bytes = self._begun_bytes, self.size_bytes
            os.posix_fadvise(
                self._descriptor, begun, self.size_bytes - begun, os.POSIX_FADV_DONTNEED
            )

    def rewrite(self, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            offset += os.pwrite(self._descriptor, data[offset:], offset)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """See `ReadFile.read_into`."""
        _read_into(self._descriptor, offset, buffer)

    def hashes(self, pause: Callable[[], None]) -> FileHashes:
        """Reads the written file back and returns its hashes. Calls `pause` after each block."""
        return hash_blocks(self.read_into, self.size_bytes, pause)

    def sync(self) -> None:
        """Makes the file durable."""
        os.fsync(self._descriptor)

    def seal(self, pause: Callable[[], None]) -> FileHashes:
        hashes = self.hashes(pause)
        os.fsync(self._descriptor)
        # The file is not read soon, so its pages of the page cache can be reused for the next file.
        os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        return hashes

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if self._is_owned:
            _close(descriptor)


class _LocalWriteFolder(WriteFolder):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, _FOLDER)

    def stored_name(self, name: str) -> str:
        return name

    def create(self, name: str) -> WriteFile:
        return LocalWriteFile(os.open(name, _CREATE, 0o666, dir_fd=self.descriptor))

    def put(self, name: str, data: bytes) -> None:
        unfinished = f"{name}.unfinished"
        with LocalWriteFile(os.open(unfinished, _CREATE, 0o666, dir_fd=self.descriptor)) as file:
            file.append([memoryview(data)])
            file.sync()
        os.rename(unfinished, name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)
        os.fsync(self.descriptor)

    def read(self, name: str, most: int) -> bytes | None:
        try:
            descriptor = os.open(name, _READ, dir_fd=self.descriptor)
        except FileNotFoundError:
            return None
        with _LocalReadFile(descriptor) as file:
            if file.size_bytes > most:
                raise ValueError(f"{name} has {file.size_bytes} bytes, more than {most}")
            data = bytearray(file.size_bytes)
            file.read_into(0, memoryview(data))
        return bytes(data)

    def discard(self, names: Iterable[str]) -> None:
        for name in names:
            _unlink(name, self.descriptor)

    def is_gone(self) -> bool:
        return not os.path.lexists(self.path)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        _close(descriptor)


class LocalRoot(SnapshotRoot):
    """A local folder of snapshots, created when the first snapshot is staged."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    def url_of(self, name: str) -> str:
        return str(self.path / name)

    def names(self) -> list[str]:
        with os.scandir(self.path) as entries:
            return [
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            ]

    def is_committed(self, name: str) -> bool:
        return (self.path / name / MANIFEST_NAME).is_file()

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.path / name)

    def open(self, name: str) -> ReadFolder:
        return _LocalReadFolder(os.open(self.path / name, _FOLDER))

    def identity(self, name: str) -> tuple[int, ...] | None:
        folder = f"{self.url}/{name}"
        try:
            found = [os.lstat(folder), os.lstat(f"{folder}/{MANIFEST_NAME}")]
        except OSError:
            return None  # Reading it raises an error with the reason.
        if time.time_ns() - max(each.st_mtime_ns for each in found) < _SAME_TIME_NANOSECONDS:
            return None  # A change at the same time could not be recognized.
        return tuple(
            number for each in found for number in (each.st_ino, each.st_mtime_ns, each.st_size)
        )

    def stage(self, name: str, token: str) -> WriteFolder:
        _make_folders(self.path)
        staging = self._staging(name, token)
        # Another rank of this attempt may have created it. The next line raises if it is not a folder.
        with suppress(FileExistsError):
            os.mkdir(staging)
        return _LocalWriteFolder(staging)

    def check_usable(self, token: str) -> None:
        self.stage("probe", token).close()
        self.abandon("probe", token)

    def publish(self, staging: WriteFolder, name: str, manifest: bytes) -> None:
        assert isinstance(staging, _LocalWriteFolder)
        staging.put(MANIFEST_NAME, manifest)
        try:
            # A rename never replaces a folder that is not empty, and a snapshot is never empty.
            os.rename(staging.path, self.path / name)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise FileExistsError(errno.EEXIST, "it exists already", name) from error
            raise
        _sync_folder(self.path)

    def abandon(self, name: str, token: str, unread_mark: str | None = None) -> None:
        _remove_folder(self._staging(name, token))

    def remove(self, name: str) -> None:
        # Renamed first, because removing its files is not atomic. A token cannot contain a tilde, so
        # the new name is not the name of a staging folder.
        hidden = self.path / f".{name}.~removed"
        _remove_folder(hidden)
        os.rename(self.path / name, hidden)
        _sync_folder(self.path)
        _remove_folder(hidden)

    def remove_stale(self, older_than_seconds: float) -> list[str]:
        limit = time.time() - older_than_seconds
        stale = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                is_staging = entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)
                if is_staging and _last_write_time(Path(entry.path)) < limit:
                    stale.append(entry.name)
        for name in stale:
            _remove_folder(self.path / name)
        return stale

    def _staging(self, name: str, token: str) -> Path:
        return self.path / f".{name}.{token}"


def _close(descriptor: int) -> None:
    """Closes an open descriptor. Ignores errors, because durable data was synced before, and the
    descriptor is released even if close fails."""
    if descriptor >= 0:
        with suppress(OSError):
            os.close(descriptor)


def _read_into(descriptor: int, offset: int, buffer: memoryview) -> None:
    while buffer:
        count = os.preadv(descriptor, [buffer], offset)
        if not count:
            raise EOFError(f"the file ends at {offset}")
        buffer, offset = buffer[count:], offset + count


def _last_write_time(folder: Path) -> float:
    """Returns the time of the last write to the folder or to a file in it."""
    times = [folder.stat().st_mtime]
    with os.scandir(folder) as entries:
        times += [entry.stat(follow_symlinks=False).st_mtime for entry in entries]
    return max(times)


def _make_folders(path: Path) -> None:
    """Creates a folder and its parents, and makes the entry of each durable."""
    if path.is_dir():
        return
    _make_folders(path.parent)
    with suppress(FileExistsError):
        os.mkdir(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        _close(descriptor)


def _unlink(name: str, descriptor: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=descriptor)


def _remove_folder(path: Path) -> None:
    """Removes a folder without subfolders, if it exists, without following symbolic links."""
    try:
        descriptor = os.open(path, _FOLDER)
    except FileNotFoundError:
        return
    try:
        with os.scandir(descriptor) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            _unlink(name, descriptor)
    finally:
        _close(descriptor)
    os.rmdir(path)
