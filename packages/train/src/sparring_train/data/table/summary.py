"""Guesses the role of each column of a data set from the first rows of its files."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow
import pyarrow.compute as pc
from pyarrow import types

from sparring.errors import DataError
from sparring_train.config.sections.table import TableData
from sparring_train.data.column_names import (
    ITEMS,
    LABELS,
    QUANTITIES,
    SESSIONS,
    TIMES,
    USERS,
    plain_name,
    split_column_name,
)
from sparring_train.data.table.files import TableFile, find_files
from sparring_train.data.table.sample import Sample, sample_parquet
from sparring_train.data.table.text.lists import split_lists
from sparring_train.data.table.text.sample import sample_csv
from sparring_train.data.table.text.values import TextStyle, are_integers

__all__ = ["ColumnSummary", "TableSummary", "Role", "is_text", "summarize_table"]

Role = Literal["categorical", "numeric", "time", "left out"]

# fmt: off
_ID_NAMES = frozenset((
    "id", "user", "item", "movie", "product", "sku", "ad", "site", "page", "query", "country",
    "city", "region", "zip", "category", "cat", "brand", "device", "os", "browser", "code", "key",
    "customer", "shop", "store", "seller", "author", "artist", "song", "track", "session", "uid",
    "iid", "pid", "cid", "gender", "language", "lang", "type",
))
# fmt: on
_MIN_TIME = 10**8
"""Smaller numbers are no times since 1970, but may be increasing numbers."""
_MIN_DISTINCT_ROWS = 20
"""Minimum number of rows in which distinct values of a column prove that it numbers the rows."""
_SEPARATORS = ("json", "|", "^", ";", ",", " ")
_FIRST_ROWS = 1000
"""Number of CSV rows from which training determines whether ids are integers."""
_MOSTLY = 0.95
"""Minimum share of the texts in a column that must match a format."""
_PARTS = {
    "test": frozenset(("test", "tst")),
    "validation": frozenset(("valid", "validation", "val", "dev")),
}
"""Words in names of files."""
_ISO_DATE = r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}([ T]|$)"
_DATE = r"^\s*[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}([ T][0-9:.]+( ?[AaPp][Mm])?)?\s*$"


@dataclass(slots=True)
class ColumnSummary:
    """Guess of a column's role, with statistics of the rows that were read."""

    name: str
    kind: str
    """Type of the column, for messages."""
    role: Role
    num_distinct: int = 0
    top_share: float = 0.0
    """Share of the most frequent value."""
    once_share: float = 0.0
    """Share of the values that occur once."""
    num_missing: int = 0
    is_list: bool = False
    separator: str | None = None
    type: Literal["string", "unsigned"] | None = None
    """Type of ids, if training would not detect it."""
    is_skewed: bool = False
    """Whether the numbers span several orders of magnitude."""
    why: str = ""
    """Reason for the role in a few words."""
    unsure: str | None = None
    """Reason for which the guess may be wrong."""

    def leave_out(self, why: str, unsure: str | None = None) -> None:
        """Uses the column for nothing."""
        self.role, self.why, self.unsure = "left out", why, unsure or why


