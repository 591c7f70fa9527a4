"""Data of kind `table`: columns of CSV or Parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sparring.contracts import LocalPath
from sparring_train.columns import Feature, Schema
from sparring_train.config.section import OpenFraction, PositiveInt, Section
from sparring_train.config.sections.columns import (
    ColumnSettings,
    IdType,
    Name,
    Names,
    Problem,
    Text,
)

__all__ = ["LAKES", "SplitConfig", "SplitRule", "TableData", "ValidationConfig"]

Separator = Annotated[str, Field(min_length=1, max_length=8)]


def _form_of_separator(value: Any) -> str:
    return "per column" if isinstance(value, dict) else "one"


LAKES = ("delta", "iceberg", "lance")
"""Schemes of URLs of tables."""


class SplitRule(Section):
    """Rule that chooses rows, in one of seven ways."""

    fraction: OpenFraction | None = Field(
        None,
        description="Fraction of the rows, drawn by `seed`, the file's name and the row's number in it.",
    )
    key: Name | None = Field(
        None,
        description="With `fraction`: a column whose value draws the row instead, so that all rows of a "
        "user are in one part.",
    )
    exact_fraction: OpenFraction | None = Field(
        None,
        description="Like `fraction`, exactly, rounded to whole rows. The files are read once more, "
        "which needs 8 bytes of memory per row.",
    )
    time: OpenFraction | None = Field(
        None, description="Fraction of the rows: those with the latest `data.time`."
    )
    time_from: Text | None = Field(
        None,
        description="Rows from this `data.time` on: `2024-01-31 12:00`, or a number if times "
        "are numbers.",
    )
    column: Name | None = Field(None, description="The column whose value chooses rows.")
    files: Name | None = Field(
        None,
        description="All rows of the files in `data.path` whose names match this pattern: `day_23*`.",
    )
    leave_one_out: Name | None = Field(
        None,
        description="The column of users. Chooses the last row by `data.time` of each user that has at "
        "least two rows; without `data.time`, the last row in the files.",
    )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the rule needs, except `data.time`."""
        names = (self.column, *self.id_columns)
        return tuple(name for name in names if name is not None)

    @property
    def id_columns(self) -> tuple[str, ...]:
        """Columns of ids that the rule needs."""
        return tuple(name for name in (self.leave_one_out, self.key) if name is not None)

    @property
    def list_given_ways(self) -> list[str]:
        """Names of the keys that are set."""
        ways = (
            "fraction", "exact_fraction", "time", "time_from", "column", "files", "leave_one_out",
        )  # fmt: skip
        return [name for name in ways if getattr(self, name) is not None]


class SplitConfig(SplitRule):
    """Rows that are kept for the test. Set at most one of the seven ways; default: `fraction: 0.1`."""

    test: Text = Field("test", description="Value of `column` in rows that are kept for the test.")

    @property
    def chosen_value(self) -> str:
        """Value of `column` in rows that are chosen."""
        return self.test

    @property
    def test_fraction(self) -> float:
        """Fraction of a random split."""
        return 0.1 if self.fraction is None else self.fraction


class ValidationConfig(SplitRule):
    """Rows that are kept for validation, chosen among those that are not for the test. Set one of
    the seven ways."""

    value: Text = Field(
        "validation", description="Value of `column` in rows that are kept for validation."
    )

    @property
    def chosen_value(self) -> str:
        """Value of `column` in rows that are chosen."""
        return self.value


class HistoryConfig(Section):
    """A list feature that is added to each row: the ids of the user's earlier rows, oldest first."""

    of: Name = Field("item", description="The column of `data.categorical` whose ids are listed.")
    by: Name = Field("user", description="The column of users.")
    length: PositiveInt = Field(
        50, description="Maximum length of a list; it keeps the latest ids."
    )
    name: Name = Field("history", description="The name of the feature.")


