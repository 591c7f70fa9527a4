"""Sections about columns that ``sparring init`` writes."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import TYPE_CHECKING

from sparring_train.cli.init.words import quote_yaml_name
from sparring_train.config.sections.columns import is_table_name
from sparring_train.data.table.sample import Sample
from sparring_train.data.table.summary import ColumnSummary, TableSummary, is_text

if TYPE_CHECKING:
    from sparring_train.cli.init.label import ChosenLabel

__all__ = [
    "bad_row_lines",
    "dictionary_lines",
    "format_column_words",
    "id_columns",
    "label_lines",
    "random_split",
]

_FEW_ROWS = 100
"""Fewer rows may all be drawn for the training."""


def dictionary_lines(summary: TableSummary, ids: Sequence[ColumnSummary]) -> Iterator[str]:
    """Yields the line that stores strings, if ids are strings."""
    if any(each.type == "string" or is_text(summary.values[each.name].type) for each in ids):
        yield "  dictionary: true        # results contain the strings of the file"


def label_lines(label: ChosenLabel) -> Iterator[str]:
    """Yields the lines of `data` for the label."""
    yield f"  label: {quote_yaml_name(label.name)}"
    if label.values:
        pairs = ", ".join(
            f"{quote_yaml_name(text)}: {each:g}" for text, each in label.values.items()
        )
        yield f"  label_values: {{{pairs}}}"


def random_split(summary: TableSummary) -> Iterator[str]:
    """Yields the line of `data` that draws the rows for the test, or chooses them by names of files."""
    if summary.sample.test_files is not None:
        yield f"  split: {{files: {json.dumps(summary.sample.test_files)}}}"
        if summary.sample.validation_files is not None:
            yield f"  validation: {{files: {json.dumps(summary.sample.validation_files)}}}"
        return
    key = "fraction" if summary.num_rows >= _FEW_ROWS else "exact_fraction"
    yield f"  split: {{{key}: 0.1}}  # a random tenth is the test"


def bad_row_lines(
    summary: TableSummary, columns: Sequence[str | None], required: Sequence[str | None]
) -> Iterator[str]:
    """Yields the lines of `data` for bad rows.

    Args:
        summary: columns of the files.
        columns: columns of numbers, labels, weights and times; None is ignored.
        required: columns that must have a value; None is ignored.
    """
    names, must = ([each for each in given if each is not None] for given in (columns, required))
    summary.find_bad_rows(names, must)
    if summary.num_bad:
        total = summary.num_sampled + summary.sample.num_broken
        yield f"  # {summary.num_bad:,} of the {total:,} rows that were read are bad. The first one:"
        yield f"  # {summary.first_bad}"
        yield "  bad_rows: skip          # leaves bad rows out; refuse would stop at the first one"


def id_columns(ids: Sequence[ColumnSummary], sample: Sample) -> Iterator[str]:
    """Yields the lines of `data` for columns of ids and for the format of values."""
    for key, value in sample.keys.items():
        yield f"  {key}: {json.dumps(value, ensure_ascii=False)}"
    yield "  categorical:            # columns of ids, each with a table of embeddings"
    yield from (
        f"    - {quote_yaml_name(each.name)}  # {format_column_words(each)}" for each in ids
    )
    if any(each.is_list for each in ids):
        names = ", ".join(quote_yaml_name(each.name) for each in ids if each.is_list)
        yield f"  lists: [{names}]       # any number of ids per row"
        separators = {each.name: each.separator for each in ids if each.separator}
        if separators:
            pairs = (
                f"{quote_yaml_name(name)}: {json.dumps(each)}" for name, each in separators.items()
            )
            yield f"  separator: {{{', '.join(pairs)}}}"
    if tables := _table_names(ids):
        names = ", ".join(f"{quote_yaml_name(name)}: {table}" for name, table in tables.items())
        yield f"  share_tables: {{{names}}}  # names of tables must have ASCII letters, digits and _ . -"
    if types := ", ".join(
        f"{quote_yaml_name(each.name)}: {each.type}" for each in ids if each.type
    ):
        yield f"  types: {{{types}}}    # not determined by the first rows"


def _table_names(ids: Sequence[ColumnSummary]) -> dict[str, str]:
    """Returns a table name for each column whose name is not a valid table name."""
    used = {each.name for each in ids}
    found: dict[str, str] = {}
    for each in ids:
        if is_table_name(each.name):
            continue
        letters = unicodedata.normalize("NFKD", each.name).encode("ascii", "ignore").decode()
        words = re.sub(r"[^A-Za-z0-9]+", "_", letters).strip("_")[:190]
        wanted = words if is_table_name(words) else f"column_{words}".strip("_")
        name = next(one for one in chain([wanted], _numbered(wanted)) if one not in used)
        used.add(name)
        found[each.name] = name
    return found


def _numbered(name: str) -> Iterator[str]:
    return (f"{name}_{number}" for number in count(2))


def format_column_words(column: ColumnSummary) -> str:
    """Returns a description of the ids in a column."""
    parts = [f"{'lists of ' if column.is_list else ''}{column.num_distinct:,} distinct"]
    parts.append(f"the most frequent has {column.top_share:.1%}")
    if column.once_share >= 0.005:
        parts.append(f"{column.once_share:.0%} occur once")
    if column.num_missing:
        parts.append(f"{column.num_missing:,} missing")
    return ", ".join(parts)
