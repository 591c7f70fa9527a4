"""Reads a random file with a parser of exactly the chosen dialect, for tests of the generator."""

from __future__ import annotations

import ast
import csv
import gzip
import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from .dimensions import CHARACTERS, JSON, LINES, NONE, Chosen
from .generator import ColumnTruth, Truth

UNITS = {"seconds": 10**6, "milliseconds": 10**3, "microseconds": 1, "float seconds": 10**6}
PATTERNS = {
    "iso": "%Y-%m-%d %H:%M:%S", "iso T": "%Y-%m-%dT%H:%M:%S", "12 hours": "%m/%d/%Y %I:%M:%S %p",
    "dd.mm.yyyy": "%d.%m.%Y", "dd.mm.yyyy hh:mm": "%d.%m.%Y %H:%M", "mm/dd/yyyy": "%m/%d/%Y",
    "ambiguous dd/mm/yyyy": "%d/%m/%Y", "date": "%Y-%m-%d", "compact date": "%Y%m%d",
    "iso Z": "%Y-%m-%dT%H:%M:%S.%fZ",
}  # fmt: skip
YES = ("1", "True", "true", "yes", "Y")


def read_rows(truth: Truth) -> list[list[Any]]:
    """Returns the parsed values of each row, and fails where a cell has another form than it should."""
    chosen = truth.chosen
    names = [each.name for each in truth.columns]
    if chosen["container"] == "parquet":
        table = pq.read_table(truth.path)
        assert table.column_names == names
        cells = [[*row] for row in zip(*map(python_values, table.columns), strict=True)]
    elif chosen["container"] in JSON:
        objects = [json.loads(line) for line in read_lines(truth.path, chosen)]
        cells = [[each.get(name) for name in names] for each in objects]
    elif chosen["container"] in LINES:
        cells = events(read_lines(truth.path, chosen), chosen)
    else:
        parts = sorted(truth.path.iterdir()) if truth.path.is_dir() else [truth.path]
        cells = [row for part in parts for row in read_table(part, names, chosen)]
    return [
        [parse(*each, chosen) for each in zip(row, truth.columns, strict=True)] for row in cells
    ]


def python_values(column: pa.ChunkedArray) -> list[Any]:
    is_exact = pa.types.is_timestamp(column.type) and column.type.unit == "ns"
    if is_exact:
        column = column.cast(pa.timestamp("us"), safe=False)
    return list(column.to_pylist())


def read_lines(path: Path, chosen: Chosen) -> list[str]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = content.decode(chosen["encoding"])
    end = "\r\n" if chosen["line_end"] == "crlf" else "\n"
    assert ("\r" in text) == (end == "\r\n")
    return [each for each in text.split(end) if each and not each.startswith(("# ", "Total"))]


def events(lines: list[str], chosen: Chosen) -> list[list[str]]:
    is_csv = chosen["container"] == "lines.csv"
    pairs = [each.split("," if is_csv else " ", 1) for each in lines[is_csv:]]
    return [[user, item] for user, items in pairs for item in items.split(" ")]


def read_table(path: Path, names: list[str], chosen: Chosen) -> list[list[str]]:
    delimiter = CHARACTERS.get(chosen["delimiter"], chosen["delimiter"])
    lines = read_lines(path, chosen)
    if chosen["first_line"] == "sep=":
        assert lines.pop(0) == f"sep={delimiter}"
    if chosen["quotes"] == NONE:
        rows = [each.split(delimiter) for each in lines]
    else:
        rows = [*csv.reader(lines, delimiter=delimiter, strict=True)]
    if chosen["spaces"] == "around":
        rows = [[cell.strip() for cell in row] for row in rows]
    if chosen["header"] != "absent":
        found = rows.pop(0)
        assert [
            each.split(":")[0] if chosen["header"] == "typed" else each for each in found
        ] == names
    return rows


def parse(cell: Any, column: ColumnTruth, chosen: Chosen) -> Any:
    """Returns the value of a cell of a column with a known role and form."""
    missing = {"empty": ""}.get(chosen["missing"], chosen["missing"])
    role = column.roles[0]
    if role == "list":
        return parse_list(cell, chosen["list"])
    if cell is None or cell == missing:
        return None
    if role == "time":
        return parse_time(cell, chosen["time"])
    if role == "label" and not chosen["label"].endswith("5"):
        return float(str(cell) in YES)
    if role in ("label", "number"):
        return parse_number(str(cell), chosen["locale"])
    if isinstance(column.values[0], str):
        return cell
    return int(float(cell)) if str(cell).endswith(".0") else int(cell)


def parse_list(cell: Any, kind: str) -> list[str]:
    if kind == "native" or kind.startswith(("json", "python")):
        items = (
            cell
            if kind == "native"
            else (json.loads if kind.startswith("json") else ast.literal_eval)(cell)
        )
        return [str(each) for each in items]
    return cell.split(" " if kind == "space" else kind) if cell else []


def parse_number(text: str, locale: str) -> float:
    text = text.strip("$%€EUR ")
    return float(
        text.replace(".", "").replace(",", ".") if locale == "de" else text.replace(",", "")
    )


def parse_time(cell: Any, kind: str) -> int:
    if kind == "nanoseconds":
        return int(cell) // 1000
    if kind in UNITS:
        return round(float(cell) * UNITS[kind]) if "." in str(cell) else int(cell) * UNITS[kind]
    if not isinstance(cell, str | int):
        moment = datetime.fromisoformat(cell.isoformat())
    elif kind.startswith("iso offset"):
        moment = datetime.fromisoformat(str(cell))
    else:
        moment = datetime.strptime(str(cell), PATTERNS[kind])
    moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // (datetime.resolution)
