"""``sparring skew``: compares what a service logged with the data of the training."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sparring_cli import ExitCode, JsonOption, add_command, print_json
from sparring_train.skew.compare import ColumnSkew, SkewReport, compare_files

__all__ = ["add_skew"]

_MAX_SHOWN = 80
"""Maximum number of characters of a value."""


def add_skew(application: typer.Typer) -> None:
    add_command(
        application,
        "skew",
        skew,
        examples=[
            "sparring skew served-log train.parquet --key request_id --key item",
            "sparring skew served.parquet train.parquet --json",
        ],
    )


def skew(
    served: Annotated[
        str,
        typer.Argument(metavar="SERVED", help="The folder of `server.log`, or a file of rows."),
    ],
    trained: Annotated[
        str,
        typer.Argument(metavar="TRAINED", help="A file or folder of Parquet or Arrow files."),
    ],
    key: Annotated[
        list[str] | None,
        typer.Option(
            help="A column by which rows are joined, or SERVED=TRAINED if its names differ. Several "
            "columns together identify a row. Default: rows are joined in their order."
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--columns", help="A column to compare. Default: all that both contain."),
    ] = None,
    examples: Annotated[
        int, typer.Option(help="Maximum number of examples per column.", min=0)
    ] = 3,
    as_json: JsonOption = False,
) -> None:
    """Compare the ids and numbers of served requests with the data of the training, bit by bit.

    Strings are compared as ids, after hashing, and numbers as float32. The exit code is 1 if any value
    differs.
    """
    report = compare_files(
        served, trained, keys=key or (), columns=columns or (), max_examples=examples
    )
    if as_json:
        print_json({"differs": report.differs, **asdict(report)})
    else:
        _print(report)
    if report.differs:
        raise typer.Exit(ExitCode.FAILURE)


def _print(report: SkewReport) -> None:
    typer.echo(f"joined {report.num_joined:,} of {report.num_served:,} served rows")
    if report.num_without_sample:
        typer.echo(f"left out {report.num_without_sample:,} requests without a sample")
    for each in report.columns:
        typer.echo(_describe(each))
    for names, where in (
        (report.only_served, "log"),
        (report.only_trained, "data of the training"),
    ):
        if names:
            typer.echo(f"not compared, because only the {where} has them: {', '.join(names)}")


def _describe(column: ColumnSkew) -> str:
    lines = [
        f"{column.name}: {column.num_differing:,} of {column.num_compared:,} values differ"
        if column.num_differing
        else f"{column.name}: {column.num_compared:,} values are equal"
    ]
    lines += [
        f"  served row {each.served_row:,}: {_shorten(each.served)}; trained row "
        f"{each.trained_row:,}: {_shorten(each.trained)}"
        for each in column.examples
    ]
    return "\n".join(lines)


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
