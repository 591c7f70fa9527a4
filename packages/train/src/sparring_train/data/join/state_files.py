"""Files of the open impressions of a run, in the folder of its snapshots.

    <snapshots.url>/open_impressions/<hash>-<name>      a file of `JoinStore.checkpoint`, or waiting.arrow

The state ``join`` of a snapshot lists its files for each rank. Files never change, so consecutive
snapshots share those that a store has not rewritten. A file is complete before the snapshot is
committed. Files that no snapshot lists are removed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]  # it ships no types
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from sparring.adapter import open_snapshots
from sparring.errors import DataError, SnapshotError

__all__ = ["FOLDER", "JOIN", "StateFiles"]

JOIN = "join"
"""Name of the state."""
FOLDER = "open_impressions"
_HASH_BYTES = 16
_BLOCK_BYTES = 1 << 20
_UNFINISHED = ".unfinished"


class StateFiles:
    """Copies files of one rank to the folder of snapshots, and back.

    Args:
        snapshots_url: folder of snapshots.
    """

    def __init__(self, snapshots_url: str) -> None:
        self._url = snapshots_url
        self._system, path = fsspec.core.url_to_fs(snapshots_url)
        self._folder = f"{path.rstrip('/')}/{FOLDER}"
        self._is_local = isinstance(self._system, LocalFileSystem)
        # Hard links of one file have the same number, so it is hashed once.
        self._hashes: dict[tuple[int, int, int], str] = {}
        # Files of the last two snapshots, which may not be committed yet.
        self._recent: deque[set[str]] = deque(maxlen=2)

    def save(self, folder: Path) -> list[str]:
        """Copies the files of a folder. Returns their stored names.

        Raises:
            OSError: a file cannot be written.
        """
        self._system.makedirs(self._folder, exist_ok=True)
        names, hashes = [], {}
        for path in sorted(folder.iterdir()):
            info = path.stat()
            identity = info.st_ino, info.st_size, info.st_mtime_ns
            found = hashes[identity] = self._hashes.get(identity) or _hash_of(path)
            names.append(f"{found}-{path.name}")
            target = f"{self._folder}/{names[-1]}"
            if not self._system.exists(target):
                self._copy(path, target)
        self._hashes = hashes
        if self._is_local:
            _sync(self._folder)
        return names

    def _copy(self, path: Path, target: str) -> None:
        if self._is_local:
            if not _is_linked(path, Path(target + _UNFINISHED)):
                shutil.copyfile(path, target + _UNFINISHED)
            _sync(target + _UNFINISHED)
            Path(target + _UNFINISHED).rename(target)
            return
        self._system.put_file(str(path), target + _UNFINISHED)
        self._system.mv(target + _UNFINISHED, target)

    def restore(self, names: Iterable[str], folder: Path) -> None:
        """Copies stored files to a new folder.

        Raises:
            DataError: a file is missing or damaged.
        """
        folder.mkdir(parents=True)
        for name in names:
            expected, _, given = name.partition("-")
            if not given or Path(given).name != given:
                raise DataError(f"{self._url}: found the file name {name!r}; restore the snapshot")
            source, target = f"{self._folder}/{name}", folder / given
            try:
                # RocksDB changes other files than tables.
                is_linked = self._is_local and given.endswith(".sst")
                if not (is_linked and _is_linked(Path(source), target)):
                    self._system.get_file(source, str(target))
                found = _hash_of(target)
            except OSError as error:
                raise DataError(
                    f"reading the open impressions of {self._url} failed: {error}; restore the file "
                    f"{FOLDER}/{name}, or resume from an earlier snapshot",
                    path=self._url,
                ) from error
            if found != expected:
                raise DataError(
                    f"reading the open impressions of {self._url} failed: {FOLDER}/{name} is damaged, "
                    f"found the hash {found}; restore it, or resume from an earlier snapshot",
                    path=self._url,
                )

    def remove_unused(self, used: Iterable[str]) -> None:
        """Removes the files that neither the committed snapshots nor the last two calls list.

        If a snapshot cannot be read, for example because it is being removed, a later call removes them.
        """
        self._recent.append(set(used))
        kept = set().union(*self._recent)
        with suppress(OSError, SnapshotError):
            for snapshot in open_snapshots(self._url):
                if JOIN in snapshot.state_names(0):
                    kept.update(list_files(snapshot.state(JOIN).values))
            for path in self._system.ls(self._folder, detail=False):
                if path.rpartition("/")[2] not in kept:
                    self._system.rm_file(path)


def list_files(values: Any) -> set[str]:
    """Returns the stored names of the files that the values of a state list."""
    return {name for rank in values["ranks"] for name in rank["files"]}


def _is_linked(source: Path, target: Path) -> bool:
    """Returns whether a hard link was created."""
    try:
        target.unlink(missing_ok=True)
        target.hardlink_to(source)
    except OSError:  # Another file system, or one without links.
        return False
    return True


def _hash_of(path: Path) -> str:
    found = hashlib.blake2b(digest_size=_HASH_BYTES)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
