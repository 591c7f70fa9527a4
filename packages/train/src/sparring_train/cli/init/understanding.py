"""The table of what ``sparring init`` and ``sparring train FILE`` understood of a file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import islice
from typing import Any

import pyarrow
import pyarrow.compute as pc
from pyarrow import types
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparring_train.config.sections.table import TableData
from sparring_train.data.table.dataset import read_first_rows
from sparring_train.data.table.text.values import TextStyle

__all__ = ["ColumnRow", "Understanding", "describe_columns"]

_EXAMPLES = 2
_EXAMPLE_CHARACTERS = 24
_ROWS = 20
_MICROSECONDS = 1_000_000
# Units of times as whole numbers: smallest number, microseconds per unit.
_UNITS = ((10**17, 1 / 1000), (10**14, 1), (10**11, 1000), (10**8, _MICROSECONDS))


@dataclass(frozen=True, slots=True)
class ColumnRow:
    """One column of a file."""

    name: str
    role: str
    """`label`, `weight`, `user`, `item`, `id`, `list`, `number`, `time` or `left out`."""
    why: str
    examples: tuple[str, ...]
    num_distinct: int | None
    num_missing: int

    @property
    def counts(self) -> str:
        distinct = "" if self.num_distinct is None else f"{self.num_distinct:,} distinct"
        missing = f"{self.num_missing:,} missing" if self.num_missing else ""
        return ", ".join(filter(None, (distinct, missing)))


@dataclass(frozen=True, slots=True)
class Understanding:
    """What was understood of a file, and the configuration that trains on it."""

    path: str
    text: str
    """The configuration as YAML."""
    data: TableData
    columns: Sequence[ColumnRow]
    remarks: Sequence[str]
    """The most important remarks first."""
    num_read: int
    values: Mapping[str, Any]
    """Column → Arrow array of the rows that were read."""

    def show(self, console: Console) -> None:
        """Prints the table and the remarks."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("column", "role", "reason", "examples", "values"):
            table.add_column(name, overflow="fold")
        for each in self.columns:
            style = "dim" if each.role == "left out" else ""
            cells = (each.name, each.role, each.why, ", ".join(each.examples), each.counts)
            table.add_row(*(Text(cell, style=style) for cell in cells))
        console.print(table)
        for remark in self.remarks:
            console.print(Text(f"- {remark}"), soft_wrap=True)

    def as_json(self) -> dict[str, Any]:
        """Returns the table and the first rows as JSON types.

        Ids that are numbers are integers, times are microseconds since 1970 in UTC, and numbers are not
        yet transformed.
        """
        read = read_first_rows(self.data, _ROWS)
        rows = [
            _cells(
                read.get(each.name, self.values.get(each.name)), each.role, self.data.label_values
            )
            for each in self.columns
        ]
        data = self.data
        chosen = {
            "delimiter": data.delimiter,
            "decimal": data.decimal,
            "missing": data.missing_values,
        }
        return {
            "file": self.path,
            "format": chosen,
            "columns": [
                {
                    "name": each.name,
                    "role": each.role,
                    "examples": list(each.examples),
                    "distinct": each.num_distinct,
                    "missing": each.num_missing,
                    "why": each.why,
                }
                for each in self.columns
            ],
            "rows_read": self.num_read,
            "rows": [list(row) for row in zip(*rows, strict=True)] if rows else [],
            "remarks": list(self.remarks),
        }


def _cells(array: Any, role: str, meaning: Mapping[str, float]) -> list[Any]:
    if array is None:
        return [None] * _ROWS
    values = array.slice(0, _ROWS)
    if role == "time" and types.is_string(values.type):
        values = TextStyle().cast_times(values)
    if types.is_temporal(values.type):
        values = values.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64())
        return list(values.to_pylist())
    found = values.to_pylist()
    if role == "label" and meaning:
        return [None if each is None else meaning.get(str(each)) for each in found]
    if role == "time":
        return [None if each is None else as_microseconds(each) for each in found]
    if role in ("number", "label", "weight"):
        return [None if each is None or math.isnan(each) else float(each) for each in found]
    if role == "list":
        return [[str(one) for one in each or () if one is not None] for each in found]
    return [int(each) if isinstance(each, float) and each.is_integer() else each for each in found]


def as_microseconds(value: float) -> int:
    """Returns a time that is a number in microseconds since 1970: seconds, their parts, or 20240131."""
    if 19000101 <= value <= 21001231:
        year, day = divmod(int(value), 10_000)
        moment = datetime(year, day // 100, day % 100, tzinfo=timezone.utc)
        return round(moment.timestamp()) * _MICROSECONDS
    unit = next((unit for smallest, unit in _UNITS if value >= smallest), _MICROSECONDS)
    return round(value * unit)


def describe_columns(
    values: Mapping[str, Any],
    roles: Mapping[str, tuple[str, str]],
    counts: Mapping[str, int | None],
) -> Iterator[ColumnRow]:
    """Yields a row per column.

    Args:
        values: column → Arrow array of the rows that were read.
        roles: column → role and reason, in the order of the file.
        counts: column → number of distinct values of ids, if known.
    """
    for name, (role, why) in roles.items():
        array = values.get(name)
        if array is None:
            yield ColumnRow(name, role, why, (), None, 0)
            continue
        is_list = types.is_list(array.type) or types.is_large_list(array.type) or role == "list"
        distinct = None if is_list else counts.get(name)
        if distinct is None and not is_list:
            distinct = pc.count_distinct(array, mode="only_valid").as_py()
        yield ColumnRow(name, role, why, tuple(_examples(array)), distinct, array.null_count)


def _examples(array: Any) -> Iterator[str]:
    """Yields the first distinct values."""
    seen: dict[str, None] = {}
    if types.is_temporal(array.type):
        array = array.cast(pyarrow.timestamp("us"), safe=False)
    for each in islice(array.drop_null(), 200):
        value = each.as_py()
        text = str(value)
        if len(text) > _EXAMPLE_CHARACTERS:
            text = f"{text[: _EXAMPLE_CHARACTERS - 1]}…"
        seen.setdefault(text)
        if len(seen) == _EXAMPLES:
            break
    yield from seen
