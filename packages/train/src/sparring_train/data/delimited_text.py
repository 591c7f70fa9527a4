"""Text files of many lines, parsed by pyarrow in blocks of bounded size.

Both MovieLens CSV and Criteo TSV are plain: one record a line, one separator byte, no quotes.
pyarrow parses a block at once, and its errors name no line. A block that it refuses is therefore read
again line by line, which finds the first wrong field.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import pyarrow
from pyarrow import csv

from sparring.errors import DataError

__all__ = [
    "BLOCK_BYTES",
    "Column",
    "TextFormat",
    "is_hex_number",
    "is_whole_number",
    "malformed",
    "open_file",
    "read_blocks",
]

BLOCK_BYTES = 1 << 20
"""Small enough that a block and its columns stay in a core's cache; also the longest line."""

_SHOWN = 60
_HEX = re.compile(rb"[0-9a-fA-F]{1,8}")

Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a text file."""

    name: str
    type: Any
    """The pyarrow type that it is parsed as; an empty field is null."""
    is_valid: Callable[[bytes], bool]
    """Whether a field is one of this column. Only asked in blocks that were refused."""
    expected: str
    """For messages."""


@dataclass(frozen=True, slots=True)
class TextFormat:
    """Format of a line."""

    columns: tuple[Column, ...]
    separator: bytes
    alphabet: bytes
    """All bytes that fields are made of. pyarrow alone would also take blanks, ``0x1`` and ``inf``."""


def is_whole_number(field: bytes) -> bool:
    """Whether `field` is a decimal whole number that fits into 64 bits."""
    # Python refuses to convert texts of thousands of digits.
    is_whole = field.removeprefix(b"-").isdigit() and len(field) < 99
    return is_whole and -(2**63) <= int(field) < 2**63


def is_hex_number(field: bytes) -> bool:
    """Whether `field` is 1 to 8 hex digits of either case."""
    return _HEX.fullmatch(field) is not None


def malformed(
    path: Path, row: int, column: str | None, *, found: object, expected: str
) -> DataError:
    """A `DataError` that names file, row, column, what was found and what was expected."""
    where = f"{path}, row {row}" + (f", column {column!r}" if column else "")
    return DataError(
        f"{where}: found {_shown(found)}, expected {expected}; mend or remove this row",
        path=str(path),
        row=row,
        column=column,
        found=found,
        expected=expected,
    )


def _shown(found: object) -> str:
    if not isinstance(found, bytes):
        return str(found)
    text = found.decode("utf-8", "backslashreplace")
    if not text:
        return "nothing"
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """A file's bytes, unpacked where its name ends in ``.gz``.

    Raises:
        DataError: missing, a directory, not readable, or not gzip.
    """
    if path.is_dir():
        raise DataError(f"{path}: is a directory, expected a file; name one", path=str(path))
    try:
        with path.open("rb") as file:
            yield cast(IO[bytes], gzip.GzipFile(fileobj=file)) if path.suffix == ".gz" else file
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; check the path", path=str(path)) from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}", path=str(path)) from error


def read_blocks(
    file: IO[bytes],
    path: Path,
    text_format: TextFormat,
    decode: Callable[[Any], Decoded | None],
    *,
    first_row: int = 1,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[Decoded]:
    """The rest of `file` in blocks of whole lines; a last line need not end in a newline.

    Args:
        file: where to read on; its position is at the start of a line.
        path: for messages.
        text_format: what each line holds.
        decode: makes the result of a block of its `pyarrow.Table`; None, or a ValueError, where a
            value is none of its column's.
        first_row: the number of the line that comes next.
        block_bytes: how much to read at once, and the longest line allowed.

    Raises:
        DataError: a line has too few or too many fields, a wrong field, or is longer than a block.
    """
    row, rest, is_end = first_row, b"", False
    while not is_end:
        data = file.read(block_bytes)
        is_end = not data
        cut = data.rfind(b"\n") + 1
        text, rest = (rest + data[:cut], data[cut:]) if cut else (b"", rest + data)
        if is_end and rest:
            text, rest = rest + b"\n", b""
        if text:
            num_lines = text.count(b"\n")
            try:
                decoded = _parsed(text, num_lines, text_format, decode)
            except ValueError as error:  # ArrowInvalid is one.
                raise _refusal(text, path, row, text_format, str(error)) from error
            yield decoded
            row += num_lines
        if len(rest) > block_bytes:
            expected = f"a line of at most {block_bytes} bytes"
            raise malformed(path, row, None, found=rest[: 2 * _SHOWN], expected=expected)


def _parsed(
    text: bytes,
    num_lines: int,
    text_format: TextFormat,
    decode: Callable[[Any], Decoded | None],
) -> Decoded:
    """Result of a block; raises ValueError where any line of it is wrong."""
    names, separator = [column.name for column in text_format.columns], text_format.separator
    if text.translate(None, text_format.alphabet + separator + b"\r\n"):
        raise ValueError("bytes of no field")
    table = csv.read_csv(
        pyarrow.BufferReader(text),
        csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=names),
        csv.ParseOptions(delimiter=separator.decode(), quote_char=False, ignore_empty_lines=False),
        csv.ConvertOptions(
            column_types={column.name: column.type for column in text_format.columns},
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    # A return within a line ends it for pyarrow.
    decoded = decode(table) if table.num_rows == num_lines else None
    if decoded is None:
        raise ValueError("values that are none of their column's")
    return decoded


def _refusal(text: bytes, path: Path, row: int, text_format: TextFormat, reason: str) -> DataError:
    """The error for the first line that is wrong."""
    columns, separator = text_format.columns, text_format.separator
    for at, line in enumerate(text.split(b"\n")[:-1], row):
        fields = line.removesuffix(b"\r").split(separator)
        if len(fields) != len(columns):
            between = "tabs" if separator == b"\t" else "commas"
            expected = f"{len(columns)} fields with {between} between them"
            missing = columns[len(fields)].name if len(fields) < len(columns) else None
            found = f"{len(fields)} field{'s'[: len(fields) - 1]} in {_shown(line)}"
            if not line.strip(b"\r"):
                found, missing = "an empty line", columns[0].name
            return malformed(path, at, missing, found=found, expected=expected)
        for column, field in zip(columns, fields, strict=True):
            if not column.is_valid(field):
                return malformed(path, at, column.name, found=field, expected=column.expected)
    return malformed(path, row, None, found=reason, expected="lines that pyarrow can parse")
