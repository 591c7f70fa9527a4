"""Text files of many lines, read in blocks of bounded size and cut into fields.

Both MovieLens CSV and Criteo TSV are plain: one record a line, one separator byte, no quotes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np

from sparring.errors import DataError
from sparring_train.data.fields import PADDING, Fields, padded

__all__ = ["BLOCK_BYTES", "LineFormat", "TextBlock", "malformed", "open_file", "read_blocks"]

BLOCK_BYTES = 1 << 20
"""Small enough that a block and its fields stay in a core's cache; also the longest line."""

_NEWLINE = ord("\n")
_RETURN = ord("\r")
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Format of a line: its columns, and the byte between them."""

    columns: tuple[str, ...]
    separator: bytes


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole lines of one file."""

    path: Path
    first_row: int
    """Line number in the file, from 1, of the block's first line."""
    fields: Fields
    """Shape ``(lines, columns)``."""

    def __len__(self) -> int:
        return len(self.fields.starts)

    def refusal(self, line: int, column: int, name: str, expected: str) -> DataError:
        """The error for one field; `line` counts from 0 in this block."""
        found = self.fields.text((line, column))
        return malformed(self.path, self.first_row + line, name, found=found, expected=expected)


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
        raise DataError(f"{path}: is a directory, expected a file", path=str(path))
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
    line_format: LineFormat,
    *,
    first_row: int = 1,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[TextBlock]:
    """The rest of `file` as blocks of whole lines; a last line need not end in a newline.

    Args:
        file: where to read on; its position is at the start of a line.
        path: for messages.
        line_format: what each line holds.
        first_row: the number of the line that comes next.
        block_bytes: how much to read at once, and the longest line allowed.

    Raises:
        DataError: a line has too few or too many fields, or is longer than a block.
    """
    row, rest = first_row, b""
    while data := file.read(block_bytes):
        cut = data.rfind(b"\n") + 1
        if cut:
            for block in _cut_into_fields(rest + data[:cut], path, row, line_format):
                row += len(block)
                yield block
            rest = data[cut:]
        else:
            rest += data
        if len(rest) > block_bytes:
            expected = f"a line of at most {block_bytes} bytes"
            raise malformed(path, row, None, found=rest[: 2 * _SHOWN], expected=expected)
    if rest:
        yield from _cut_into_fields(rest + b"\n", path, row, line_format)


def _cut_into_fields(
    text: bytes, path: Path, row: int, line_format: LineFormat
) -> Iterator[TextBlock]:
    buffer = padded(text)
    columns = len(line_format.columns)
    is_newline = buffer == _NEWLINE
    ends = np.flatnonzero(is_newline | (buffer == line_format.separator[0]))
    num_lines = int(np.count_nonzero(is_newline))
    if ends.size != num_lines * columns or not is_newline[ends[columns - 1 :: columns]].all():
        yield from _lines_before_refusal(text, path, row, line_format)
        return
    starts = np.append(PADDING, ends[:-1] + 1)
    fields = Fields(buffer, *(each.reshape(num_lines, columns) for each in (starts, ends)))
    last = fields[:, -1]
    last.ends[...] -= (buffer[last.ends - 1] == _RETURN) & ~last.is_empty
    yield TextBlock(path, row, fields)


def _lines_before_refusal(
    text: bytes, path: Path, row: int, line_format: LineFormat
) -> Iterator[TextBlock]:
    """The lines before the first wrong one, whose own errors come first; then the refusal."""
    columns = line_format.columns
    lines = text.split(b"\n")
    counts = [line.count(line_format.separator) + 1 for line in lines]
    wrong = next(at for at, count in enumerate(counts) if count != len(columns))
    if wrong:
        yield from _cut_into_fields(b"\n".join(lines[:wrong]) + b"\n", path, row, line_format)
    content, num_found = lines[wrong], counts[wrong]
    between = "tabs" if line_format.separator == b"\t" else "commas"
    expected = f"{len(columns)} fields with {between} between them"
    missing = columns[num_found] if num_found < len(columns) else None
    if content.strip(b"\r"):
        plural = "field" if num_found == 1 else "fields"
        found = f"{num_found} {plural} in {_shown(content)}"
    else:
        found, missing = "an empty line", columns[0]
    raise malformed(path, row + wrong, missing, found=found, expected=expected)
