"""``sparring report``: shows a run, or compares several."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from sparring.errors import DataError
from sparring_cli import (
    JsonOption,
    add_command,
    as_yaml,
    make_console,
    print_json,
    print_note,
)
from sparring_train.cli.get import open_newest_snapshot
from sparring_train.report.comparison import Comparison, compare
from sparring_train.report.comparison_page import write_comparison
from sparring_train.report.page import write_report
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
    add_command(
        application,
        "report",
        report,
        examples=[
            "sparring report first.html second.html",
            "sparring report runs/a runs/b --output comparison.html",
        ],
    )


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Runs, each as the HTML file of its report, a snapshot of a run with a report, or a "
            "folder of such snapshots, whose newest one is used.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write one HTML page to this file.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run, or compare several: metrics, speed, memory, rows, configuration and versions."""
    comparison = compare(runs, [_run(each) for each in runs])
    if output is not None and len(runs) == 1:
        _write_one(output, comparison.runs[0])
    elif output is not None:
        write_comparison(output, comparison)
    if as_json:
        print_json(comparison.as_json())
    elif output is not None:
        print_note(f"{output}: {', '.join(runs)}")
    else:
        _print(comparison)


def _write_one(path: Path, run: RunData) -> None:
    """Writes the report of a run again, for example of a run that was killed."""
    write_report(path, run, config_text=as_yaml(run.config) if run.config else "")


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
    for label, name in zip(comparison.labels, comparison.names, strict=True):
        console.print(Text(f"{label}: ", style="bold").append(name, "not bold"), soft_wrap=True)
    is_one = len(comparison.names) == 1
    for title, lines in comparison.sections.items():
        # Rows are shown only for tables that differ, largest difference first.
        shown = [line for line in lines if title != "rows" or line.differs or is_one]
        if title == "rows":
            shown.sort(key=lambda line: -abs(line.difference or 0))
        if is_one and not shown:
            continue
        console.print()
        if not shown:
            console.print(Text(title, style="bold").append(": no difference", "not bold"))
            continue
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column(title)
        for name in comparison.columns:
            table.add_column(name, justify="right", overflow="fold")
        for line in shown[:_MAX_LINES]:
            table.add_row(Text(line.name), *map(Text, line.cells()))
        console.print(table)
        if len(shown) > _MAX_LINES:
            console.print(Text(f"and {len(shown) - _MAX_LINES:,} more: see --output", style="dim"))