class TableData(ColumnSettings):
    """Rows of CSV or Parquet files, or of a table of a lakehouse. Integers are used as ids unchanged.
    Strings are hashed to ids by `sparring.hash_strings`. Null and the empty string mean that a row has
    no id."""

    kind: Literal["table"]
    path: LocalPath = Field(
        min_length=1,
        description="A file, a folder, a pattern with `*`, or a URL of these (`s3://…`). Files are "
        "read in order of name. Names end in `.parquet`, or in `.csv`, `.tsv`, `.txt`, `.dat`, `.data`, "
        "`.inter`, `.jsonl` or `.json`, optionally with `.gz`. `.txt` and `.json` files in a folder are "
        "ignored. Relative paths start at the "
        "folder of the configuration file. Or the URL of a table: `delta:///data/clicks`, "
        "`delta://s3://…`, `iceberg://<catalog>/<namespace>.<table>`, `lance:///data/clicks.lance`.",
    )
    version: Text | None = Field(
        None,
        min_length=1,
        description="Version of a table in `path`: a number, or for Delta Lake a time "
        "(`2026-01-31T12:00:00Z`), for Iceberg a tag or a branch, for Lance a tag. Numbers of Iceberg "
        "are ids of snapshots. Null: the newest version when a run starts, which `--resume` reads again.",
    )
    filter: Annotated[tuple[Text, ...], Field(strict=False, max_length=100)] = Field(
        (),
        description="Conditions on the partitions of Delta Lake or Iceberg, all of which hold: "
        "`[day >= 2026-01-31, country = de]`. The operators are `=`, `!=`, `<`, `<=`, `>` and `>=`.",
    )
    form: Literal["rows", "json", "lines"] | None = Field(
        None,
        description="`rows`: delimited text. `json`: an object per line. `lines`: a user per line, and "
        "all items in order; rows then have the columns `user`, `item` and `position`, or the names of a "
        "header. Null: `json` for files whose name ends in `.jsonl` or `.json`, otherwise `rows`.",
    )
    encoding: Text = Field(
        "utf-8",
        description="Encoding of text files: `utf-16`, `latin-1` or another one of Python. Ids are "
        "hashes of the text in UTF-8.",
    )
    skip_lines: int = Field(
        0,
        ge=0,
        le=1000,
        description="Number of lines before the header, for example 1 for `sep=;`.",
    )
    separator: (
        Annotated[
            Annotated[Separator, Tag("one")] | Annotated[dict[Name, Separator], Tag("per column")],
            Discriminator(_form_of_separator),
        ]
        | None
    ) = Field(
        None,
        description="Separator between the ids of a list in text. Or one per column, `{genres: '|', "
        "tags: json}`, which also removes spaces around ids; `json` reads lists of JSON and Python: "
        "`[8, 14]`.",
    )
    delimiter: str | None = Field(
        None,
        min_length=1,
        max_length=2,
        description="Separator between the values of a row in CSV. Default: a comma; a tab in files "
        "whose name ends in `.tsv` or `.inter`. With two characters, `'::'`, no value has quotes.",
    )
    trim: bool = Field(False, description="Removes spaces around names and values in CSV.")
    column_names: Names | None = Field(
        None,
        description="Names of all columns of CSV files that have no header, in order. Null: the first "
        "row of each file is a header with the names.",
    )
    decimal: Literal[".", ","] = Field(
        ".",
        description="Decimal separator of numbers in CSV. With `,`, points between groups of three "
        "digits are accepted: `1.234,5`.",
    )
    thousands: Literal[",", ".", "'", " "] | None = Field(
        None, description="Separator between groups of three digits in numbers in CSV: `1,234.5`."
    )
    number_signs: Annotated[tuple[Text, ...], Field(strict=False, max_length=20)] = Field(
        (),
        description="Texts before and after numbers in CSV that are ignored: `['$', '%']`. 12.5% is "
        "12.5.",
    )
    date_order: Literal["ymd", "dmy", "mdy"] = Field(
        "ymd", description="Order of day, month and year in times in CSV; `dmy`: `31.01.2024`."
    )
    missing_values: Annotated[tuple[Text, ...], Field(strict=False, max_length=100)] = Field(
        (),
        description="Texts in CSV that mean a missing value, in every column: `[NA, '-', '?']`. The "
        "empty text is always a missing value; in columns of numbers `NA`, `N/A`, `NULL` and `NaN` are, "
        "too.",
    )
    types: dict[Name, IdType] = Field(
        default_factory=dict,
        description="Type of a column of `categorical`. Default in CSV: derived from the first 1,000 "
        "rows; `string` also hashes text that looks like a number. Parquet files contain the type, and a "
        "different one is rejected. `unsigned` accepts integers up to 2^64 - 1; a number n of at least "
        "2^63 becomes the key n - 2^64. `hexadecimal` reads 1 to 16 "
        "hexadecimal digits as an unsigned number, without hashing.",
    )
    time: Name | None = Field(
        None,
        description="The column of times or increasing numbers, for `split` and `history`.",
    )
    history: HistoryConfig | None = Field(
        None,
        description="Adds a feature with the ids of the user's earlier rows by `data.time`, for sequence "
        "models. It uses the table of its column. Needs 32 bytes of memory per row.",
    )
    split: SplitConfig = Field(SplitConfig(), description="Rows that are kept for the test.")
    validation: ValidationConfig | None = Field(
        None,
        description="Rows that are kept for validation, not for training: `{fraction: 0.1}`; null: none.",
    )
    draw: Literal["row", "position"] | None = Field(
        None,
        description="How `fraction` and `exact_fraction` draw rows: `row`, so that other files move no "
        "row, or `position` in all files, as earlier releases did. Null: `row`, or as the resumed run.",
    )
    shuffle: bool = Field(
        True,
        description="Reads the rows of each epoch in a different order, drawn by `seed`. False: in the "
        "order of the files; then every rank reads all files.",
    )
    read: Literal["same_steps", "own"] = Field(
        "same_steps",
        description="`same_steps`: a step has the same rows for every number of ranks. `own`: each rank "
        "reads its own row groups, which is faster on devices with slow random reads; steps then depend "
        "on the number of ranks. Parquet only.",
    )
    lanes: int = Field(
        24,
        ge=1,
        le=4096,
        description="Number of row groups that are read at a time, over all ranks. More ranks than this "
        "share row groups. The rows of a step depend on it. Each needs up to 5 MB per column of local "
        "Parquet files.",
    )
    dictionary: bool = Field(
        False,
        description="Store the string of each hashed id in the folder `strings` of `snapshots.url`; see "
        "`sparring_train.find_strings`.",
    )
    batch_size: PositiveInt = Field(
        4096, description="Rows per step, over all ranks and micro-batches."
    )

    @property
    def id_types(self) -> dict[Name, IdType]:
        return self.types

    def find_separator(self, column: str) -> str | None:
        if isinstance(self.separator, dict):
            return self.separator.get(column)
        return self.separator

    @property
    def time_column(self) -> str | None:
        return self.time

    @property
    def split_columns(self) -> tuple[str, ...]:
        """Columns that the split and the validation need, except `time`."""
        rules = (self.split, self.validation)
        return tuple(name for rule in rules if rule is not None for name in rule.columns)

    @property
    def columns(self) -> Schema:
        schema = super().columns
        if self.history is None:
            return schema
        of = self.history.of
        table = self.share_tables.get(of, of)
        history = Feature(self.history.name, table, is_list=True, may_be_missing=True)
        return replace(schema, features=(*schema.features, history))

    @property
    def has_validation(self) -> bool:
        return self.validation is not None

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from _csv_problems(self)
        yield from _lake_problems(self)
        if self.history is not None:
            yield from _history_problems(self, self.history)
        yield from _split_problems(self)


