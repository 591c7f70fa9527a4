"""Conversion of texts in CSV files to numbers, times and ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow
import pyarrow.compute as pc
from pyarrow import csv

from sparring_train.config.sections.table import TableData
from sparring_train.data.table.decode import BadValue

__all__ = [
    "NO_NUMBER",
    "TEXTS",
    "Decimal",
    "Kind",
    "TextStyle",
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
_INTEGER = r"([+-]?[0-9]{1,20})([.,]0{1,2}|\.0+)?"
"""Includes integers with a fraction of zero, which pandas writes for columns of ids with nulls."""
_GROUPED = r"^\s*[+-]?[0-9]{1,3}(\.[0-9]{3})+(,[0-9]*)?\s*$"
_UTC = r"^(.*[0-9])(?:Z|[+-]00:?00)$"
_DAY_ORDERS = {
    "dmy": (r"^\s*([0-9]{1,2})[./-]([0-9]{1,2})[./-]([0-9]{4})", r"\3-\2-\1"),
    "mdy": (r"^\s*([0-9]{1,2})[./-]([0-9]{1,2})[./-]([0-9]{4})", r"\3-\1-\2"),
    "ymd": (r"^\s*([0-9]{4})[./-]([0-9]{1,2})[./-]([0-9]{1,2})", r"\1-\2-\3"),
}
_HALF_DAY = pyarrow.scalar(12 * 3600 * 10**6, pyarrow.duration("us"))
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


@dataclass(frozen=True, slots=True)
class TextStyle:
    """How numbers and times are written; see the keys of `TableData` with these names."""

    decimal: Decimal = "."
    thousands: str | None = None
    number_signs: tuple[str, ...] = ()
    date_order: Literal["ymd", "dmy", "mdy"] = "ymd"

    @classmethod
    def of(cls, data: TableData) -> TextStyle:
        return cls(data.decimal, data.thousands, data.number_signs, data.date_order)

    def plain_numbers(self, array: Any) -> Any:
        """Returns numbers without signs and separators of thousands, and with a decimal point."""
        if self.number_signs:
            signs = "|".join(map(re.escape, sorted(self.number_signs, key=len, reverse=True)))
            pattern = rf"^\s*([+-]?)\s*(?:{signs})?\s*(.*?)\s*(?:{signs})?\s*$"
            array = pc.replace_substring_regex(array, pattern, r"\1\2")
        if self.thousands is not None:
            mark, point = re.escape(self.thousands), re.escape(self.decimal)
            pattern = rf"^\s*[+-]?[1-9][0-9]{{0,2}}({mark}[0-9]{{3}})+({point}[0-9]*)?\s*$"
            is_grouped = pc.match_substring_regex(array, pattern)
            array = pc.if_else(is_grouped, pc.replace_substring(array, self.thousands, ""), array)
        return with_points(array) if self.decimal == "," else array

    def cast_times(self, array: Any) -> Any:
        """Converts texts to times in UTC. Raises `pyarrow.ArrowInvalid` if a text is none."""
        with suppress(pyarrow.ArrowInvalid):
            return without_utc(array).cast(pyarrow.timestamp("us"))
        pattern, order = _DAY_ORDERS[self.date_order]
        array = pc.replace_substring_regex(pc.utf8_trim_whitespace(array), pattern, order)
        for one in (
            r"-([0-9])(-|[ T]|$)",
            r"-([0-9])([ T]|$)",
        ):  # one digit of a month, then of a day
            array = pc.replace_substring_regex(array, one, r"-0\1\2")
        array = pc.replace_substring_regex(array, r"(\.[0-9]{6})[0-9]+", r"\1")
        has_half = pc.match_substring_regex(array, r"(?i)[0-9] ?[ap]m$")
        is_late = pc.match_substring_regex(array, r"(?i)pm$")
        is_twelve = pc.match_substring_regex(array, r"[ T]12(:|$| ?[apAP])")
        array = pc.replace_substring_regex(array, r"(?i) ?[ap]m$", "")
        array = pc.replace_substring_regex(array, r"([ T])([0-9]:)", r"\1" r"0\2")
        has_zone = pc.match_substring_regex(array, r"[ T][0-9:.]+(Z|[+-][0-9:]+)$")
        is_day = pc.match_substring_regex(array, r"^[0-9-]{10}$")
        array = pc.if_else(is_day, pc.binary_join_element_wise(array, "T00:00", ""), array)
        array = pc.if_else(has_zone, array, pc.binary_join_element_wise(array, "Z", ""))
        times = array.cast(pyarrow.timestamp("us", "UTC")).cast(pyarrow.timestamp("us"))
        later = pc.and_(pc.and_(has_half, is_late), pc.invert(is_twelve))
        earlier = pc.and_(pc.and_(has_half, pc.invert(is_late)), is_twelve)
        times = pc.if_else(later, pc.add(times, _HALF_DAY), times)
        return pc.if_else(earlier, pc.subtract(times, _HALF_DAY), times)


def convert_texts(
    array: Any, kind: Kind, name: str, style: TextStyle, bad: list[BadValue], rows: Any = None
) -> Any:
    """Converts texts to values of a kind. Texts that are not of this kind become null.

    Args:
        array: Arrow array of strings.
        kind: kind of the column.
        name: name of the column, for messages.
        style: how numbers and times are written.
        bad: receives the texts of another kind, except those that mean a missing value.
        rows: ``(n,)``, the row of each element; None: one element per row.
    """
    if kind in TEXTS:
        return array
    target, texts = _TARGETS[kind], array
    if kind == "number":
        array = style.plain_numbers(array)
    cast = style.cast_times if kind == "time" else lambda each: each.cast(target)
    try:
        return cast(array)
    except pyarrow.ArrowInvalid:
        array = pc.if_else(pc.is_in(array, NO_NUMBER), None, array)
        if kind in ("integer", "unsigned"):
            whole = rf"^{_INTEGER}$"
            array = pc.replace_substring_regex(array, whole, r"\1")
    try:
        return cast(array)
    except pyarrow.ArrowInvalid:
        values = []
        expected = _EXPECTED_NUMBER[style.decimal] if kind == "number" else _EXPECTED[kind]
        for at in range(len(array)):
            value = None
            try:
                value = cast(array.slice(at, 1))[0].as_py()
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


def are_integers(texts: Sequence[str]) -> bool:
    """Returns whether there is at least one text and all are integers of 64 bits."""
    pattern = re.compile(_INTEGER)
    found = [pattern.fullmatch(each) for each in texts]
    return bool(found) and all(
        each is not None and -(2**63) <= int(each[1]) < 2**63 for each in found
    )


def is_number(text: str, decimal: Decimal) -> bool:
    """Returns whether a text is a number."""
    try:
        float(text.replace(",", ".") if decimal == "," else text)
    except ValueError:
        return False
    return True
