"""Columns of files as ``sparring init`` writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from sparring_train.data.table.look import ColumnLook

__all__ = ["column_words", "id_columns", "yaml_name"]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_YAML_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def id_columns(ids: Sequence[ColumnLook]) -> Iterator[str]:
    """Lines of `data` for columns of ids."""
    yield "  categorical:            # columns of ids: each has a table of embeddings"
    yield from (f"    - {yaml_name(each.name)}  # {column_words(each)}" for each in ids)
    if any(each.is_list for each in ids):
        names = ", ".join(yaml_name(each.name) for each in ids if each.is_list)
        yield f"  lists: [{names}]       # any number of ids in a row"
        separator = next((each.separator for each in ids if each.separator), None)
        if separator is not None:
            yield f"  separator: {json.dumps(separator)}"


def column_words(column: ColumnLook) -> str:
    """Description of the ids of a column."""
    parts = [f"{'lists of ' if column.is_list else ''}{column.num_distinct:,} distinct"]
    parts.append(f"the most frequent has {column.top_share:.1%}")
    if column.once_share >= 0.005:
        parts.append(f"{column.once_share:.0%} occur once")
    if column.num_missing:
        parts.append(f"{column.num_missing:,} missing")
    return ", ".join(parts)


def yaml_name(name: str) -> str:
    """A column's name as YAML has it."""
    is_plain = _PLAIN.fullmatch(name) is not None and name.lower() not in _YAML_WORDS
    return name if is_plain else json.dumps(name, ensure_ascii=False)
