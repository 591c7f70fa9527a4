"""Change notes as files in a folder, on the local disk or at a URL of fsspec.

    <url>/item/00000000000000000017.note
    <url>/item/base

A file is written under a temporary name and then renamed, so that readers never read an incomplete file.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sparring.adapter import open_file_system
from sparring.contracts import ChangeLog
from sparring.errors import StorageIOError

__all__ = ["FolderLog"]

_NOTE = re.compile(r"(\d{20})\.note\Z")


class FolderLog(ChangeLog):
    """Notes of one table in a folder.

    Args:
        url: Folder that contains one folder per table, a path or a URL of fsspec.
        table: Name of the table.

    Raises:
        InvalidArgumentError: fsspec does not support the scheme of the URL.
        StorageIOError: The file system cannot be reached.
    """

    def __init__(self, url: str, table: str) -> None:
        self._url = f"{url.rstrip('/')}/{table}"
        self._system, path = open_file_system(url)
        self._path = f"{path.rstrip('/')}/{table}"

    @property
    def place(self) -> str:
        return self._url

    def append(self, sequence: int, note: bytes, keep: int) -> None:
        with self._translate_errors("writing", f"note {sequence}"):
            self._put(_name(sequence), note)
            for each in self._sequences():
                if each <= sequence - keep:
                    with suppress(FileNotFoundError):
                        self._system.rm_file(f"{self._path}/{_name(each)}")

    def newest(self) -> int:
        with self._translate_errors("listing", "the notes"):
            return max(self._sequences(), default=0)

    def read(self, sequence: int) -> bytes | None:
        return self._get(_name(sequence))

    def write_base(self, base: bytes) -> None:
        with self._translate_errors("writing", "the base"):
            self._put("base", base)

    def read_base(self) -> bytes | None:
        return self._get("base")

    def close(self) -> None:
        """Does nothing, because no resource is open."""

    def _put(self, name: str, data: bytes) -> None:
        unfinished = f"{self._path}/{name}.{secrets.token_hex(4)}.unfinished"
        self._system.makedirs(self._path, exist_ok=True)
        self._system.pipe_file(unfinished, data)
        self._system.mv(unfinished, f"{self._path}/{name}")

    def _get(self, name: str) -> bytes | None:
        with self._translate_errors("reading", name):
            self._system.invalidate_cache(self._path)
            try:
                return bytes(self._system.cat_file(f"{self._path}/{name}"))
            except FileNotFoundError:
                return None

    def _sequences(self) -> list[int]:
        self._system.invalidate_cache(self._path)
        try:
            names = self._system.ls(self._path, detail=False)
        except FileNotFoundError:
            return []
        found = [_NOTE.search(str(each)) for each in names]
        return [int(each[1]) for each in found if each is not None]

    @contextmanager
    def _translate_errors(self, doing: str, what: str) -> Iterator[None]:
        """Converts errors of the file system and of its client into StorageIOError."""
        try:
            yield
        except Exception as error:
            raise StorageIOError(
                f"change notes at {self._url}: {doing} {what} failed ({type(error).__name__}: "
                f"{error}); check that folder, or set another one"
            ) from error


def _name(sequence: int) -> str:
    return f"{sequence:020d}.note"