@dataclass(slots=True)
class TableSummary:
    """Columns of all files, with the rows that were read."""

    columns: list[ColumnSummary]
    sample: Sample
    num_bad: int = 0
    """Number of unusable rows, computed by `find_bad_rows`."""
    first_bad: str | None = None
    """Description of the first unusable row."""

    @property
    def num_sampled(self) -> int:
        """Number of rows that were read."""
        return self.sample.num_sampled

    @property
    def num_rows(self) -> int:
        """Number of rows of all files; an estimate unless `sample.is_exact`."""
        return self.sample.num_rows

    @property
    def values(self) -> dict[str, Any]:
        """Column → Arrow array of the rows that were read."""
        return self.sample.values

    def choose_types(self, columns: Sequence[ColumnSummary]) -> None:
        """Sets the type of id columns that training would not detect from the first rows: unsigned
        numbers, and strings."""
        for each in columns:
            texts = self.sample.texts.get(each.name)
            if texts is None:
                kind = self.values[each.name].type
                is_list = types.is_list(kind) or types.is_large_list(kind)
                if (kind.value_type if is_list else kind) == pyarrow.uint64():
                    each.type = "unsigned"
                continue
            if each.name in self.sample.wrong:
                # Ids may be any text, so a few texts among numbers mean that all are strings.
                found = texts.filter(pyarrow.array(self.sample.wrong[each.name]))
                each.unsure = (
                    f"{len(found):,} values such as {str(found[0])[:40]!r} are no numbers: all are "
                    "read as strings; remove such rows if they are no examples"
                )
                self.values[each.name] = texts
                _count(each, texts)
            values = self.values[each.name]
            if values.type == pyarrow.uint64():
                each.type = "unsigned"
            elif is_text(values.type) and each.separator is None:
                first = texts.slice(0, _FIRST_ROWS).drop_null().to_pylist()
                each.type = "string" if are_integers(first) else None

    def find_bad_rows(self, columns: Sequence[str], required: Sequence[str]) -> None:
        """Counts the unusable rows.

        Args:
            columns: columns of numbers, labels, weights and times.
            required: columns that must have a value.
        """
        sample = self.sample
        bad = np.zeros(sample.num_sampled, np.bool_)
        first: list[tuple[int, str]] = []
        for name in columns:
            if name in sample.wrong:
                bad |= sample.wrong[name]
                row = int(np.argmax(sample.wrong[name]))
                found = str(sample.texts[name][row])[:60]
                first.append(
                    (row, f"{sample.format_row_position(row)}, column {name!r}: found {found!r}")
                )
        for name in required:
            if sample.values[name].null_count:
                is_null = sample.values[name].is_null().to_numpy(zero_copy_only=False)
                is_null &= ~sample.wrong.get(name, np.zeros_like(bad))
                if is_null.any():
                    bad |= is_null
                    row = int(np.argmax(is_null))
                    first.append(
                        (row, f"{sample.format_row_position(row)}, column {name!r} is empty")
                    )
        self.num_bad = sample.num_broken + int(bad.sum())
        self.first_bad = sample.first_broken or (min(first)[1] if first else None)

    def likely_label(self, other: Collection[str]) -> str | None:
        """Returns the column with a typical name of labels, unless it is in `other`."""
        names = {plain_name(name): name for name in self.values if name not in other}
        return next((names[each] for each in LABELS if each in names), None)

    def binary_columns(self) -> list[str]:
        """Returns the columns that may be labels of a click model, because their values are 0 and 1."""
        return [name for name, values in self.values.items() if _is_binary(values)]


def summarize_table(path: str, given: TableData | None = None) -> TableSummary:
    """Reads the first rows of all files, and guesses the role of each column.

    Args:
        path: path of the files.
        given: section with the keys that the user has set; None: none.

    Raises:
        DataError: there is no file or no row, or a file cannot be read.
    """
    given = given or TableData.model_construct(kind="table", path=path, categorical=())
    files = find_files(path, given.form)
    is_csv = files[0].format != "parquet"
    sample = sample_csv(path, files, given) if is_csv else sample_parquet(files)
    if not is_csv:
        _read_times(sample)
    if not sample.num_sampled:
        raise DataError(
            f"reading {path}: found no row, expected examples; choose other files", path=path
        )
    if sample.num_sampled == 1:
        raise DataError(
            f"reading {path}: found 1 row, expected at least 2 examples; choose other files",
            path=path,
        )
    _find_parts(files, sample)
    separators = (given.separator,) if isinstance(given.separator, str) else _SEPARATORS
    looks = [_look(name, each, separators) for name, each in sample.values.items()]
    for each in looks:
        if each.name in sample.typed:
            _apply_type(each, sample.typed[each.name], sample.values[each.name])
        if each.separator is not None:
            sample.values[each.name] = split_lists(sample.values[each.name], each.separator, True)
    for name, reason in sample.unusable.items():
        looks.append(ColumnSummary(name, "unknown", "left out", why="unusable", unsure=reason))
    if sample.unnamed is not None:
        looks.insert(sample.unnamed, ColumnSummary("", "unknown", "left out", why="no name"))
    return TableSummary(looks, sample)


def _find_parts(files: Sequence[TableFile], sample: Sample) -> None:
    """Recognizes files of the test and of the validation by their names."""
    names = [file.name.rpartition("/")[2] for file in files]
    found: dict[str, str] = {}
    for part, words in _PARTS.items():
        chosen = [name for name in names if set(re.split(r"[^a-z]+", name.lower())) & words]
        word = next((word for word in sorted(words) if all(word in each for each in chosen)), None)
        pattern = chosen[0] if len(chosen) == 1 else f"*{word}*"
        if chosen and fnmatch.filter(names, pattern) == chosen:
            found[part] = pattern
    if "test" not in found or len(fnmatch.filter(names, found["test"])) == len(names):
        return
    sample.test_files, sample.validation_files = found["test"], found.get("validation")
    listed = " and ".join(f"{pattern} is the {part}" for part, pattern in found.items())
    sample.unsure.append(f"{listed}, because of the names of the files")