def _split_problems(data: TableData) -> Iterator[Problem]:
    for key, ways, fewest in (("split", data.split, 0), ("validation", data.validation, 1)):
        if ways is None:
            continue
        if not fewest <= len(ways.list_given_ways) <= 1:
            found = ", ".join(ways.list_given_ways) or "none"
            yield (
                key,
                "must contain a single rule",
                found,
                "one of fraction, exact_fraction, time, time_from, column, files, leave_one_out",
            )
        if ways.key is not None and ways.list_given_ways not in ([], ["fraction"]):
            yield (
                key,
                "has a key, which only fraction uses",
                ", ".join(ways.list_given_ways),
                "fraction",
            )
        if ways.key in data.lists:
            yield (
                key,
                "requires a key with one id per row, not lists",
                str(ways.key),
                "another column",
            )
        if (ways.time is not None or ways.time_from is not None) and data.time is None:
            yield "time", f"is required by data.{key}", "null", "the column of times"


def _lake_problems(data: TableData) -> Iterator[Problem]:
    if data.path.partition("://")[0] in LAKES:
        return
    for key, value in (("version", data.version), ("filter", ", ".join(data.filter))):
        if value not in (None, ""):
            expected = " or ".join(f"{each}://…" for each in LAKES)
            yield key, f"requires a table: data.path is {data.path}", str(value), expected


def _csv_problems(data: TableData) -> Iterator[Problem]:
    if data.delimiter is not None and set(data.delimiter) & set('"\r\n'):
        yield "delimiter", "has a special meaning in CSV", repr(data.delimiter), "another character"
    if data.thousands == data.decimal:
        yield "thousands", "is also data.decimal", repr(data.thousands), "another character"
    try:
        "".encode(data.encoding)
    except (LookupError, UnicodeError):
        yield (
            "encoding",
            "is unknown",
            data.encoding,
            "utf-8, utf-16, latin-1, or another one of Python",
        )
    names = data.column_names
    if names is not None:
        twice = [name for name in names if names.count(name) > 1]
        if twice or not names:
            yield (
                "column_names",
                "must contain each column once",
                twice[0] if twice else "an empty list",
                "the name of each column, in the order of the file",
            )


def _history_problems(data: TableData, history: HistoryConfig) -> Iterator[Problem]:
    if data.time is None:
        yield "time", "is required by data.history", "null", "the column of times"
    if history.of not in data.categorical or history.of in data.lists:
        expected = "a column of data.categorical that is not in data.lists"
        yield "history", "contains an invalid column in `of`", history.of, expected
    if history.by in data.lists:
        yield (
            "history",
            "requires single users, not lists",
            history.by,
            "a column with one id per row",
        )
    if history.name in data.categorical:
        yield "history", "has the name of another column", history.name, "a name that is not in use"
