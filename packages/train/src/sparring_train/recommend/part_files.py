"""`PartFolder`: a result in parts, in a local folder or an object store, that workers write and resume.

::

    OUTPUT/_plan.json                      what is computed; written first, and never changed
    OUTPUT/_items-<xxh3-128>.arrow         input that all workers share, if the job has one
    OUTPUT/part-000000-<xxh3-128>.parquet  one per part
    OUTPUT/_manifest.json                  name, length and hash of each part; written when all exist

The name of a part contains the hash of its bytes, so a reader can verify it without another file, and two
workers that compute the same part write the same file. Names with an underscore are ignored by Arrow,
Spark and DuckDB, so the folder can be read as one table.

INVARIANT: a file has its final name only when it is complete and durable. Locally it is written to a
temporary name, synced, and renamed; object stores replace objects atomically.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from sparring.adapter import open_file_system
from sparring.errors import CorruptDataError, InvalidArgumentError, StorageIOError

__all__ = ["MANIFEST", "PLAN", "PartFolder", "make_absolute"]

PLAN, MANIFEST = "_plan.json", "_manifest.json"
_PART = re.compile(r"part-(\d{6,})-([0-9a-f]{32})\.parquet")
_UNFINISHED = re.compile(r"\.(part-|_items-|_plan|_manifest).*\.[0-9a-f]{16}")
"""Names of temporary files. The folder may contain other hidden files, which belong to the user."""
_BLOCK_BYTES = 1 << 24
_UNFINISHED_SECONDS = 3600.0
"""Age at which a temporary file belongs to no running process."""


class PartFolder:
    """Folder of a result in parts.

    Args:
        url: local folder, or URL of fsspec. It is created when the first file is written.

    Raises:
        InvalidArgumentError: the URL is invalid, or its file system is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") or url
        self._system, path = open_file_system(url)
        self._path = path.rstrip("/")
        self._is_local = isinstance(self._system, LocalFileSystem)

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Stores the plan of a result, or checks that it equals the stored one.

        Args:
            plan: JSON values that determine the bytes of the parts.

        Raises:
            InvalidArgumentError: the folder contains a result with another plan.
            StorageIOError: the file system failed.
        """
        stored, given = self.store_plan(plan), json.loads(json.dumps(plan))
        if stored == given:
            return
        names = sorted(stored.keys() | given.keys())
        changes = [
            f"{name}: {_shown(stored.get(name))} there, {_shown(given.get(name))} here"
            for name in names
            if stored.get(name) != given.get(name)
        ]
        raise InvalidArgumentError(
            f"--output {self.url} contains parts of another result: {'; '.join(changes)}; repeat the "
            "command that began it, choose another --output, or delete the folder"
        )

    def store_plan(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Stores a plan, unless there is one. Returns the stored plan."""
        if self.read_plan() is None:
            text = json.dumps(plan, indent=1, sort_keys=True, ensure_ascii=False)
            self.write(PLAN, f"{text}\n".encode(), keeps_existing=True)
        stored = self.read_plan()
        assert stored is not None
        return stored

    def read_plan(self) -> dict[str, Any] | None:
        """Returns the stored plan; None if there is none.

        Raises:
            CorruptDataError: it is not JSON.
            StorageIOError: the file system failed.
        """
        data = self.read(PLAN)
        try:
            return None if data is None else dict(json.loads(data))
        except (ValueError, TypeError):
            raise CorruptDataError(
                f"{self.url}/{PLAN} is not a JSON object; delete the folder and compute it again"
            ) from None

    def parts(self) -> dict[int, tuple[str, str]]:
        """Returns name and hash of each existing part, by number."""
        found = {}
        with self._as_errors("listing"):
            names = self._names()
        for name in sorted(names):
            match = _PART.fullmatch(name)
            if match is not None:
                found[int(match[1])] = (name, match[2])
        return found

    def is_intact(self, name: str, expected_hash: str) -> bool:
        """Reads a file and returns whether it has a hash."""
        hashed = xxhash.xxh3_128()
        with self._as_errors(f"reading {name} in"), self._system.open(self._at(name), "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                hashed.update(block)
        return hashed.hexdigest() == expected_hash

    def has_intact(self, name: str, expected_hash: str) -> bool:
        """Returns whether a file exists and has a hash."""
        with self._as_errors(f"reading {name} in"):
            is_there = bool(self._system.exists(self._at(name)))
        return is_there and self.is_intact(name, expected_hash)

    def write_part(self, part: int, data: bytes | memoryview) -> str:
        """Writes a part, removes damaged files of the same part, and returns its name.

        Args:
            part: number of the part.
            data: the Parquet file.
        """
        name = f"part-{part:06d}-{xxhash.xxh3_128_hexdigest(data)}.parquet"
        others = [each for number, (each, _) in self.parts().items() if number == part]
        self.write(name, data)
        for other in others:
            if other != name:
                self.remove(other)
        return name

    def write_manifest(self, num_parts: int) -> bool:
        """Writes the manifest if all parts exist, and returns whether they do.

        Args:
            num_parts: number of parts.
        """
        found = self.parts()
        if any(part not in found for part in range(num_parts)):
            return False
        entries = []
        for part in range(num_parts):
            name, digest = found[part]
            with self._as_errors(f"reading {name} in"):
                size = int(self._system.size(self._at(name)))
            entries.append({"name": name, "bytes": size, "xxh3_128": digest})
        text = json.dumps({"format": 1, "parts": entries}, indent=1)
        self.write(MANIFEST, f"{text}\n".encode())
        self._remove_unfinished()
        return True

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if it does not exist."""
        try:
            with self._as_errors(f"reading {name} in"):
                return bytes(self._system.cat_file(self._at(name)))
        except StorageIOError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise

    def write(self, name: str, data: bytes | memoryview, *, keeps_existing: bool = False) -> None:
        """Writes a file atomically.

        Args:
            name: its name.
            data: its content.
            keeps_existing: leave an existing file unchanged. Object stores may still replace a file
                that another worker writes at the same time.
        """
        with self._as_errors(f"writing {name} to"):
            if not self._is_local:
                if not (keeps_existing and self._system.exists(self._at(name))):
                    self._system.pipe_file(self._at(name), bytes(data))
                return
            folder = Path(self._path)
            folder.mkdir(parents=True, exist_ok=True)
            temporary = folder / f".{name}.{secrets.token_hex(8)}"
            try:
                with temporary.open("xb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                if keeps_existing:
                    # Unlike a rename, a link never replaces a file.
                    with suppress(FileExistsError):
                        (folder / name).hardlink_to(temporary)
                else:
                    temporary.replace(folder / name)
            finally:
                temporary.unlink(missing_ok=True)
            descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def remove(self, name: str) -> None:
        """Removes a file, if it exists."""
        with self._as_errors(f"removing {name} from"):
            if self._system.exists(self._at(name)):
                self._system.rm_file(self._at(name))

    def local_path(self, name: str) -> str | None:
        """Returns the path of a file that can be mapped into memory; None in an object store."""
        return self._at(name) if self._is_local else None

    def _remove_unfinished(self) -> None:
        """Removes temporary files that killed processes left. Newer ones may belong to other workers."""
        for each in Path(self._path).glob(".*") if self._is_local else ():
            if _UNFINISHED.fullmatch(each.name) is None:
                continue
            with suppress(FileNotFoundError):
                if time.time() - each.stat().st_mtime > _UNFINISHED_SECONDS:
                    each.unlink()

    def _names(self) -> list[str]:
        self._system.invalidate_cache()
        try:
            listed = self._system.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        return [str(each).rstrip("/").rpartition("/")[2] for each in listed]

    def _at(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextmanager
    def _as_errors(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageIOError(
                f"{action} {self.url} failed: {error.strerror or error}; check the folder, its free "
                "space and access rights",
                url=self.url,
            ) from error


def make_absolute(url: str) -> str:
    """Returns a URL unchanged, and a path as an absolute one."""
    return url if "://" in url else str(Path(url).absolute())


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}…"