def _read_times(sample: Sample) -> None:
    """Converts texts in Parquet files that are times."""
    for name, array in sample.values.items():
        if is_text(array.type) and not types.is_list(array.type):
            texts = array.cast(pyarrow.string())
            share = pc.mean(pc.match_substring_regex(texts, _ISO_DATE)).as_py() or 0
            if share == 1:
                with suppress(pyarrow.ArrowInvalid):
                    sample.values[name] = TextStyle().cast_times(texts)


def _look(name: str, array: Any, separators: Sequence[str]) -> ColumnSummary:
    kind = array.type
    found = ColumnSummary(name, str(kind), "left out", num_missing=array.null_count)
    words = split_column_name(name)
    if types.is_list(kind) or types.is_large_list(kind):
        found.is_list, found.why = True, "lists"
        _count(found, array.flatten())
        is_id = types.is_integer(kind.value_type) or is_text(kind.value_type)
        found.role = "categorical" if is_id else "left out"
        if not is_id:
            found.leave_out("lists of neither ids", "a list of neither strings nor whole numbers")
    elif is_text(kind):
        _summarize_text(found, array, words, separators)
    elif types.is_temporal(kind):
        found.role, found.why = "time", "times"
        _count(found, array)
    elif types.is_integer(kind) or (types.is_floating(kind) and _is_whole(array)):
        _count(found, array)
        _summarize_integers(found, array, words, is_float=types.is_floating(kind))
    elif types.is_floating(kind) and words & TIMES and _is_time(array):
        found.role, found.why = "time", "name and values"
        _count(found, array)
    elif types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind):
        found.role, found.why = "numeric", "decimal numbers"
        if types.is_boolean(kind):
            found.why = "true and false"
        _count(found, array)
        _summarize_numbers(found, array)
    else:
        found.leave_out("neither ids nor numbers", "a type that is neither ids nor numbers")
    if found.num_missing == len(array):
        found.leave_out("all values missing", "all values are missing")
    elif found.num_distinct == 1 and found.role != "time" and not found.is_list:
        found.leave_out("all values equal", "all values are equal")
    elif found.num_distinct == 1 and found.role == "time":
        found.unsure = "all times are equal: they do not select the rows for the test"
    return found


def _summarize_text(
    found: ColumnSummary, array: Any, words: set[str], separators: Sequence[str]
) -> None:
    found.role, found.why = "categorical", "strings"
    values = array.drop_null()
    _count(found, values)
    if not len(values):
        return
    if pc.mean(pc.match_substring_regex(values, _DATE)).as_py() > _MOSTLY:
        found.leave_out(
            "dates as text",
            "text that looks like dates; write dates as 2024-01-31 12:00:00 to use them",
        )
        return
    for separator in separators:
        found_share = _share_of_lists(values, separator)
        if found_share <= 0.2:
            continue
        parts = split_lists(values, separator, True).flatten()
        num_parts = len(pc.unique(parts))
        once = split_lists(pc.unique(values), separator, True).flatten()
        if separator != "json" and len(pc.unique(once)) == len(once):
            continue  # each part belongs to one text: "Left | right"
        # Titles contain spaces and commas, too, but nearly as many words as there are titles.
        sizes = pc.unique(pc.list_value_length(split_lists(values, separator, True)))
        is_reused = separator == "," and len(sizes) > 1 and len(once) >= 1.5 * num_parts
        if separator not in " ," or 2 * num_parts < found.num_distinct or is_reused:
            found.is_list, found.separator = True, separator
            found.why = f"{separator!r} in {found_share:.0%} of rows"
            found.unsure = f"{found_share:.0%} of the rows contain {separator!r}: read as lists"
            if separator == "json":
                found.why, found.unsure = "lists in brackets", None
            _count(found, parts)
            return
        if separator == ",":
            found.unsure = (
                f"{found_share:.0%} of the rows contain ',', but each text is read as one id"
            )
    if _numbers_rows(found, len(values), words):
        found.leave_out("nearly all distinct", _LIKE_ROW_NUMBERS)


def _apply_type(found: ColumnSummary, kind: str, array: Any) -> None:
    """Gives a column the role that its type in the header determines."""
    if found.role in ("left out", "time"):
        return
    if kind == "token_seq" and is_text(array.type) and not found.is_list:
        found.is_list, found.separator = True, " "
        _count(found, split_lists(array, " ", True).flatten())
    if kind in ("token", "token_seq"):
        found.role = "categorical"
    elif kind == "float" and not is_text(array.type):
        found.role = "numeric"
        _summarize_numbers(found, array)
    elif kind == "float_seq":
        found.leave_out("lists of numbers", "a list of numbers")
        return
    found.why, found.unsure = f"{kind} in the header", None


