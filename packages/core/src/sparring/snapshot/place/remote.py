"""Snapshots on any file system of fsspec: files are written under their final names, the manifest last.

Object stores support neither rename nor sync. An attempt therefore writes directly into the snapshot's
folder, under names that begin with its token. The manifest is written last and atomically, which commits
the snapshot. Data files are written to the local disk first, because their headers are known only at the
end, and are uploaded when they are complete.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import wraps
from typing import Any

from sparring.errors import SnapshotIOError
from sparring.runtime.file_system import open_file_system
from sparring.snapshot.format.manifest import MANIFEST_NAME, FileHashes
from sparring.snapshot.place.local import LocalWriteFile
from sparring.snapshot.place.place import ReadFile, ReadFolder, SnapshotRoot, WriteFile, WriteFolder

__all__ = ["RemoteRoot", "open_remote_root"]

_UPLOAD_BYTES = 8 << 20


def open_remote_root(root_url: str) -> RemoteRoot:
    """Opens a folder of snapshots on a file system of fsspec.

    Raises:
        InvalidArgumentError: fsspec does not support the scheme, a package for the file system is not
            installed, or the URL is incomplete for this file system.
        SnapshotIOError: The file system cannot be reached.
    """
    system, path = open_file_system(root_url, SnapshotIOError)
    return RemoteRoot(root_url, system, path)


@contextmanager
def _as_os_errors() -> Iterator[None]:
    """Converts errors of a client library into OSError."""
    try:
        yield
    except (OSError, EOFError):
        raise
    except Exception as error:
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error


class _System:
    """A file system of fsspec whose methods convert errors of its client library into OSError."""

    def __init__(self, system: Any) -> None:
        self._system = system

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._system, name)

        @wraps(method)
        def call(*args: object, **settings: object) -> Any:
            with _as_os_errors():
                return method(*args, **settings)

        return call


class _RemoteReadFile(ReadFile):
    def __init__(self, system: Any, path: str) -> None:
        described = system.info(path)
        if described["type"] != "file":
            raise OSError(errno.EINVAL, "not a regular file")
        if described["size"] is None:
            raise OSError(errno.ENOTSUP, "the file system does not report the size of the file")
        self._system, self._path = system, path
        self.size_bytes = int(described["size"])

    def read_into(self, offset: int, buffer: memoryview) -> None:
        data = self._system.cat_file(self._path, start=offset, end=offset + len(buffer))
        if len(data) != len(buffer):
            raise EOFError(f"the file ends at {offset + len(data)}")
        buffer[:] = data

    def close(self) -> None:
        """Does nothing, because no resource is open."""


class _RemoteReadFolder(ReadFolder):
    def __init__(self, system: Any, path: str) -> None:
        self._system, self._path = system, path

    def names(self) -> list[str]:
        return _names(self._system, self._path)

    def open(self, name: str) -> ReadFile:
        return _RemoteReadFile(self._system, f"{self._path}/{name}")

    def close(self) -> None:
        """Does nothing, because no resource is open."""


class _RemoteWriteFile(WriteFile):
    def __init__(self, system: Any, path: str) -> None:
        self._system, self._path = system, path
        # Has no name on the disk, so it disappears with the process.
        self._local = tempfile.TemporaryFile(prefix="sparring-", buffering=0)  # noqa: SIM115
        self._file = LocalWriteFile(self._local.fileno(), owned=False)

    @property
    def size_bytes(self) -> int:  # type: ignore[override]
        return self._file.size_bytes

    def append(self, pieces: Iterable[memoryview]) -> None:
        self._file.append(pieces)

    def rewrite(self, data: bytes) -> None:
        self._file.rewrite(data)

    def seal(self, pause: Callable[[], None]) -> FileHashes:
        hashes = self._file.hashes(pause)
        with _as_os_errors(), self._system.open(self._path, "wb") as target:
            buffer = memoryview(bytearray(_UPLOAD_BYTES))
            for begin in range(0, self.size_bytes, _UPLOAD_BYTES):
                piece = buffer[: min(_UPLOAD_BYTES, self.size_bytes - begin)]
                self._file.read_into(begin, piece)
                target.write(bytes(piece))
                pause()
        return hashes

    def close(self) -> None:
        self._local.close()


class _RemoteWriteFolder(WriteFolder):
    def __init__(self, system: Any, path: str, token: str) -> None:
        self._system, self.path, self._token = system, path, token

    def stored_name(self, name: str) -> str:
        return f"{self._token}-{name}"

    def create(self, name: str) -> WriteFile:
        path = f"{self.path}/{name}"
        if self._system.exists(path):
            raise FileExistsError(errno.EEXIST, "it exists already", path)
        return _RemoteWriteFile(self._system, path)

    def put(self, name: str, data: bytes) -> None:
        self._system.pipe_file(f"{self.path}/{self.stored_name(name)}", data)

    def read(self, name: str, most: int) -> bytes | None:
        path = f"{self.path}/{self.stored_name(name)}"
        self._system.invalidate_cache(self.path)
        try:
            # Reads one byte more than allowed, because not every file system reports sizes.
            data = bytes(self._system.cat_file(path, start=0, end=most + 1))
        except FileNotFoundError:
            return None
        if len(data) > most:
            raise ValueError(f"{name} has more than {most} bytes")
        return data

    def discard(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError):
                self._system.rm_file(f"{self.path}/{self.stored_name(name)}")

    def is_gone(self) -> bool:
        return False  # object stores have no folders

    def close(self) -> None:
        """Does nothing, because no resource is open."""


class RemoteRoot(SnapshotRoot):
    """A folder of snapshots on a file system of fsspec.

    Args:
        url: URL of the folder.
        system: File system of fsspec.
        path: Path of the folder in `system`.
    """

    def __init__(self, url: str, system: Any, path: str) -> None:
        super().__init__(url.rstrip("/"))
        self._system: Any = _System(system)
        self._path = path.rstrip("/")

    def url_of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def names(self) -> list[str]:
        return [each for each in _names(self._system, self._path) if not each.startswith(".")]

    def is_committed(self, name: str) -> bool:
        path = self._refresh_path(name)
        return bool(self._system.isfile(f"{path}/{MANIFEST_NAME}"))

    def exists(self, name: str) -> bool:
        return self.is_committed(name)

    def open(self, name: str) -> ReadFolder:
        path = self._refresh_path(name)
        if not self._system.isdir(path):
            raise FileNotFoundError(errno.ENOENT, "no such folder", path)
        return _RemoteReadFolder(self._system, path)

    def stage(self, name: str, token: str) -> WriteFolder:
        path = f"{self._path}/{name}"
        self._system.makedirs(path, exist_ok=True)
        return _RemoteWriteFolder(self._system, path, token)

    def check_usable(self, token: str) -> None:
        with suppress(FileNotFoundError):
            self.names()

    def publish(self, staging: WriteFolder, name: str, manifest: bytes) -> None:
        if self.is_committed(name):
            raise FileExistsError(errno.EEXIST, "it exists already", name)
        self._system.pipe_file(f"{self._path}/{name}/{MANIFEST_NAME}", manifest)

    def abandon(self, name: str, token: str, unread_mark: str | None = None) -> None:
        path = f"{self._path}/{name}"
        if self.is_committed(name) or not self._system.isdir(path):
            return
        for each in _names(self._system, path):
            if each.startswith(f"{token}-") and each != f"{token}-{unread_mark}":
                with suppress(FileNotFoundError):
                    self._system.rm_file(f"{path}/{each}")
        self._remove_if_empty(path)

    def remove(self, name: str) -> None:
        path = f"{self._path}/{name}"
        # The manifest first, because without it the folder is not a snapshot.
        self._system.rm_file(f"{path}/{MANIFEST_NAME}")
        for each in _names(self._system, path):
            self._system.rm_file(f"{path}/{each}")
        self._remove_if_empty(path)

    def remove_stale(self, older_than_seconds: float) -> list[str]:
        now = datetime.now(timezone.utc)
        stale = []
        for name in self.names():
            path = f"{self._path}/{name}"
            if self.is_committed(name) or not self._system.isdir(path):
                continue
            ages = [
                (now - _with_time_zone(self._system.modified(f"{path}/{each}"))).total_seconds()
                for each in _names(self._system, path)
            ]
            if min(ages, default=0.0) > older_than_seconds:
                stale.append(name)
                for each in _names(self._system, path):
                    self._system.rm_file(f"{path}/{each}")
                self._remove_if_empty(path)
        return stale

    def _refresh_path(self, name: str) -> str:
        """Returns the path of a snapshot. Invalidates cached listings, because another process may have
        committed or removed it."""
        path = f"{self._path}/{name}"
        for each in (self._path, path):
            self._system.invalidate_cache(each)
        return path

    def _remove_if_empty(self, path: str) -> None:
        # Object stores have no folders to remove.
        with suppress(OSError):
            self._system.rmdir(path)


def _names(system: Any, path: str) -> list[str]:
    system.invalidate_cache(path)
    return [str(each).rstrip("/").rpartition("/")[2] for each in system.ls(path, detail=False)]


def _with_time_zone(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
