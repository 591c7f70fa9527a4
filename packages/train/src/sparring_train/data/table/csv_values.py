"""Conversion of texts in CSV files to numbers, times and ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

import pyarrow
import pyarrow.compute as pc
from pyarrow import csv

from sparring_train.data.table.decode import BadValue

__all__ = [
    "NO_NUMBER",
    "TEXTS",
    "Decimal",
    "Kind",
    "are_integers",
    "convert_texts",
    "is_number",
    "with_points",
    "without_utc",
]

Kind = Literal["integer", "unsigned", "hexadecimal", "string", "number", "time"]
Decimal = Literal[".", ","]

NO_NUMBER = pyarrow.array(csv.ConvertOptions().null_values)
"""Texts in columns of numbers that mean a missing value: `NA`, `NULL`, `nan` and others."""
_INTEGER = r"([+-]?[0-9]{1,20})(\.0+)?"
"""Includes integers with a fraction of zero, which pandas writes for columns of ids with nulls."""
_GROUPED = r"^\s*[+-]?[0-9]{1,3}(\.[0-9]{3})+(,[0-9]*)?\s*$"
_UTC = r"^(.*[0-9])(?:Z|[+-]00:?00)$"
_BOOLEANS: dict[str, float] = {"true": 1.0, "false": 0.0}
_TARGETS = {
    "integer": pyarrow.int64(),
    "unsigned": pyarrow.uint64(),
    "number": pyarrow.float64(),
    "time": pyarrow.timestamp("us"),
}
TEXTS: tuple[Kind, ...] = ("string", "hexadecimal")
"""Kinds of ids that `Decoder` computes from texts."""
_EXPECTED: dict[Kind, str] = {
    "integer": "a whole number, like the first rows or the data of the run (or set the column's type "
    "in data.types to string)",
    "time": "a time such as 2024-01-31 12:00:00, like the first row",
    "unsigned": "a whole number from 0 to 2^64 - 1, because of data.types",
}
_EXPECTED_NUMBER: dict[Decimal, str] = {
    ".": "a number (data.decimal, data.missing_values and data.label_values specify which other texts "
    "are accepted)",
    ",": "a number with a decimal comma, because of data.decimal",
}


def convert_texts(
    array: Any, kind: Kind, name: str, decimal: Decimal, bad: list[BadValue], rows: Any = None
) -> Any:
    """Converts texts to values of a kind. Texts that are not of this kind become null.

    Args:
        array: Arrow array of strings.
        kind: kind of the column.
        name: name of the column, for messages.
        decimal: decimal separator of numbers.
        bad: receives the texts of another kind, except those that mean a missing value.
        rows: ``(n,)``, the row of each element; None: one element per row.
    """
    if kind in TEXTS:
        return array
    target, texts = _TARGETS[kind], array
    if kind == "time":
        array = without_utc(array)
    if kind == "number" and decimal == ",":
        array = with_points(array)
    try:
        return array.cast(target)
    except pyarrow.ArrowInvalid:
        array = pc.if_else(pc.is_in(array, NO_NUMBER), None, array)
        if kind in ("integer", "unsigned"):
            whole = f"^{_integer(decimal)}$"
            array = pc.replace_substring_regex(array, whole, r"\1")
    try:
        return array.cast(target)
    except pyarrow.ArrowInvalid:
        values = []
        expected = _EXPECTED_NUMBER[decimal] if kind == "number" else _EXPECTED[kind]
        for at, each in enumerate(array):
            value = None
            try:
                value = pc.cast(each, target).as_py() if each.is_valid else None
            except pyarrow.ArrowInvalid:
                text = str(texts[at])
                if kind == "number" and text.lower() in _BOOLEANS:
                    value = _BOOLEANS[text.lower()]
                else:
                    row = at if rows is None else int(rows[at])
                    bad.append(BadValue(row, name, repr(text[:60]), expected))
            values.append(value)
        return pyarrow.array(values, target)


def with_points(array: Any) -> Any:
    """Replaces the decimal comma of numbers by a point.

    Points between groups of three digits are removed. A text with another point, such as ``1.5``, is
    ambiguous; it is changed so that it is not read as a number.
    """
    is_grouped = pc.match_substring_regex(array, _GROUPED)
    has_point = pc.match_substring(array, ".")
    whole = pc.replace_substring(array, ".", "")
    # A second point makes 1.5 invalid as a number.
    other = pc.binary_join_element_wise(array, ".", "")
    array = pc.if_else(is_grouped, whole, pc.if_else(has_point, other, array))
    return pc.replace_substring(array, ",", ".")


def without_utc(array: Any) -> Any:
    """Removes the time zone from times in UTC. Times with other zones are not accepted as times."""
    return pc.replace_substring_regex(array, _UTC, r"\1")


def are_integers(texts: Sequence[str], decimal: Decimal) -> bool:
    """Returns whether there is at least one text and all are integers of 64 bits."""
    pattern = re.compile(_integer(decimal))
    found = [pattern.fullmatch(each) for each in texts]
    return bool(found) and all(
        each is not None and -(2**63) <= int(each[1]) < 2**63 for each in found
    )


def _integer(decimal: Decimal) -> str:
    return _INTEGER if decimal == "." else _INTEGER.replace(r"\.", ",")


def is_number(text: str, decimal: Decimal) -> bool:
    """Returns whether a text is a number."""
    try:
        float(text.replace(",", ".") if decimal == "," else text)
    except ValueError:
        return False
    return True
