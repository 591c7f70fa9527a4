"""``sparring config``: shows or checks a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sparring_cli import JsonOption, add_command, get_command_context, print_document, print_json
from sparring_train.cli.train import ConfigArgument, OverridesArgument
from sparring_train.config.reading.loader import load_config
from sparring_train.config.reading.printer import config_as_yaml
from sparring_train.config.schema import config_schema
from sparring_train.run.same_run import absolute_paths

__all__ = ["add_config"]

OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="File to write. Default: standard output."),
]


def add_config(application: typer.Typer) -> None:
    group = typer.Typer(
        help="Show or check a configuration, or print its JSON schema.", no_args_is_help=True
    )
    add_command(
        group,
        "show",
        show,
        examples=[
            "sparring config show run.yaml",
            "sparring config show run.yaml training.epochs=3 --output complete.yaml",
        ],
    )
    add_command(
        group,
        "check",
        check,
        examples=[
            "sparring config check run.yaml",
            "sparring config check run.yaml data.path=clicks.parquet --json",
        ],
    )
    add_command(
        group,
        "schema",
        schema,
        examples=[
            "sparring config schema --output sparring.schema.json",
            "sparring config schema",
        ],
    )
    application.add_typer(group, name="config")


def show(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    output: OutputOption = None,
) -> None:
    """Print the complete configuration as YAML, with defaults, overrides and absolute paths."""
    # Absolute paths keep the output valid in any folder.
    folder = str(Path(config).absolute().parent)
    whole = absolute_paths(load_config(config, overrides or (), folder=folder))
    print_document(config_as_yaml(whole), output)


def check(
    context: typer.Context,
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    as_json: JsonOption = False,
) -> None:
    """Check a configuration, including backends and their options, without running it."""
    load_config(config, overrides or (), plugin_manager=get_command_context(context).plugin_manager)
    if as_json:
        print_json({"config": config, "is_correct": True})
    else:
        typer.echo(f"{config}: correct")


def schema(context: typer.Context, output: OutputOption = None) -> None:
    """Print the JSON schema of configurations, with which editors complete and check YAML files."""
    found = config_schema(get_command_context(context).plugin_manager)
    print_document(json.dumps(found, indent=2) + "\n", output)
