"""``sparring blame``: shows when the row of one key changed, and from which data."""

from __future__ import annotations

from typing import Annotated

import typer

from sparring_cli import ExitCode, JsonOption, add_command, print_json
from sparring_train.run.history import format_time
from sparring_train.run.row_changes import RowChange, describe_change, find_changes
from sparring_train.run.snapshot_rows import parse_candidate_keys

__all__ = ["add_blame"]


def add_blame(application: typer.Typer) -> None:
    add_command(
        application,
        "blame",
        blame,
        examples=[
            "sparring blame runs/films item 7",
            "sparring blame runs/films/step-000000000200 user ann --json",
        ],
        accepts_negative_numbers=True,
    )


def blame(
    place: Annotated[
        str,
        typer.Argument(
            metavar="SNAPSHOT",
            help="A snapshot, or a folder of snapshots, whose newest one is used. The kept versions "
            "that led to it are searched.",
        ),
    ],
    table: Annotated[str, typer.Argument(help="The table's name.")],
    key: Annotated[str, typer.Argument(help="The id: a number, or a string as in the data.")],
    as_json: JsonOption = False,
) -> None:
    """Show when the row of one key changed, how far it moved, and from which data.

    Lists the versions with changes, oldest first, with the offsets of a stream or the epochs that were
    trained since the version before. The exit code is 3 if no version has a row.
    """
    meant = parse_candidate_keys(key)
    for candidate in meant:
        changes, versions = find_changes(place, table, candidate)
        if changes:
            break
    else:
        candidate = meant[0]
    if as_json:
        found = [describe_change(each) for each in changes]
        print_json({"table": table, "key": candidate, "versions": len(versions), "changes": found})
    else:
        steps = f"steps {versions[0].step:,} to {versions[-1].step:,}"
        typer.echo(
            f"table {table}, key {candidate}: {len(changes):,} changes in {len(versions):,} versions, "
            f"{steps}"
        )
        for each in changes:
            typer.echo(_describe(each))
    if not changes:
        raise typer.Exit(ExitCode.NOT_FOUND)


def _describe(change: RowChange) -> str:
    parts = [f"{change.snapshot.name}", f"{change.kind:8}"]
    if change.time is not None:
        parts.insert(1, format_time(change.time))
    if change.moved is not None:
        parts.append(f"moved {change.moved:.6g}")
    if change.norm is not None:
        parts.append(f"norm {change.norm:.6g}")
    parts += [f"{name}: {begin}-{end}" for name, (begin, end) in (change.cuts or {}).items()]
    if change.epochs is not None:
        first, last = change.epochs
        number = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        parts.append(f"{number} of {change.path}" if change.path else number)
    return "  ".join(parts)
