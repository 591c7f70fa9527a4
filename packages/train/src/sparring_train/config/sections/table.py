"""Data of kind `table`: rows of CSV or Parquet files, by column."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from sparring import TableConfig
from sparring.contracts import LocalPath
from sparring.errors import InvalidArgumentError
from sparring_train.columns import Feature, Label, Schema
from sparring_train.config.section import OpenFraction, PositiveInt, Section
from sparring_train.config.sections.kinds import DataSection

__all__ = ["SplitConfig", "SplitRule", "TableData", "ValidationConfig", "is_table_name"]

_Name = Annotated[str, Field(min_length=1)]
_Names = Annotated[tuple[_Name, ...], Field(strict=False, max_length=10_000)]


def _as_text(value: Any) -> Any:
    """Text of a number or a truth value, as it is compared with a column."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


_Text = Annotated[str, BeforeValidator(_as_text)]


class SplitRule(Section):
    """One of seven ways to choose rows."""

    fraction: OpenFraction | None = Field(
        None, description="This part of the rows, drawn by `seed` and a row's place in the files."
    )
    exact_fraction: OpenFraction | None = Field(
        None,
        description="Exactly this part of the rows, rounded to whole rows and drawn by `seed`. The files "
        "are read once more to count the rows, and 8 bytes per row are needed in memory.",
    )
    time: OpenFraction | None = Field(
        None, description="The latest rows by `data.time`, this part of all."
    )
    time_from: _Text | None = Field(
        None,
        description="Rows whose `data.time` is this or later: `2024-01-31 12:00`, or a number "
        "where times are numbers.",
    )
    column: _Name | None = Field(None, description="The column whose value says it.")
    files: _Name | None = Field(
        None,
        description="All rows of the files of `data.path` whose names match this pattern: `day_23*`.",
    )
    leave_one_out: _Name | None = Field(
        None,
        description="The column of users: the last row of each user by `data.time`, or without it "
        "by its place in the files, if the user has two or more.",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that it needs, `data.time` apart."""
        return tuple(name for name in (self.column, self.leave_one_out) if name is not None)

    @property
    def list_given_ways(self) -> list[str]:
        """Names of the ways that are given."""
        ways = (
            "fraction", "exact_fraction", "time", "time_from", "column", "files", "leave_one_out",
        )  # fmt: skip
        return [name for name in ways if getattr(self, name) is not None]


class SplitConfig(SplitRule):
    """Which rows are kept for the test: one of seven ways. Without any, `fraction: 0.1`."""

    test: _Text = Field(
        "test", description="The value of `column` of rows that are kept for the test."
    )

    @property
    def chosen_value(self) -> str:
        """The value of `column` of rows that are chosen."""
        return self.test

    @property
    def test_fraction(self) -> float:
        """Of a split by chance."""
        return 0.1 if self.fraction is None else self.fraction


class ValidationConfig(SplitRule):
    """Which of the rows that are not for the test are kept for validation: one of seven ways."""

    value: _Text = Field(
        "validation", description="The value of `column` of rows that are kept for validation."
    )

    @property
    def chosen_value(self) -> str:
        """The value of `column` of rows that are chosen."""
        return self.value


class HistoryConfig(Section):
    """A further feature: what the user of a row had in earlier rows, oldest first."""

    of: _Name = Field("item", description="The column of `data.categorical` that is listed.")
    by: _Name = Field("user", description="The column of users.")
    length: PositiveInt = Field(50, description="The most ids of a list: the last ones.")
    name: _Name = Field("history", description="The name of the feature.")


class TableData(DataSection):
    """Rows of CSV or Parquet files. Strings become ids by `sparring.hash_strings`; whole numbers
    are ids as they are; null and the empty string are no id."""

    kind: Literal["table"]
    path: LocalPath = Field(
        min_length=1,
        description="A file, a folder, a pattern with `*`, or a URL of these (`s3://…`); read in "
        "order of name. Names end in `.parquet`, or in `.csv`, `.tsv` or `.txt`, with or without "
        "`.gz`; in a folder, `.txt` is not read. Relative paths start at the file's folder.",
    )
    label: _Name | None = Field(
        None,
        description="The column of labels: 0 and 1 (or false and true) for a log loss, numbers for "
        "a squared error.",
    )
    categorical: _Names = Field(
        description="Columns of ids. Each is a feature, with a table of its name."
    )
    numeric: _Names = Field((), description="Columns of numbers; null is 0.")
    lists: _Names = Field(
        (),
        description="Those of `categorical` whose rows have any number of ids: lists in Parquet; "
        "in CSV, ids with `separator` between them.",
    )
    required: _Names = Field(
        (),
        description="Those of `categorical` that a row must have an id of, or it is a bad row; models "
        "of users and items need it of both.",
    )
    separator: str | None = Field(
        None, min_length=1, max_length=8, description="What is between the ids of a list in CSV."
    )
    delimiter: str | None = Field(
        None,
        min_length=1,
        max_length=1,
        description="The character between the values of a row in CSV. Without it a comma, and a tab in "
        "files whose name ends in `.tsv`.",
    )
    column_names: _Names | None = Field(
        None,
        description="Names of all columns of CSV files without a header, in order. Null: the first row "
        "of each file is a header with the names.",
    )
    decimal: Literal[".", ","] = Field(
        ".",
        description="The decimal sign of numbers in CSV. With `,`, points are accepted between groups "
        "of three digits: `1.234,5`.",
    )
    missing_values: Annotated[tuple[_Text, ...], Field(strict=False, max_length=100)] = Field(
        (),
        description="Texts in CSV that mean a missing value, in every column: `[NA, '-', '?']`. The "
        "empty text always is a missing value, and `NA`, `N/A`, `NULL` and `NaN` are among numbers.",
    )
    label_values: dict[str, Annotated[float, Field(strict=False)]] = Field(
        default_factory=dict,
        description="Text of `label` → the number that it means: `{yes: 1, no: 0}`. A row with another "
        "text is a bad row. Without it, labels are numbers, `true` and `false`.",
    )
    share_tables: dict[_Name, _Name] = Field(
        default_factory=dict,
        description="Column of `categorical` → the table of its embeddings, where that is not its "
        "own: `{last_item: item}`.",
    )
    missing_ids: dict[_Name, Annotated[int, Field(ge=-(2**63), lt=2**63)]] = Field(
        default_factory=dict,
        description="Column of `categorical` → the id of rows that have none, so that the model learns "
        "an embedding for a missing id: `{city: -1}`. Choose an id that the column does not contain.",
    )
    types: dict[_Name, Literal["integer", "unsigned", "hexadecimal", "string"]] = Field(
        default_factory=dict,
        description="Column of `categorical` → what it holds. In CSV `string` hashes what looks "
        "like a number, too; without it, the first 1,000 rows tell. Parquet says it itself, and "
        "another type is refused. `unsigned` accepts whole numbers up to 2^64 - 1; a number n from "
        "2^63 on is the key n - 2^64, which has the same 64 bits. `hexadecimal` reads text of 1 to 16 "
        "hexadecimal digits as such a number; it is not hashed.",
    )
    minimum: dict[_Name, Annotated[float, Field(strict=False, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="Column of `numeric` → its smallest number: `{price: 0}`. A smaller number is "
        "replaced by it, before `log1p`.",
    )
    log1p: _Names = Field(
        (),
        description="Those of `numeric` that are read as sign(x) · log(1 + |x|), for numbers that "
        "span powers of ten.",
    )
    weight: _Name | None = Field(
        None, description="The column of weights in the loss, 0 or more; without it, 1 each."
    )
    time: _Name | None = Field(
        None,
        description="The column of times or of growing numbers, for `split` and `history`.",
    )
    history: HistoryConfig | None = Field(
        None,
        description="Adds a list of what the same user had before, by `data.time`, with the table of "
        "its column; for models of sequences. 32 bytes of each row are kept in memory.",
    )
    split: SplitConfig = Field(SplitConfig(), description="Which rows are kept for the test.")
    validation: ValidationConfig | None = Field(
        None,
        description="Which of the other rows are kept for validation: `{fraction: 0.1}`; null: none.",
    )
    shuffle: bool = Field(
        True,
        description="Each epoch has an order of its own, drawn by `seed`. False: in the order of "
        "the files, of which then every rank reads all.",
    )
    read: Literal["same_steps", "own"] = Field(
        "same_steps",
        description="`same_steps`: a step has the same rows at every number of ranks. `own`: each "
        "rank reads row groups of its own one after the other, instead of several at a time, for "
        "storage that is slow to read in many places; the result says that steps then depend on "
        "the number of ranks. Parquet only.",
    )
    lanes: int = Field(
        24,
        ge=1,
        le=4096,
        description="Row groups that are read from at a time, over all ranks. At most so many "
        "ranks have row groups of their own; more of them share. Steps depend on it.",
    )
    bad_rows: Literal["refuse", "skip"] = Field(
        "refuse",
        description="What becomes of a row that its columns do not allow: `skip` leaves it out and "
        "counts it.",
    )
    dictionary: bool = Field(
        False,
        description="Keep a table from id back to string, in the folder `strings` of "
        "`snapshots.url`; see `sparring_train.find_strings`.",
    )
    batch_size: PositiveInt = Field(
        4096, description="Rows in a step, over all ranks and micro-batches."
    )

    @property
    def columns(self) -> Schema:
        features = [
            Feature(
                name,
                self.share_tables.get(name, ""),
                is_list=name in self.lists,
                may_be_missing=name not in self.required and name not in self.missing_ids,
            )
            for name in self.categorical
        ]
        if self.history is not None:
            of = self.history.of
            table = self.share_tables.get(of, of)
            features.append(Feature(self.history.name, table, is_list=True, may_be_missing=True))
        return Schema(
            tuple(features),
            numbers=self.numeric,
            label=None if self.label is None else "number",
            has_weights=self.weight is not None,
        )

    @property
    def has_validation(self) -> bool:
        return self.validation is not None

    @property
    def labels(self) -> tuple[Label | None, ...]:
        return (None,) if self.label is None else ("binary", "number", None)

    @model_validator(mode="after")
    def _names_fit(self) -> TableData:
        for key, message, found, expected in _problems(self):
            context = {"path": ("data", key), "found": found, "expected": expected}
            raise PydanticCustomError("table_columns", message, context)
        return self


def _problems(data: TableData) -> Iterator[tuple[str, str, str, str]]:
    """Key, what is wrong with it, what was found and what is expected."""
    if not data.categorical:
        yield "categorical", "has no column", "an empty list", "one column of ids or more"
    singles = tuple(name for name in data.categorical if name not in data.lists)
    for key, columns, allowed in (
        ("lists", data.lists, data.categorical),
        ("required", data.required, singles),
        ("missing_ids", tuple(data.missing_ids), singles),
        ("share_tables", tuple(data.share_tables), data.categorical),
        ("types", tuple(data.types), data.categorical),
        ("log1p", data.log1p, data.numeric),
        ("minimum", tuple(data.minimum), data.numeric),
    ):
        for name in columns:
            if name not in allowed:
                section = "numeric" if allowed is data.numeric else "categorical"
                yield key, f"names no column of data.{section}", name, ", ".join(allowed) or "none"
    for key, names in (("categorical", data.categorical), ("numeric", data.numeric)):
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            yield key, "names a column twice", twice[0], "each column once"
    if data.label is not None and data.label in (*data.categorical, *data.numeric):
        yield "label", "is also a column to predict from", data.label, "a column of its own"
    yield from _csv_problems(data)
    yield from _missing_id_problems(data)
    yield from _table_name_problems(data)
    if data.history is not None:
        yield from _history_problems(data, data.history)
    for key, ways, fewest in (("split", data.split, 0), ("validation", data.validation, 1)):
        if ways is None:
            continue
        if not fewest <= len(ways.list_given_ways) <= 1:
            found = ", ".join(ways.list_given_ways) or "none"
            yield (
                key,
                "takes one way",
                found,
                "one of fraction, exact_fraction, time, time_from, column, files, leave_one_out",
            )
        if (ways.time is not None or ways.time_from is not None) and data.time is None:
            yield "time", f"is what data.{key} needs to know", "null", "the column of times"


def is_table_name(name: str) -> bool:
    """Returns whether a table may have this name."""
    try:
        TableConfig(name, 1)
    except InvalidArgumentError:
        return False
    return True


def _missing_id_problems(data: TableData) -> Iterator[tuple[str, str, str, str]]:
    for name in data.missing_ids:
        if name in data.required:
            expected = "one of data.required and data.missing_ids"
            yield "missing_ids", "names a column that a row must have an id of", name, expected


def _table_name_problems(data: TableData) -> Iterator[tuple[str, str, str, str]]:
    for name in data.categorical:
        table = data.share_tables.get(name, name)
        if not is_table_name(table):
            yield (
                "categorical" if table == name else "share_tables",
                "names a column that cannot be the name of a table; name its table in data.share_tables",
                table,
                "letters of ASCII, digits, and _ . -, with a letter or underscore first",
            )


def _csv_problems(data: TableData) -> Iterator[tuple[str, str, str, str]]:
    if data.delimiter is not None and data.delimiter in '"\r\n':
        yield "delimiter", "is a character of CSV itself", repr(data.delimiter), "another character"
    names = data.column_names
    if names is not None:
        twice = [name for name in names if names.count(name) > 1]
        if twice or not names:
            yield (
                "column_names",
                "does not name each column once",
                twice[0] if twice else "an empty list",
                "the name of each column, in the order of the file",
            )
    if data.label_values and data.label is None:
        yield "label_values", "has no label", "data.label: null", "the column of labels"


def _history_problems(
    data: TableData, history: HistoryConfig
) -> Iterator[tuple[str, str, str, str]]:
    if data.time is None:
        yield "time", "is what data.history needs to know", "null", "the column of times"
    if history.of not in data.categorical or history.of in data.lists:
        expected = "a column of data.categorical that is no list"
        yield "history", "lists another column", history.of, expected
    if history.by in data.lists:
        yield "history", "has users in lists", history.by, "a column with one id in a row"
    if history.name in data.categorical:
        yield "history", "has the name of a column", history.name, "a name of its own"
