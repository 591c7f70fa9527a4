"""Determines how text files are written: encoding, form, delimiter, spaces, and a missing header."""

from __future__ import annotations

import codecs
import csv as python_csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sparring.errors import DataError
from sparring_train.config.sections.table import TableData
from sparring_train.data.table.files import TableFile
from sparring_train.data.table.text.encoding import TYPED_NAME, get_delimiter, translate_csv_errors
from sparring_train.data.table.text.values import is_number

__all__ = ["Dialect", "find_dialect"]

_DELIMITERS = (",", ";", "\t", "|", "::")
_BEGINNING_BYTES = 1 << 16
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_EVEN = 0.8
"""Minimum share of rows with as many fields as the first one."""
_VALUE = re.compile(
    r"\d{4}-\d\d-\d\d.*|\d{1,2}[./]\d{1,2}[./]\d{4}.*|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|https?://.*",
    re.IGNORECASE,
)
"""Texts that are no names of columns."""


@dataclass(slots=True)
class Dialect:
    """How text files are written."""

    keys: dict[str, Any] = field(default_factory=dict)
    """Keys of `data` that differ from their defaults."""
    remarks: list[str] = field(default_factory=list)
    header_doubt: str | None = None
    """Reason for which the first row may contain values; None if it contains names."""
    first_rows: list[list[str]] = field(default_factory=list)


def find_dialect(files: Sequence[TableFile], given: TableData) -> Dialect:
    """Returns the dialect of text files, which must be the same in all files.

    Args:
        files: at least one file.
        given: section with the keys that the user has set.

    Raises:
        DataError: a file cannot be read, or files have different dialects.
    """
    found = [_find(file, given) for file in files]
    for file, each in zip(files, found, strict=True):
        for key in ("delimiter", "encoding", "form", "skip_lines"):
            mine, first = (one.keys.get(key) for one in (each, found[0]))
            if mine != first:
                raise DataError(
                    f"{file.name}: found {key} {mine!r}, but {first!r} in {files[0].name}; write all "
                    "files in one way",
                    path=file.name,
                )
    result = found[0]
    result.keys |= {"trim": True} if any("trim" in each.keys for each in found) else {}
    return result


def _find(file: TableFile, given: TableData) -> Dialect:
    dialect = Dialect()
    lines, mark = _read_lines(file, given, dialect)
    if given.form is not None:
        dialect.keys["form"] = given.form
    if given.form == "json" or file.has_json or (lines and lines[0].startswith("{")):
        if not file.has_json:
            dialect.keys["form"] = "json"
        return dialect
    delimiter = given.delimiter or mark or _find_delimiter(lines, file, given)
    rows = [] if delimiter is None else _rows(lines, delimiter)
    if given.form is None:
        items = lines if delimiter is None else [" ".join(row) for row in rows[1:] if len(row) == 2]
        if _are_items(items):
            dialect.keys["form"] = "lines"
            dialect.remarks.append("each line is read as a user and all items, in order")
    if delimiter is None:
        if dialect.keys.get("form") == "lines":
            dialect.keys |= {"delimiter": " ", "column_names": ("user", "item")}
        return dialect
    if delimiter != file.delimiter:
        dialect.keys["delimiter"] = delimiter
    if dialect.remarks and dialect.keys.get("form") == "lines":
        return dialect
    dialect.first_rows = rows[:100]
    cells = [cell for row in rows for cell in row if cell]
    padded = sum(cell != cell.strip() for cell in cells)
    if given.trim or padded > 0.05 * len(cells):
        dialect.keys["trim"] = True
    if given.column_names is None and rows:
        dialect.header_doubt = _doubt_header(rows)
    return dialect


def _read_lines(
    file: TableFile, given: TableData, dialect: Dialect
) -> tuple[list[str], str | None]:
    """Returns the first lines of a file that are not skipped, and the delimiter that a line `sep=` names.
    Adds their keys to the dialect."""
    with translate_csv_errors(file), file.open() as stream:
        beginning = stream.read(_BEGINNING_BYTES)
    is_whole = len(beginning) < _BEGINNING_BYTES
    encoding = given.encoding
    if "encoding" not in given.model_fields_set:
        encoding = _find_encoding(beginning, is_whole)
    if encoding != "utf-8":
        dialect.keys["encoding"] = encoding
        dialect.remarks.append(f"read with the encoding {encoding}")
    reader = codecs.getincrementaldecoder("utf-8-sig" if encoding == "utf-8" else encoding)
    lines = reader("replace").decode(beginning).splitlines()
    lines = lines if is_whole else lines[:-1] or lines
    skipped, mark = given.skip_lines, None
    if lines and (first := re.fullmatch(r'"?sep=(.)"?', lines[0].strip("\ufeff"))):
        skipped, mark = max(skipped, 1), first[1]
    if skipped:
        dialect.keys["skip_lines"] = skipped
    return [each for each in lines[skipped:] if each.strip()], mark


def _find_encoding(beginning: bytes, is_whole: bool) -> str:
    for mark, name in _MARKS:
        if beginning.startswith(mark):
            return name
    if beginning.count(0) > len(beginning) // 4:
        return "utf-16-le" if beginning[1:2] == b"\0" else "utf-16-be"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(beginning, final=is_whole)
    except UnicodeDecodeError:
        return "latin-1"
    return "utf-8"


def _rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    if len(delimiter) > 1:
        return [each.split(delimiter) for each in lines]
    try:
        text = io.StringIO("\n".join(lines))
        return [each for each in python_csv.reader(text, delimiter=delimiter) if each]
    except python_csv.Error:
        return []


def _find_delimiter(lines: Sequence[str], file: TableFile, given: TableData) -> str | None:
    """Returns the delimiter with which most rows have as many fields as the first one; None if there is
    none."""
    by_name = get_delimiter(file, given)
    found: dict[str, tuple[bool, bool, int]] = {}
    for delimiter in (*_DELIMITERS, " "):
        rows = _rows(lines, delimiter)
        num_fields = len(rows[0]) if rows else 0
        is_even = sum(len(each) == num_fields for each in rows) >= _EVEN * len(rows)
        # Only a space needs even rows, because texts contain spaces.
        if num_fields > 1 and (is_even or delimiter != " ") and not (delimiter == " " and found):
            found[delimiter] = (is_even, delimiter == by_name, num_fields)
    if found:
        return max(found, key=lambda each: found[each])
    return None if lines and _are_items(lines) else by_name


def _are_items(lines: Sequence[str]) -> bool:
    """Returns whether each line seems to contain a user, who has no other line, and all items."""
    parts = [each.split() for each in lines]
    sizes = {len(each) for each in parts}
    return len(sizes) > 1 and min(sizes) > 1 and len({each[0] for each in parts}) == len(parts)


def _doubt_header(rows: Sequence[Sequence[str]]) -> str | None:
    first = [each.strip() for each in rows[0]]
    if all(TYPED_NAME.fullmatch(each) for each in first):
        return None
    values = [each for each in first if each and (is_number(each, ",") or _VALUE.fullmatch(each))]
    if values:
        return f"the first row contains {values[0]!r}, which is no name of a column"
    below = list(zip(*(row for row in rows[1:] if len(row) == len(first)), strict=True))
    for place, each in enumerate(first):
        if each and below and each in {cell.strip() for cell in below[place]}:
            return f"the first row contains {each!r}, which is also a value of a further row"
    return None
