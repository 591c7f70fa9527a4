"""``sparring config``: shows or checks a configuration."""

from __future__ import annotations

import typer

from sparring import context_of
from sparring_train.cli.train import ConfigArgument, OverridesArgument
from sparring_train.config.loader import load_config
from sparring_train.config.printer import config_as_yaml

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
    """Print the whole configuration as YAML, defaults and overrides included."""
    typer.echo(config_as_yaml(load_config(config, overrides or ())), nl=False)


def check(
    context: typer.Context,
    config: ConfigArgument,
    overrides: OverridesArgument = None,
) -> None:
    """Check a configuration, backends and their options included, and run nothing."""
    load_config(config, overrides or (), plugin_manager=context_of(context).plugin_manager)
    typer.echo(f"{config}: correct")
