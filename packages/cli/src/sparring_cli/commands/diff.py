"""``sparring diff``: compares the tables of two snapshots."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from sparring import Snapshot
from sparring.errors import UnknownTableError
from sparring_cli.commands.snapshots import open_newest
from sparring_cli.output import print_json
from sparring_cli.registration import JsonOption, add_command
from sparring_cli.snapshots.difference import TableDifference, compare_tables
from sparring_cli.snapshots.formatting import count_of

__all__ = ["add_diff"]


def add_diff(application: typer.Typer) -> None:
    add_command(
        application,
        "diff",
        diff,
        examples=[
            "sparring diff runs/films/step-000000000100 runs/films/step-000000000200",
            "sparring diff runs/films other/films --table item --top 3 --json",
        ],
    )


def diff(
    before: Annotated[
        str, typer.Argument(metavar="A", help="Snapshot, or folder whose newest one is used.")
    ],
    after: Annotated[str, typer.Argument(metavar="B", help="Snapshot to compare with A.")],
    table: Annotated[
        list[str] | None, typer.Option("--table", help="Table to compare. Default: all tables.")
    ] = None,
    top: Annotated[
        int, typer.Option(help="Number of rows to list that moved most.", min=0, max=100_000)
    ] = 10,
    as_json: JsonOption = False,
) -> None:
    """Compare the tables of two snapshots: rows created, erased, changed, and moved most."""
    sides = open_newest(before), open_newest(after)
    for name in table or ():
        if not any(name in each.tables for each in sides):
            raise UnknownTableError(
                f"diff: found no table {name!r} in {sides[0].url} and {sides[1].url}; choose one of: "
                f"{', '.join(sorted({*sides[0].tables, *sides[1].tables})) or 'none'}",
                table=name,
            )
    wanted = {name for each in sides for name in each.tables if not table or name in table}
    created, erased, compared = [], [], []
    for name in sorted(wanted):
        if name not in sides[0].tables:
            created.append(name)
        elif name not in sides[1].tables:
            erased.append(name)
        else:
            compared.append(compare_tables(*sides, name, top))
    if as_json:
        print_json(
            {
                **{key: _version(each) for key, each in zip("ab", sides, strict=True)},
                "tables_created": created,
                "tables_erased": erased,
                "tables": {each.table: _facts(each) for each in compared},
            }
        )
        return
    for name in created:
        typer.echo(f"table {name} is only in {sides[1].url}")
    for name in erased:
        typer.echo(f"table {name} is only in {sides[0].url}")
    for each in compared:
        _print(each)


def _version(snapshot: Snapshot) -> dict[str, Any]:
    return {"snapshot": snapshot.url, "step": snapshot.step}


def _facts(found: TableDifference) -> dict[str, Any]:
    return {
        "rows": found.num_rows,
        "created": found.num_created,
        "erased": found.num_erased,
        "changed": found.num_changed,
        "moved": found.num_moved,
        "moved_mean": found.sum_moved / found.num_moved if found.num_moved else None,
        "norm_mean": found.mean_norms,
        "norm_max": found.max_norms,
        "most_moved": [
            {
                "key": each.key,
                "moved": _finite(each.moved),
                "norm": [_finite(norm) for norm in each.norms],
            }
            for each in found.most_moved
        ],
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _print(found: TableDifference) -> None:
    before, after = found.num_rows
    typer.echo(
        f"table {found.table}: {before:,} to {count_of(after, 'row')}; {found.num_created:,} created, "
        f"{found.num_erased:,} erased, {found.num_changed:,} changed"
    )
    means = ["none" if each is None else f"{each:.6g}" for each in found.mean_norms]
    typer.echo(
        f"  norm: mean {means[0]} to {means[1]}, max {found.max_norms[0]:.6g} to "
        f"{found.max_norms[1]:.6g}"
    )
    if found.num_moved:
        typer.echo(
            f"  moved: {count_of(found.num_moved, 'row')}, mean "
            f"{found.sum_moved / found.num_moved:.6g}"
        )
    for each in found.most_moved:
        norms = f"{each.norms[0]:.6g} to {each.norms[1]:.6g}"
        typer.echo(f"  key {each.key}: moved {each.moved:.6g}, norm {norms}")
