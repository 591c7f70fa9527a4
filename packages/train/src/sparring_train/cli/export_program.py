"""``sparring export-program``: a trained model as a folder that C++ runs on serving snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparring.errors import SnapshotError, UnsupportedError
from sparring_cli import JsonOption, add_command, get_command_context, print_json
from sparring_train.cli.get import open_newest_snapshot
from sparring_train.cli.train import OverridesArgument
from sparring_train.config.reading.loader import load_config
from sparring_train.config.run import RunConfig
from sparring_train.hookspecs import ProgramRequest
from sparring_train.registered_kinds import find_trainer

__all__ = ["add_export_program"]


def add_export_program(application: typer.Typer) -> None:
    add_command(
        application,
        "export-program",
        export_program,
        examples=[
            "sparring export-program run.yaml --output bundle",
            "sparring export-program run.yaml --served served/films --follow -o bundle --json",
        ],
    )


def export_program(
    context: typer.Context,
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="The YAML file of the run.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to create.")],
    overrides: OverridesArgument = None,
    served: Annotated[
        str, typer.Option(help="A serving snapshot, or a folder of them; see `sparring publish`.")
    ] = "served",
    snapshot: Annotated[
        str | None,
        typer.Option(help="A snapshot, or a folder of them. Default: snapshots.url of the run."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", help="Let the program read later versions of its tables and parameters."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a trained model as a program that runs without Python, on a serving snapshot."""
    manager = get_command_context(context).plugin_manager
    run = load_config(config, overrides or [], plugin_manager=manager)
    export = find_trainer(run.framework, manager).export
    if export is None:
        raise UnsupportedError(
            f"{config}: the trainer of framework {run.framework!r} does not export programs; use another "
            "framework, such as torch"
        )
    _check_exportable(config, run)
    place = snapshot or run.snapshots.url
    if place is None:
        raise SnapshotError(
            f"{config}: snapshots.url is null, so there is no snapshot to export; give one by --snapshot"
        )
    url = open_newest_snapshot(place).url
    export(run, manager, ProgramRequest(url, served, str(output), follow))
    if as_json:
        print_json({"output": str(output), "snapshot": url, "served": served})
    else:
        typer.echo(f"{output}: a program of {url}, bound to {served}")


def _check_exportable(path: str, run: RunConfig) -> None:
    if run.model.loss == "ranking":
        ranking = run.model.ranking(run.data.columns)
        fix = "use `sparring recommend`, for example with --all-users"
        # Otherwise the rows of users are inputs of the model, and not its vectors.
        if ranking is not None and ranking.user_is_row:
            fix += (
                ", or publish its tables and query a service for the best items: sparring publish"
            )
        raise UnsupportedError(
            f"{path}: model.kind: {run.model.kind} ranks items, but programs predict one number per "
            f"example; {fix}"
        )
    lists = [feature.name for feature in run.data.columns.features if feature.is_list]
    if lists:
        raise UnsupportedError(
            f"{path}: {', '.join(lists)} are lists, but programs accept one id per feature; remove them "
            "from data.categorical, or export your own module: sparring_torch.export_program"
        )
