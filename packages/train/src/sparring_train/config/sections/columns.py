"""Columns of examples, which kinds of data that read rows have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from sparring import TableConfig
from sparring.errors import InvalidArgumentError
from sparring_train.columns import Feature, Label, Schema
from sparring_train.config.sections.kinds import DataSection

__all__ = ["ColumnSettings", "IdType", "Name", "Names", "Problem", "Text", "is_table_name"]

Name = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Name, ...], Field(strict=False, max_length=10_000)]

IdType = Literal["integer", "unsigned", "hexadecimal", "string"]
"""Type of a column of ids."""

Problem = tuple[str, str, str, str]
"""Key, problem, value found, values expected."""


def _as_text(value: Any) -> Any:
    """Converts a number or a truth value to the text that is compared with a column."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else value


Text = Annotated[str, BeforeValidator(_as_text)]


class ColumnSettings(DataSection):
    """Selects the columns of rows and their meaning."""

    label: Name | None = Field(
        None,
        description="The column of labels: 0 and 1 (or false and true) for a log loss, numbers for "
        "a squared error.",
    )
    categorical: Names = Field(
        description="Columns of ids. Each is a feature with a table of the same name."
    )
    numeric: Names = Field((), description="Columns of numbers; null is read as 0.")
    lists: Names = Field(
        (),
        description="Columns of `categorical` that contain any number of ids per row: lists in Parquet, "
        "Arrow and JSON, ids separated by `separator` in CSV.",
    )
    required: Names = Field(
        (),
        description="Columns of `categorical` in which each row must have an id; a row without one is a "
        "bad row. Models of users and items require their user and item columns to be listed.",
    )
    label_values: dict[str, Annotated[float, Field(strict=False)]] = Field(
        default_factory=dict,
        description="The number that each text of `label` means: `{yes: 1, no: 0}`. Other texts are bad "
        "rows. Default: labels are numbers, `true` and `false`.",
    )
    share_tables: dict[Name, Name] = Field(
        default_factory=dict,
        description="Table that a column of `categorical` uses, if its name is not the name of the "
        "column: `{last_item: item}`.",
    )
    missing_ids: dict[Name, Annotated[int, Field(ge=-(2**63), lt=2**63)]] = Field(
        default_factory=dict,
        description="Id of the rows that have no id in a column of `categorical`, which gives missing "
        "ids an embedding: `{city: -1}`. Choose an id that does not occur in the column.",
    )
    minimum: dict[Name, Annotated[float, Field(strict=False, allow_inf_nan=False)]] = Field(
        default_factory=dict,
        description="Minimum of a column of `numeric`: `{price: 0}`. Smaller numbers are replaced by it, "
        "before `log1p` is applied.",
    )
    log1p: Names = Field(
        (),
        description="Columns of `numeric` that are transformed to sign(x) · log(1 + |x|).",
    )
    weight: Name | None = Field(
        None,
        description="The column of sample weights in the loss, at least 0. Default: 1 for each row.",
    )
    bad_rows: Literal["refuse", "skip"] = Field(
        "refuse",
        description="Handling of rows with an invalid value: `refuse` raises an error, `skip` leaves the "
        "row out and counts it.",
    )

    @property
    @abstractmethod
    def id_types(self) -> Mapping[str, IdType]:
        """Column of `categorical` → its type, where it is specified."""

    def find_separator(self, column: str) -> str | None:
        """Returns the separator of the lists in a column of texts; None: the column has no such lists."""
        return None

    @property
    def time_column(self) -> str | None:
        """Column of times."""
        return None

    @property
    def columns(self) -> Schema:
        features = (
            Feature(
                name,
                self.share_tables.get(name, ""),
                is_list=name in self.lists,
                may_be_missing=name not in self.required and name not in self.missing_ids,
            )
            for name in self.categorical
        )
        return Schema(
            tuple(features),
            numbers=self.numeric,
            label=None if self.label is None else "number",
            has_weights=self.weight is not None,
        )

    @property
    def labels(self) -> tuple[Label | None, ...]:
        return (None,) if self.label is None else ("binary", "number", None)

    def problems(self) -> Iterator[Problem]:
        """Yields the problems of names that contradict each other."""
        yield from _name_problems(self)
        yield from _missing_id_problems(self)
        yield from _table_name_problems(self)

    @model_validator(mode="after")
    def _names_fit(self) -> ColumnSettings:
        for key, message, found, expected in self.problems():
            context = {"path": ("data", key), "found": found, "expected": expected}
            raise PydanticCustomError("table_columns", message, context)
        return self


def _name_problems(data: ColumnSettings) -> Iterator[Problem]:
    if not data.categorical:
        yield "categorical", "has no column", "an empty list", "one column of ids or more"
    singles = tuple(name for name in data.categorical if name not in data.lists)
    for key, columns, allowed in (
        ("lists", data.lists, data.categorical),
        ("required", data.required, singles),
        ("missing_ids", tuple(data.missing_ids), singles),
        ("share_tables", tuple(data.share_tables), data.categorical),
        ("types", tuple(data.id_types), data.categorical),
        ("log1p", data.log1p, data.numeric),
        ("minimum", tuple(data.minimum), data.numeric),
    ):
        for name in columns:
            if name not in allowed:
                section = "numeric" if allowed is data.numeric else "categorical"
                message = f"contains a column that is not in data.{section}"
                yield key, message, name, ", ".join(allowed) or "none"
    for key, names in (("categorical", data.categorical), ("numeric", data.numeric)):
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            yield key, "contains a column twice", twice[0], "each column once"
    if data.label is not None and data.label in (*data.categorical, *data.numeric):
        yield "label", "is also an input column", data.label, "a column that is used only as label"
    if data.label_values and data.label is None:
        yield "label_values", "requires a label column", "data.label: null", "the column of labels"


def is_table_name(name: str) -> bool:
    """Returns whether a table may have this name."""
    try:
        TableConfig(name, 1)
    except InvalidArgumentError:
        return False
    return True


def _missing_id_problems(data: ColumnSettings) -> Iterator[Problem]:
    for name in data.missing_ids:
        if name in data.required:
            expected = "one of data.required and data.missing_ids"
            yield "missing_ids", "contains a column that is also in data.required", name, expected


def _table_name_problems(data: ColumnSettings) -> Iterator[Problem]:
    for name in data.categorical:
        table = data.share_tables.get(name, name)
        if not is_table_name(table):
            yield (
                "categorical" if table == name else "share_tables",
                "contains a column that is not a valid table name; set its table in data.share_tables",
                table,
                "ASCII letters, digits, and _ . -, starting with a letter or underscore",
            )
