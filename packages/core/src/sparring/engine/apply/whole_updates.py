"""Concatenation of the rows of blocks of columns, so that optimizers see one array per table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from sparring.contracts.tables.table import TableConfig
from sparring.engine.apply.gather import TableUpdate
from sparring.engine.tables.tables import Tables

__all__ = ["block_shape", "whole_updates"]


@contextmanager
def whole_updates(
    tables: Tables, updates: Mapping[str, TableUpdate]
) -> Iterator[dict[str, TableUpdate]]:
    """Context of an update: the rows of all blocks of a table are concatenated, as rows of a table of
    the same name that has the width of a block.

    Args:
        tables: tables of this rank.
        updates: updates by entry; their rows are changed at the end.
    """
    grouped: dict[str, list[TableUpdate]] = {}
    for name, each in updates.items():
        grouped.setdefault(tables.entry(name).table_name, []).append(each)
    given, copied = dict[str, TableUpdate](), list[tuple[TableUpdate, list[TableUpdate]]]()
    for table, parts in grouped.items():
        first = parts[0]
        if first.table.name == table:
            given[table] = first
            continue
        config = block_shape(tables, table)
        if len(parts) == 1:
            keys, rows, gradients = first.keys, first.rows, first.gradients
        else:
            keys, rows, gradients = (
                np.concatenate([getattr(each, name) for each in parts])
                for name in ("keys", "rows", "gradients")
            )
        given[table] = TableUpdate(config, keys, rows, gradients, first.step)
        if len(parts) > 1:
            copied.append((given[table], parts))
    yield given
    for joined, parts in copied:
        begin = 0
        for each in parts:
            end = begin + len(each.rows)
            each.rows[...] = joined.rows[begin:end]
            begin = end


def block_shape(tables: Tables, table: str) -> TableConfig:
    """Returns a table as optimizers see it: the table itself, or a table with the shape of its blocks,
    which all have the same shape."""
    first = tables.parts_of(table)[0]
    return first.config if first.block is None else replace(first.config, name=table)
