"""Differences between two plans, and the bytes that a change from one to the other moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparring_plan.planning.plan import Plan, TablePlan

__all__ = ["TableChange", "diff_plans"]


@dataclass(frozen=True, slots=True)
class TableChange:
    """A table that two plans shard differently. `before` or `after` is None if that plan does not
    contain the table."""

    name: str
    before: TablePlan | None
    after: TablePlan | None
    moved_bytes: int
    """Bytes that ranks receive and did not have before."""


@dataclass(frozen=True, slots=True)
class _TablePart:
    """The part of a table on a rank: shares of its rows and of its columns."""

    rank: int
    rows: tuple[float, float]
    columns: tuple[float, float]


def diff_plans(before: Plan, after: Plan) -> list[TableChange]:
    """Returns the tables that differ in kind, ranks, columns, transfer or storage, sorted by name.

    Raises:
        ConfigError: The number of ranks of a table is not a multiple of its column blocks.
    """
    changes = []
    for name in sorted({*before.tables, *after.tables}):
        old, new = before.tables.get(name), after.tables.get(name)
        if old is None or new is None:
            changes.append(TableChange(name, old, new, 0))
        elif _place(old) != _place(new) or before.ranks != after.ranks:
            held = list(_held(before, name, old))
            moved = sum(_missing(each, held) for each in _held(after, name, new))
            if old.storage != new.storage:
                moved = sum(_area(each) for each in _held(after, name, new))
            changes.append(TableChange(name, old, new, round(moved * new.table_bytes)))
    return changes


def _place(table: TablePlan) -> tuple[object, ...]:
    return table.kind, table.ranks, table.columns, table.transfer, table.storage


def _held(plan: Plan, name: str, table: TablePlan) -> Iterator[_TablePart]:
    whole = (0.0, 1.0)
    ranks = list(range(plan.ranks)) if table.ranks == "all" else table.ranks
    if table.kind == "data_parallel":
        yield from (_TablePart(rank, whole, whole) for rank in ranks)
        return
    of_block, rest = divmod(len(ranks), table.columns)
    if rest or not of_block:
        raise plan.make_error(
            name,
            "columns",
            f"found {len(ranks)} ranks, expected a multiple of {table.columns} blocks of columns; use "
            "the same number of ranks for each block, or change columns",
        )
    for index, rank in enumerate(ranks):
        block, part = divmod(index, of_block)
        rows = part / of_block, (part + 1) / of_block
        yield _TablePart(rank, rows, (block / table.columns, (block + 1) / table.columns))


def _area(held: _TablePart) -> float:
    return (held.rows[1] - held.rows[0]) * (held.columns[1] - held.columns[0])


def _missing(wanted: _TablePart, held: list[_TablePart]) -> float:
    """Returns the share of a table that a rank needs and does not have. `held` has at most one
    part."""
    for each in held:
        if each.rank == wanted.rank:
            rows = min(wanted.rows[1], each.rows[1]) - max(wanted.rows[0], each.rows[0])
            columns = min(wanted.columns[1], each.columns[1]) - max(
                wanted.columns[0], each.columns[0]
            )
            return _area(wanted) - max(rows, 0) * max(columns, 0)
    return _area(wanted)