def _share_of_lists(values: Any, separator: str) -> float:
    if separator == "json":
        share = pc.mean(pc.match_substring_regex(values, r"^\s*\[.*\]\s*$")).as_py()
        return float(share) if share > _MOSTLY else 0.0
    return float(pc.mean(pc.match_substring(values, separator)).as_py())


_LIKE_ROW_NUMBERS = "nearly all values are distinct, like row numbers"


def _numbers_rows(found: ColumnSummary, num_values: int, words: set[str]) -> bool:
    """Returns whether nearly each row has a different value. In small files, ids of users and items may
    be distinct, too."""
    if num_values >= 1000:
        return found.num_distinct > 0.95 * num_values
    is_known = bool(words & {*USERS, *ITEMS})
    return num_values >= _MIN_DISTINCT_ROWS and found.num_distinct == num_values and not is_known


def _summarize_integers(
    found: ColumnSummary, array: Any, words: set[str], *, is_float: bool
) -> None:
    values = array.drop_null().to_numpy(zero_copy_only=False)
    if not len(values):
        return
    steps = np.diff(values.astype(np.float64))
    if words & TIMES and (_is_time(array) or bool((steps >= 0).all() and (steps > 0).any())):
        found.role, found.why = "time", "name and values"
        return
    is_id_name = bool(words & _ID_NAMES | words & {*USERS, *ITEMS})
    is_count = bool(words & {f"{each}s" for each in SESSIONS})
    if (words & QUANTITIES or is_count) and "id" not in words:
        found.role, found.why = "numeric", "name of quantities"
    elif is_id_name and not _numbers_rows(found, len(values), words):
        found.role, found.why = "categorical", "name of ids"
        return
    elif (
        not is_float
        and _numbers_rows(found, len(values), words)
        and (is_id_name or len(values) >= 1000 or bool((steps > 0).all()))
    ):
        found.leave_out("nearly all distinct", _LIKE_ROW_NUMBERS)
        return
    elif found.num_distinct > 50 and values.min() >= 0 and values.max() > 1000 and not is_float:
        found.role, found.why = "categorical", "large whole numbers"
        found.unsure = "whole numbers that look like ids; move it to numeric if they are quantities"
        return
    else:
        found.role, found.why = "numeric", "small whole numbers"
        if found.num_distinct == 2:
            found.why = "two whole numbers"
        elif not is_float:
            found.unsure = (
                "whole numbers that look like counts; move it to categorical if they are ids"
            )
    _summarize_numbers(found, array)


def _is_time(array: Any) -> bool:
    """Returns whether all numbers may be times: seconds since 1970 or their parts, or 20240131."""
    low, high = (float(each.as_py() or 0) for each in (pc.min(array), pc.max(array)))
    return low > _MIN_TIME or (19000101 <= low <= high <= 21001231)


def _summarize_numbers(found: ColumnSummary, array: Any) -> None:
    if types.is_boolean(array.type):
        array = array.cast(pyarrow.int8())
    values = array.cast(pyarrow.float64(), safe=False).drop_null().to_numpy(zero_copy_only=False)
    values = np.abs(values[np.isfinite(values)])
    if len(values):
        middle, high = np.quantile(values, [0.5, 0.99])
        found.is_skewed = bool(high > 100 and high > 20 * max(middle, 1e-9))


def _is_binary(values: Any) -> bool:
    kind = values.type
    if types.is_boolean(kind):
        return True
    if not (types.is_integer(kind) or types.is_floating(kind)):
        return False
    distinct = pc.unique(values.drop_null()).cast(pyarrow.float64(), safe=False).to_pylist()
    return set(distinct) == {0.0, 1.0}


def _is_whole(array: Any) -> bool:
    """Returns whether floats are integers. pandas writes a column of ids with nulls as floats."""
    values = array.drop_null().to_numpy(zero_copy_only=False)
    return bool(len(values)) and bool((values == np.floor(values)).all())


def _count(found: ColumnSummary, values: Any) -> None:
    values = values.drop_null()
    if not len(values):
        return
    counts = pc.value_counts(values).field("counts").to_numpy(zero_copy_only=False)
    found.num_distinct = len(counts)
    found.top_share = float(counts.max() / len(values))
    found.once_share = float((counts == 1).sum() / len(values))


def is_text(kind: Any) -> bool:
    """Returns whether an Arrow type is one of texts, or of lists of texts."""
    if types.is_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind))
