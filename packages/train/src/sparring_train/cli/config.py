"""``sparring config``: shows or checks a configuration."""

from __future__ import annotations

from pathlib import Path

import typer

from sparring_cli import get_command_context
from sparring_train.cli.train import ConfigArgument, OverridesArgument
from sparring_train.config.reading.loader import load_config
from sparring_train.config.reading.printer import config_as_yaml
from sparring_train.run.same_run import absolute_paths

__all__ = ["add_config"]


def add_config(application: typer.Typer) -> None:
    group = typer.Typer(help="Show or check a configuration.", no_args_is_help=True)
    group.command("show")(show)
    group.command("check")(check)
    application.add_typer(group, name="config")


def show(
    config: ConfigArgument,
    overrides: OverridesArgument = None,
) -> None:
    """Print the complete configuration as YAML, with defaults, overrides and absolute paths."""
    # Absolute paths keep the output valid in any folder.
    folder = str(Path(config).absolute().parent)
    whole = absolute_paths(load_config(config, overrides or (), folder=folder))
    typer.echo(config_as_yaml(whole), nl=False)


def check(
    context: typer.Context,
    config: ConfigArgument,
    overrides: OverridesArgument = None,
) -> None:
    """Check a configuration, including backends and their options, without running it."""
    load_config(config, overrides or (), plugin_manager=get_command_context(context).plugin_manager)
    typer.echo(f"{config}: correct")
