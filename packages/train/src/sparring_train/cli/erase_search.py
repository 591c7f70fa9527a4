"""Searches files for erased ids and reports them, without changing the files.

An id is found as text, including its escaped forms in JSON, HTML and URLs, and as key, in binary form or
as digits. Compressed files, archives and columns of Parquet are decoded.
"""

from __future__ import annotations

import bz2
import gzip
import html
import json
import lzma
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any
from urllib.parse import quote

import fsspec  # type: ignore[import-untyped]  # it ships no types
import numpy as np

__all__ = ["SearchedFile", "SearchedIds", "search_files"]

_CHUNK_BYTES = 1 << 20
_MIN_DIGITS = 7
"""Keys with fewer digits are not searched as digits, because they occur in nearly every file."""
_MIN_KEY = 1 << 40
"""Smaller keys are not searched in binary form, because most of their bytes are zeros."""
_MIN_TEXT = 6
"""Texts with fewer bytes are found only as whole words."""
_MAX_NESTED = 4
"""Maximum depth of archives in archives."""
_WORD = rb"[0-9A-Za-z_\x80-\xff]"


@dataclass(frozen=True, slots=True)
class SearchedFile:
    """Result for one file.

    Args:
        path: path or URL.
        num_ids: number of listed ids that it contains.
        problem: why a part could not be decoded. Its undecoded bytes were searched nevertheless.
    """

    path: str
    num_ids: int
    problem: str = ""


class SearchedIds:
    """Patterns of the ids to search for.

    Args:
        ids: each listed text → the keys that it may mean.
    """

    def __init__(self, ids: Mapping[str, Sequence[int]]) -> None:
        self._ids = list(ids)
        self._patterns = [_pattern(text, keys) for text, keys in ids.items()]
        self._keys = {
            key: number for number, keys in enumerate(ids.values()) for key in keys if _is_rare(key)
        }
        self._any_key = np.array(sorted(self._keys), np.int64)
        longest = max(map(len, (quote(each) for each in ids)), default=0)
        self.overlap = 6 * longest + 32
        """Number of bytes at the end of a chunk that are searched again with the next one."""

    def __bool__(self) -> bool:
        return any(each is not None for each in self._patterns)

    def in_bytes(self, content: bytes) -> set[int]:
        """Returns the indices of the ids that bytes contain."""
        return {
            number
            for number, pattern in enumerate(self._patterns)
            if pattern is not None and pattern.search(content)
        }

    def in_integers(self, values: Any) -> set[int]:
        """Returns the indices of the ids whose keys an integer array contains."""
        found = np.asarray(values).astype(np.int64, copy=False)
        return {self._keys[int(each)] for each in np.intersect1d(found, self._any_key)}


def _is_rare(key: int) -> bool:
    return not -_MIN_KEY < key < _MIN_KEY


def _pattern(text: str, keys: Sequence[int]) -> re.Pattern[bytes] | None:
    is_number = len(keys) > 1
    words = []
    if not is_number:
        written = {text, json.dumps(text)[1:-1], html.escape(text), quote(text)}
        for each in sorted(written):
            escaped = re.escape(each.encode())
            is_short = len(each.encode()) < _MIN_TEXT
            words.append(b"(?<!%s)%s(?!%s)" % (_WORD, escaped, _WORD) if is_short else escaped)
    for key in keys:
        for digits in {str(key), str(key % 2**64)}:
            if len(digits.lstrip("-")) >= _MIN_DIGITS:
                words.append(rb"(?<![0-9])%s(?![0-9])" % re.escape(digits.encode()))
        if _is_rare(key):
            words += [re.escape(np.int64(key).tobytes()), re.escape(np.int64(key).tobytes()[::-1])]
    return re.compile(b"|".join(words), re.DOTALL) if words else None


_Open = Callable[[], AbstractContextManager[Any]]
"""Opens a file at its start."""


@dataclass(slots=True)
class _Found:
    ids: set[int] = field(default_factory=set)
    problem: str = ""


