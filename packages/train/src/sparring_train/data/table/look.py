"""Looks at the first rows of files, and says what each column may be."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow
import pyarrow.compute as pc
from pyarrow import csv, parquet, types

from sparring.errors import DataError
from sparring_train.data.table.csv_rows import header_of
from sparring_train.data.table.files import TableFile, find_files

__all__ = ["ColumnLook", "Look", "Role", "look_at"]

Role = Literal["categorical", "numeric", "time", "left out"]

_SAMPLE_ROWS = 200_000
# Packed: one name a line would hide the rest of this file.
# fmt: off
_ID_NAMES = frozenset((
    "id", "user", "item", "movie", "product", "sku", "ad", "site", "page", "query", "country",
    "city", "region", "zip", "category", "cat", "brand", "device", "os", "browser", "code", "key",
    "customer", "shop", "store", "seller", "author", "artist", "song", "track", "session", "uid",
    "iid", "pid", "cid", "gender", "language", "lang", "type",
))
# fmt: on
_TIME_NAMES = frozenset(("time", "timestamp", "ts", "date", "datetime", "at", "created"))
_LABELS = ("label", "clicked", "click", "target", "is_click", "converted", "purchased", "rating")
_SEPARATORS = ("|", ";", " ")
_MOSTLY = 0.95
"""Part of the texts of a column from which on it is what they look like."""
_DECIMAL_COMMA = r"^\s*[+-]?[0-9]{1,3}([. ]?[0-9]{3})*,[0-9]+\s*$"
_DATE = r"^\s*[0-9]{1,4}[./-][0-9]{1,2}[./-][0-9]{1,4}([ T][0-9:.]+( ?[AaPp][Mm])?)?\s*$"


@dataclass(slots=True)
class ColumnLook:
    """Guess of what a column is, from the rows that were looked at."""

    name: str
    kind: str
    """Its type, for people."""
    role: Role
    num_distinct: int = 0
    top_share: float = 0.0
    """Part of the values that are the most frequent one."""
    once_share: float = 0.0
    """Part of the values that occur once."""
    num_missing: int = 0
    is_list: bool = False
    separator: str | None = None
    is_skewed: bool = False
    """Numbers that span powers of ten."""
    unsure: str | None = None
    """Why the guess may be wrong."""


@dataclass(slots=True)
class Look:
    """Columns of files, as they were found."""

    columns: list[ColumnLook]
    num_sampled: int
    num_rows: int
    is_exact: bool
    """Whether `num_rows` is counted; else it follows from the size of the files."""
    values: dict[str, Any] = field(default_factory=dict)
    """Column → Arrow array of the rows that were looked at."""

    def choose_one_separator(self, columns: Sequence[ColumnLook]) -> None:
        """Leaves one separator to all lists of CSV, as one data set has one; other texts stay whole."""
        found = {each.separator for each in columns}
        chosen = next((each for each in _SEPARATORS if each in found), None)
        for each in columns:
            if each.separator is not None and each.separator != chosen:
                each.unsure = (
                    f"many rows have {each.separator!r}, but the separator of lists is {chosen!r}: taken "
                    "for one id each"
                )
                each.is_list, each.separator = False, None
                _count(each, self.values[each.name])

    def likely_label(self) -> str | None:
        """The column that is called as labels are."""
        names = {each.name.lower(): each.name for each in self.columns}
        return next((names[each] for each in _LABELS if each in names), None)


def look_at(path: str) -> Look:
    """Reads the first rows of files.

    Raises:
        DataError: there is no file, or it cannot be read or has no row.
    """
    files = find_files(path)
    first = files[0]
    if first.format == "csv":
        header_of(first)
    try:
        if first.format == "parquet":
            parts = list(_parquet_rows(first))
            num_rows = sum(_footer(each).num_rows for each in files)
        else:
            parts = list(_csv_rows(first))
            num_rows = 0
    except (pyarrow.ArrowException, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{first.name}: cannot be read: {error}", path=first.name) from error
    table = pyarrow.Table.from_batches(parts) if parts else pyarrow.table({})
    twice = [each for each in table.column_names if table.column_names.count(each) > 1]
    if twice:
        raise DataError(
            f"{first.name}: there is more than one column {twice[0]!r}; rename all but one of them",
            path=first.name,
            column=twice[0],
        )
    if not table.num_rows:
        raise DataError(f"{first.name}: found no row, expected examples", path=first.name)
    if first.format == "csv":
        if table.num_rows < _SAMPLE_ROWS and len(files) == 1:
            num_rows = table.num_rows
        else:
            # A row of CSV takes about as many bytes as its values in memory do.
            num_rows = int(_bytes_of(files) / max(table.nbytes, 1) * table.num_rows)
    values = {name: table.column(name).combine_chunks() for name in table.column_names}
    values = {
        name: each.dictionary_decode() if types.is_dictionary(each.type) else each
        for name, each in values.items()
    }
    if first.format == "csv":
        # As the examples are read: text that is empty is missing.
        values = {
            name: pc.if_else(pc.equal(pc.binary_length(each), 0), None, each)
            if _is_text(each.type)
            else each
            for name, each in values.items()
        }
    is_exact = first.format == "parquet" or num_rows == table.num_rows
    looks = [_look(name, each, first.format == "csv") for name, each in values.items()]
    return Look(looks, table.num_rows, num_rows, is_exact, values)


def _parquet_rows(file: TableFile) -> Iterator[Any]:
    rows = 0
    with file.open() as stream:
        for batch in parquet.ParquetFile(stream).iter_batches():
            yield batch
            rows += batch.num_rows
            if rows >= _SAMPLE_ROWS:
                return


def _csv_rows(file: TableFile) -> Iterator[Any]:
    rows = 0
    with file.open() as stream:
        options = csv.ParseOptions(
            delimiter="\t" if file.has_tabs else ",", newlines_in_values=True
        )
        for batch in csv.open_csv(stream, parse_options=options):
            yield batch
            rows += batch.num_rows
            if rows >= _SAMPLE_ROWS:
                return


def _footer(file: TableFile) -> Any:
    with file.open() as stream:
        return parquet.read_metadata(stream)


def _bytes_of(files: tuple[TableFile, ...]) -> int:
    return sum(int(each.system.size(each.path) or 0) for each in files)


def _look(name: str, array: Any, is_csv: bool) -> ColumnLook:
    kind = array.type
    found = ColumnLook(name, str(kind), "left out", num_missing=array.null_count)
    words = set(name.lower().replace("-", "_").replace(".", "_").split("_"))
    # userId, movieId
    is_id_name = bool(words & _ID_NAMES) or name.endswith(("Id", "ID"))
    if types.is_list(kind) or types.is_large_list(kind):
        found.is_list = True
        _count(found, array.flatten())
        is_id = types.is_integer(kind.value_type) or _is_text(kind.value_type)
        found.role = "categorical" if is_id else "left out"
        if not is_id:
            found.unsure = "a list of neither strings nor whole numbers"
    elif _is_text(kind):
        _look_at_text(found, array, is_csv)
    elif types.is_temporal(kind):
        found.role = "time"
    elif types.is_integer(kind):
        _count(found, array)
        _look_at_integers(found, array, words, is_id_name)
    elif is_id_name and types.is_floating(kind) and _is_whole(array):
        found.role = "categorical"
        _count(found, array)
    elif types.is_floating(kind) or types.is_decimal(kind) or types.is_boolean(kind):
        found.role = "numeric"
        _look_at_numbers(found, array)
    else:
        found.unsure = "a type that is neither ids nor numbers"
    if found.num_missing == len(array):
        found.role, found.unsure = "left out", "it is always missing"
    elif found.num_distinct == 1 and found.role != "time":
        found.role, found.unsure = "left out", "it has one value"
    return found


def _look_at_text(found: ColumnLook, array: Any, is_csv: bool) -> None:
    found.role = "categorical"
    values = array.drop_null()
    _count(found, values)
    if is_csv and len(values):
        for pattern, words in (
            (_DECIMAL_COMMA, "numbers with a decimal comma; write them with a point"),
            (_DATE, "dates; write them as 2024-01-31 12:00:00"),
        ):
            if pc.mean(pc.match_substring_regex(values, pattern)).as_py() > _MOSTLY:
                found.role = "left out"
                found.unsure = f"text that looks like {words} to have them read"
                return
        for separator in _SEPARATORS:
            with_one = pc.mean(pc.match_substring(values, separator)).as_py()
            parts = pc.split_pattern(values, separator).flatten() if with_one > 0.2 else values
            # Titles have spaces, too, but hardly fewer words than there are titles.
            is_list = separator != " " or 2 * len(pc.unique(parts)) < found.num_distinct
            if with_one > 0.2 and is_list:
                found.is_list, found.separator = True, separator
                found.unsure = f"{with_one:.0%} of the rows have {separator!r}: taken for a list"
                _count(found, parts)
                return
    if found.num_distinct > 0.95 * len(values) and len(values) >= 1000:
        found.role = "left out"
        found.unsure = "nearly every row has a value of its own, as a row's number has"


def _look_at_integers(found: ColumnLook, array: Any, words: set[str], is_id_name: bool) -> None:
    values = array.drop_null().to_numpy(zero_copy_only=False)
    if not len(values):
        return
    if words & _TIME_NAMES and (values.min() > 10**8 or bool((np.diff(values) >= 0).all())):
        found.role = "time"
        return
    if found.num_distinct > 0.95 * len(values) and len(values) >= 1000 and not is_id_name:
        found.role = "left out"
        found.unsure = "nearly every row has a value of its own, as a row's number has"
    elif is_id_name:
        found.role = "categorical"
    elif found.num_distinct > 50 and values.min() >= 0 and values.max() > 1000:
        found.role = "categorical"
        found.unsure = (
            "whole numbers that look like ids; move it to numeric if it counts or measures"
        )
    else:
        found.role = "numeric"
        found.unsure = "whole numbers that look like counts; move it to categorical if they are ids"
        _look_at_numbers(found, array)


def _look_at_numbers(found: ColumnLook, array: Any) -> None:
    if types.is_boolean(array.type):
        array = array.cast(pyarrow.int8())
    values = array.cast(pyarrow.float64(), safe=False).drop_null().to_numpy(zero_copy_only=False)
    values = np.abs(values[np.isfinite(values)])
    if len(values):
        found.num_distinct = len(np.unique(values[:10_000]))
        middle, high = np.quantile(values, [0.5, 0.99])
        found.is_skewed = bool(high > 100 and high > 20 * max(middle, 1e-9))


def _is_whole(array: Any) -> bool:
    """Ids become floats where pandas writes a column of them that has nulls."""
    values = array.drop_null().to_numpy(zero_copy_only=False)
    return bool(len(values)) and bool((values == np.floor(values)).all())


def _count(found: ColumnLook, values: Any) -> None:
    values = values.drop_null()
    if not len(values):
        return
    counts = pc.value_counts(values).field("counts").to_numpy(zero_copy_only=False)
    found.num_distinct = len(counts)
    found.top_share = float(counts.max() / len(values))
    found.once_share = float((counts == 1).sum() / len(values))


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind))
