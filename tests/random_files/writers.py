"""Writes the columns of a random file in its container, dialect and encoding."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .columns import Column
from .dimensions import CHARACTERS, JSON, LINES, NONE, Chosen

ENDS = {"lf": "\n", "crlf": "\r\n", NONE: "\n"}
ENCODINGS = {"utf-16": "utf-16", "latin-1": "latin-1", "utf-8": "utf-8", "utf-8-sig": "utf-8-sig"}


def write_file(stem: Path, columns: Sequence[Column], chosen: Chosen, dice: random.Random) -> Path:
    """Writes a file, or a folder of two, whose path begins with `stem`. Returns its path."""
    container = chosen["container"]
    if container == "parquet":
        return write_parquet(stem.with_suffix(".parquet"), columns)
    if container in LINES:
        path = stem.with_suffix(".txt" if container == "lines" else ".csv")
        return write_text(path, item_lines(columns, chosen), chosen)
    if container in JSON:
        return write_text(Path(f"{stem}.{container}"), json_lines(columns, dice), chosen)
    rows = [*zip(*(each.texts for each in columns), strict=True)]
    if container == "folder":
        stem.mkdir()
        half = len(rows) // 2
        write_text(
            stem / "part-0.csv", text_lines(columns, rows[:half], chosen), chosen, is_last=False
        )
        write_text(stem / "part-1.csv", text_lines(columns, rows[half:], chosen), chosen)
        return stem
    return write_text(Path(f"{stem}.{container}"), text_lines(columns, rows, chosen), chosen)


def text_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], chosen: Chosen
) -> list[str]:
    names = [each.name for each in columns]
    if chosen["header"] == "typed":
        names = [f"{each.name}:{recbole_type(each)}" for each in columns]
    head = [] if chosen["header"] == "absent" else [names]
    delimiter = CHARACTERS.get(chosen["delimiter"], chosen["delimiter"])
    lines = [spell_row(row, delimiter, chosen) for row in [*head, *rows]]
    return [f"sep={delimiter}", *lines] if chosen["first_line"] == "sep=" else lines


def recbole_type(column: Column) -> str:
    if column.roles[0] == "list":
        return "token_seq"
    is_number = column.roles[0] == "time" or any(isinstance(each, float) for each in column.values)
    return "float" if is_number else "token"


def spell_row(row: Sequence[str], delimiter: str, chosen: Chosen) -> str:
    if chosen["spaces"] == "around":
        return f" {delimiter} ".join(row)
    if chosen["quotes"] == NONE:
        if any(delimiter in each for each in row):
            raise AssertionError(f"a cell contains the delimiter {delimiter!r}: {row}")
        return delimiter.join(row)
    is_always = chosen["quotes"] == "all"
    return delimiter.join(
        '"' + each.replace('"', '""') + '"'
        if is_always or any(mark in each for mark in (delimiter, '"', "\n", "\r"))
        else each
        for each in row
    )


def write_text(path: Path, lines: list[str], chosen: Chosen, *, is_last: bool = True) -> Path:
    end = ENDS[chosen["line_end"]]
    text = end.join(lines) + end
    ending = chosen["ending"] if is_last else "newline"
    if ending == "no newline":
        text = text.removesuffix(end)
    elif ending == "blank lines":
        text += end * 2
    elif ending == "comment":
        text += f"# {len(lines)} lines exported{end}"
    elif ending == "total":
        delimiter = CHARACTERS.get(chosen["delimiter"], chosen["delimiter"])
        text += delimiter.join(["Total", *["600"] * (lines[-1].count(delimiter) and 2)]) + end
    content = text.encode(ENCODINGS[chosen["encoding"]])
    # The time of the archive is fixed, so that a seed always results in the same bytes.
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def json_lines(columns: Sequence[Column], dice: random.Random) -> list[str]:
    """Returns an object per row; missing values are null, or keys of later rows are absent."""
    omits = dice.random() < 0.3
    lines = []
    for number, row in enumerate(zip(*(each.natives for each in columns), strict=True)):
        cells: dict[str, Any] = {each.name: cell for each, cell in zip(columns, row, strict=True)}
        if omits and number > 0:
            cells = {name: cell for name, cell in cells.items() if cell is not None}
        lines.append(json.dumps(cells, ensure_ascii=dice.random() < 0.3))
    return lines


def item_lines(columns: Sequence[Column], chosen: Chosen) -> list[str]:
    """Returns a line per user: the user and all items; columns are ordered by user."""
    items: dict[str, list[str]] = {}
    for user, item in zip(*(each.texts for each in columns), strict=True):
        items.setdefault(user, []).append(item)
    if chosen["container"] == "lines":
        return [" ".join([user, *each]) for user, each in items.items()]
    head = ",".join(each.name for each in columns)
    return [head, *(f"{user},{' '.join(each)}" for user, each in items.items())]


def write_parquet(path: Path, columns: Sequence[Column]) -> Path:
    arrays = {each.name: arrow_array(each) for each in columns}
    pq.write_table(pa.table(arrays), path)
    return path


def arrow_array(column: Column) -> pa.Array:
    kind = column.arrow_type
    if kind.startswith("list"):
        return pa.array(column.natives, pa.list_(pa.int64() if "int64" in kind else pa.string()))
    if kind == "date32":
        return pa.array([each // 86_400_000_000 for each in column.natives], pa.int32()).cast(
            pa.date32()
        )
    if kind.startswith("timestamp"):
        zone = "UTC" if "UTC" in kind else None
        return pa.array(column.natives, pa.timestamp("ns" if "ns" in kind else "us", zone))
    return pa.array(column.natives, getattr(pa, kind if kind != "bool" else "bool_")())