def search_files(
    places: Sequence[str], wanted: SearchedIds, left_out: Sequence[str] = ()
) -> Iterator[SearchedFile]:
    """Searches files, and all files in folders.

    Args:
        places: paths or URLs of fsspec; missing ones are skipped.
        wanted: the ids.
        left_out: paths or URLs of folders that are not searched.

    Raises:
        OSError: a file cannot be read.
    """
    skipped = [_parse_path(each) for each in left_out]
    seen = set()
    for place in places:
        system, path = fsspec.core.url_to_fs(place)
        names = [path] if system.isfile(path) else system.find(path)
        for name in sorted(names):
            url = system.unstrip_protocol(name)
            if url in seen or any(name.startswith(f"{each}/") for each in skipped):
                continue
            seen.add(url)
            found = _Found()
            _search(partial(system.open, name, "rb"), wanted, found, 0)
            yield SearchedFile(url.removeprefix("file://"), len(found.ids), found.problem)


def _parse_path(url: str) -> str:
    path: str = fsspec.core.url_to_fs(url)[1]
    return path.rstrip("/")


def _search(opened: _Open, wanted: SearchedIds, found: _Found, depth: int) -> None:
    """Searches the bytes of a file, and the decoded contents."""
    with opened() as file:
        head = chunk = file.read(_CHUNK_BYTES)
        tail = b""
        while chunk:
            found.ids |= wanted.in_bytes(tail + chunk)
            tail = (tail + chunk)[-wanted.overlap :]
            chunk = file.read(_CHUNK_BYTES)
    if depth == _MAX_NESTED:
        return
    try:
        if head.startswith(b"PAR1"):
            with opened() as file:
                _search_parquet(file, wanted, found)
        elif head.startswith(b"PK\x03\x04"):
            with opened() as file, zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    _search(partial(archive.open, name), wanted, found, depth + 1)
        for magic, decompress in _DECOMPRESS.items():
            if head.startswith(magic):
                _search(partial(_decompressed, opened, decompress), wanted, found, depth + 1)
    # Decoders raise arbitrary exceptions for damaged or encrypted files.
    except Exception as error:
        found.problem = f"{type(error).__name__}: {error}"


@contextmanager
def _decompressed(
    opened: _Open, decompress: Callable[[IO[bytes]], AbstractContextManager[Any]]
) -> Iterator[Any]:
    with opened() as file, decompress(file) as stream:
        yield stream


def _zstd(file: IO[bytes]) -> AbstractContextManager[Any]:
    import pyarrow

    stream: AbstractContextManager[Any] = pyarrow.CompressedInputStream(
        pyarrow.PythonFile(file), "zstd"
    )
    return stream


_DECOMPRESS: Mapping[bytes, Callable[[IO[bytes]], AbstractContextManager[Any]]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _zstd,
}
"""First bytes of compressed files → function that decompresses them."""


def _search_parquet(file: IO[bytes], wanted: SearchedIds, found: _Found) -> None:
    from pyarrow import parquet

    opened = parquet.ParquetFile(file)
    for batch in opened.iter_batches():
        for column in batch.columns:
            _search_column(column, wanted, found)


def _search_column(column: Any, wanted: SearchedIds, found: _Found) -> None:
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        _search_column(column.dictionary, wanted, found)
    elif types.is_struct(kind):
        for each in column.flatten():
            _search_column(each, wanted, found)
    elif types.is_map(kind):
        _search_column(column.keys, wanted, found)
        _search_column(column.items, wanted, found)
    elif types.is_nested(kind):
        _search_column(column.flatten(), wanted, found)
    elif types.is_integer(kind):
        values = column.drop_null().to_numpy(zero_copy_only=False)
        found.ids |= wanted.in_integers(values)
    elif not (types.is_floating(kind) or types.is_temporal(kind) or types.is_boolean(kind)):
        for value in column.unique().to_pylist():
            content = value if isinstance(value, bytes) else str(value).encode()
            found.ids |= wanted.in_bytes(content)
