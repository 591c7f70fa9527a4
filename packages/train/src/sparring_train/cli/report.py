"""``sparring report``: compares two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from sparring.errors import DataError
from sparring_cli import make_console, print_json
from sparring_train.cli.get import open_newest_snapshot
from sparring_train.report.comparison import Comparison, compare
from sparring_train.report.comparison_page import write_comparison
from sparring_train.report.run_data import (
    REPORT,
    RunData,
    SnapshotOfRun,
    read_report,
    run_data,
)

__all__ = ["add_report"]

_MAX_LINES = 40
"""Maximum number of lines of a section in a terminal."""


def add_report(application: typer.Typer) -> None:
    application.command("report")(report)


def report(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A run: the HTML file of its report, a snapshot of a run with a report, or a folder "
            "of such snapshots, whose newest one is used.",
            show_default=False,
        ),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="Another run.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the comparison as one HTML page to this file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Compare two runs: metrics, speed, memory, rows, configuration and versions."""
    comparison = compare((first, second), (_run(first), _run(second)))
    if output is not None:
        write_comparison(output, comparison)
    if as_json:
        print_json(comparison.as_json())
    elif output is not None:
        typer.echo(f"{output}: {first} and {second}")
    else:
        _print(comparison)


def _run(place: str) -> RunData:
    """Reads the run of a report or a snapshot.

    Raises:
        DataError: it contains no data of a run, or is damaged.
        SnapshotError: the snapshot cannot be read.
    """
    if "://" not in place and not Path(place).is_dir():
        return read_report(place)
    snapshot = open_newest_snapshot(place)
    if REPORT not in snapshot.state_names(0):
        raise DataError(
            f"{snapshot.url}: the snapshot contains no report; set report.path in the run, so that its "
            "snapshots contain one, or give the HTML file of a run",
            path=snapshot.url,
        )
    found = run_data(snapshot.state(REPORT).values, snapshot.url)
    own = SnapshotOfRun(url=snapshot.url, step=snapshot.step, manifest_hash=snapshot.manifest_hash)
    return found.model_copy(update={"snapshot": own})


def _print(comparison: Comparison) -> None:
    console = make_console()
    for letter, name in zip("AB", comparison.names, strict=True):
        console.print(Text(f"{letter}: ", style="bold").append(name, "not bold"), soft_wrap=True)
    for title, lines in comparison.sections.items():
        console.print()
        # Rows are shown only for tables that differ, largest difference first.
        shown = [line for line in lines if title != "rows" or line.first != line.second]
        if title == "rows":
            shown.sort(key=lambda line: -abs(line.difference or 0))
        if not shown:
            console.print(Text(title, style="bold").append(": no difference", "not bold"))
            continue
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(title)
        for name in ("A", "B", "difference"):
            table.add_column(name, justify="right", overflow="fold")
        for line in shown[:_MAX_LINES]:
            table.add_row(Text(line.name), *map(Text, line.cells()))
        console.print(table)
        if len(shown) > _MAX_LINES:
            console.print(Text(f"and {len(shown) - _MAX_LINES:,} more: see --output", style="dim"))
