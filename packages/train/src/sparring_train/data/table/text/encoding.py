"""Text files as UTF-8 with delimiters of one character, which the CSV parser requires."""

from __future__ import annotations

import codecs
import csv as python_csv
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow

from sparring.errors import DataError
from sparring_train.config.sections.table import TableData
from sparring_train.data.table.files import TableFile

__all__ = [
    "HEADER_BYTES",
    "TYPED_NAME",
    "clean_names",
    "find_parser_delimiter",
    "get_delimiter",
    "open_text",
    "parse_rows",
    "read_header",
    "translate_csv_errors",
]

HEADER_BYTES = 1 << 20
_UNIT = "\x1f"
"""Replaces delimiters of two characters."""
TYPED_NAME = re.compile(r"(.+):(token|float|token_seq|float_seq)", re.DOTALL)
"""A name with the type that RecBole adds."""


def get_delimiter(file: TableFile, data: TableData) -> str:
    """Returns the separator of values."""
    return data.delimiter or file.delimiter


def find_parser_delimiter(file: TableFile, data: TableData) -> str:
    """Returns the separator of values in the text of `open_text`."""
    found = get_delimiter(file, data)
    return found if len(found) == 1 else _UNIT


@contextmanager
def open_text(file: TableFile, data: TableData) -> Iterator[Any]:
    """Opens a file in UTF-8 after the lines that are skipped."""
    with translate_csv_errors(file), file.open() as opened:
        stream = opened
        delimiter = get_delimiter(file, data)
        if codecs.lookup(data.encoding).name != "utf-8" or len(delimiter) > 1:
            stream = io.BufferedReader(_Utf8(opened, data.encoding, delimiter), HEADER_BYTES)
        for _ in range(data.skip_lines):
            stream.readline()
        yield stream


def read_header(file: TableFile, data: TableData) -> list[str]:
    """Returns the names of the columns as they are in the file.

    Raises:
        DataError: the file cannot be read, has no header, or has the wrong delimiter.
    """
    with open_text(file, data) as stream:
        text = stream.readline(HEADER_BYTES).decode("utf-8-sig", "replace")
    row, delimiter = 1 + data.skip_lines, get_delimiter(file, data)
    names: list[str]
    try:
        names = next(_parse([text], file, data), [])
    except python_csv.Error as error:
        raise DataError(
            f"{file.name}, row {row}: the header cannot be read ({error}); expected names of columns and "
            "a line break; fix the header",
            path=file.name,
            row=row,
        ) from None
    if not names:
        raise DataError(
            f"{file.name}, row {row}: found nothing, expected a header with the names of columns; add "
            "it, or remove the file",
            path=file.name,
            row=row,
        )
    other = next((each for each in ("\t", ";", ",", "|", "::") if each in names[0]), None)
    if len(names) == 1 and other is not None:
        raise DataError(
            f"{file.name}, row {row}: found one column, {names[0][:60]!r}, expected {delimiter!r} "
            f"between values; set data.delimiter: {json.dumps(other)}",
            path=file.name,
            row=row,
        )
    return names


def clean_names(names: Sequence[str], data: TableData, wanted: Sequence[str] = ()) -> list[str]:
    """Returns names without spaces, if `data.trim` is set, and without the types of RecBole, if all have
    one and no column is wanted by its whole name."""
    cleaned = [each.strip() if data.trim else each for each in names]
    typed = [TYPED_NAME.fullmatch(each) for each in cleaned]
    if not all(typed) or any(each in cleaned for each in wanted):
        return cleaned
    return [each[1] for each in typed if each]


def parse_rows(
    stream: Any, file: TableFile, data: TableData, **options: Any
) -> Iterator[list[str]]:
    """Yields the rows of a text that may contain errors, except empty rows."""
    lines = io.TextIOWrapper(stream, "utf-8", "replace", newline="")
    yield from filter(None, _parse(lines, file, data, **options))


def _parse(lines: Any, file: TableFile, data: TableData, **options: Any) -> Any:
    if len(get_delimiter(file, data)) > 1:
        options["quoting"] = python_csv.QUOTE_NONE
    return python_csv.reader(lines, delimiter=find_parser_delimiter(file, data), **options)


class _Utf8(io.RawIOBase):
    """Converts a stream to UTF-8, and delimiters of two characters to one."""

    def __init__(self, stream: Any, encoding: str, delimiter: str) -> None:
        self._stream, self._delimiter = stream, delimiter if len(delimiter) > 1 else ""
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._rest = ""
        self._is_checked = encoding.startswith("utf")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        content = b""
        while not content:
            # A character has at most 3 bytes in UTF-8 per byte of another encoding.
            block = self._stream.read(max(len(target) // 4, 1))
            if not self._is_checked and not block.isascii():
                self._reject_utf8(block)
            try:
                text = self._rest + self._decoder.decode(block, final=not block)
            except UnicodeError as error:
                raise OSError(f"{error}; set data.encoding") from error
            self._rest = ""
            if self._delimiter:
                if _UNIT in text:
                    raise OSError("found the character U+001F, which replaces a delimiter of two")
                if block:
                    kept = text.rstrip(self._delimiter[0])
                    text, self._rest = kept, text[len(kept) :]
                text = text.replace(self._delimiter, _UNIT)
            content = text.encode()
            if not block:
                break
        target[: len(content)] = content
        return len(content)

    def _reject_utf8(self, block: bytes) -> None:
        """Raises if a text in UTF-8 would be read with an encoding that accepts any byte."""
        self._is_checked = True
        with suppress(UnicodeError):
            codecs.getincrementaldecoder("utf-8")().decode(block)
            raise OSError("found UTF-8, but another data.encoding; set data.encoding: utf-8")


@contextmanager
def translate_csv_errors(file: TableFile) -> Iterator[None]:
    try:
        yield
    except (pyarrow.ArrowException, OSError, EOFError, UnicodeError, zlib.error) as error:
        # Ids are hashes of UTF-8. Other encodings would give ids that no lookup of the string finds.
        advice = "check or replace the file"
        if "UTF8" in str(error) or isinstance(error, UnicodeError):
            advice = "write the file as UTF-8, or set data.encoding"
        raise DataError(
            f"reading {file.name} as CSV failed: {error}; {advice}", path=file.name
        ) from error
