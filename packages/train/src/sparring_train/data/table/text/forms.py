"""Text files with an object, or a user and all items, per line, as blocks of rows as in CSV."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal

import pyarrow

from sparring.errors import DataError
from sparring_train.config.sections.table import TableData
from sparring_train.data.table.decode import BadValue, make_bad_row_error
from sparring_train.data.table.files import TableFile
from sparring_train.data.table.text.encoding import clean_names, get_delimiter, open_text

__all__ = ["POSITION", "find_keys", "get_form", "read_json", "read_lines", "read_names_of_lines"]

POSITION = "position"
"""Column of the position of an item in its line."""


def get_form(file: TableFile, data: TableData) -> Literal["rows", "json", "lines"]:
    """Returns the form of a file."""
    return data.form or ("json" if file.has_json else "rows")


def find_keys(file: TableFile, data: TableData, wanted: Sequence[str], num_rows: int) -> list[str]:
    """Returns the keys of objects, in order: keys of `num_rows`, and of further ones until each wanted
    key is found."""
    keys: dict[str, None] = {}
    missing = set(wanted)
    with open_text(file, data) as stream:
        for number, line in enumerate(filter(bytes.strip, stream)):
            if number >= num_rows and not missing:
                break
            found = _parse(line)
            if isinstance(found, dict):
                keys.update(dict.fromkeys(found))
                missing.difference_update(found)
    return [*keys]


def read_json(
    file: TableFile, data: TableData, columns: Sequence[str], block_bytes: int, broken: Any
) -> Iterator[Any]:
    """Yields blocks of texts of the objects in a file. A key that an object lacks is null."""
    missing = {"", *data.missing_values}
    with open_text(file, data) as stream:
        row = data.skip_lines
        while lines := stream.readlines(block_bytes):
            texts: list[list[str | None]] = [[] for _ in columns]
            for line in lines:
                row += 1
                if not line.strip():
                    continue
                found = _parse(line)
                if not isinstance(found, dict):
                    text = line.decode("utf-8", "replace")
                    _add_broken(
                        file, data, row, f"{text[:60]!r}", "an object of JSON on each line", broken
                    )
                    continue
                for name, column in zip(columns, texts, strict=True):
                    value = _spell(found.get(name))
                    column.append(None if value in missing else value)
            yield _make_block(columns, texts)


def read_names_of_lines(file: TableFile, data: TableData) -> list[str]:
    """Returns the names of the user, the item and its position."""
    names = data.column_names
    if names is None:
        with open_text(file, data) as stream:
            names = tuple(_split(stream.readline().decode("utf-8-sig"), file, data))
    if len(names) != 2:
        raise DataError(
            f"{file.name}: found the names {', '.join(names)} for lines of a user and all items, "
            "expected the name of users and the one of items; add a header, or set "
            "data.column_names: [user, item]",
            path=file.name,
        )
    return [*clean_names(names, data), POSITION]


def read_lines(
    file: TableFile, data: TableData, names: Sequence[str], columns: Sequence[str], block_bytes: int,
    broken: Any,
) -> Iterator[Any]:  # fmt: skip
    """Yields blocks of texts of the users, items and positions in a file, one row per item."""
    missing = {"", *data.missing_values}
    with open_text(file, data) as stream:
        row = data.skip_lines
        if data.column_names is None:
            row += len(list(islice(stream, 1)))
        while lines := stream.readlines(block_bytes):
            texts: dict[str, list[str]] = {each: [] for each in names}
            for line in lines:
                row += 1
                parts = _split(line.decode("utf-8-sig" if row == 1 else "utf-8"), file, data)
                items = [each for each in parts[1:] if each not in missing]
                if parts and not items:
                    _add_broken(file, data, row, repr(parts[0][:60]), "a user and items", broken)
                for name, values in zip(
                    names,
                    (parts[:1] * len(items), items, map(str, range(1, len(items) + 1))),
                    strict=True,
                ):
                    texts[name].extend(values)
            yield _make_block(columns, [texts[each] for each in columns])


def _split(line: str, file: TableFile, data: TableData) -> list[str]:
    user, _, items = line.strip().partition(get_delimiter(file, data))
    separator = data.separator if isinstance(data.separator, str) else " "
    return [each.strip() for each in (user, *items.split(separator)) if each.strip()]


def _make_block(columns: Sequence[str], texts: Sequence[Sequence[str | None]]) -> Any:
    arrays = [pyarrow.array(each, pyarrow.string()) for each in texts]
    return pyarrow.RecordBatch.from_arrays(arrays, names=list(columns))


def _add_broken(
    file: TableFile, data: TableData, row: int, found: str, expected: str, broken: Any
) -> None:
    error = make_bad_row_error(file.name, row, BadValue(0, None, found, expected))
    if data.bad_rows != "skip":
        raise error
    broken.first = broken.first or error
    broken.count += 1


def _parse(line: bytes) -> Any:
    # Numbers keep their text, so that they are converted as in CSV.
    try:
        return json.loads(line, parse_int=str, parse_float=str, parse_constant=str)
    except ValueError:
        return None


def _spell(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False)
