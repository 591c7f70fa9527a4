"""The program ``sparring``: collects the subcommands and converts errors to exit codes.

Exit codes: 0 success; 2 invalid input (usage, configuration, data, plugins); 1 other failures; 130
stopped by Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sparring import PluginManager, __version__, make_plugin_manager
from sparring.adapter import native_failure
from sparring.errors import ConfigError, DataError, InvalidArgumentError, PluginError, SparringError
from sparring_cli.context import CommandContext, get_command_context
from sparring_cli.output import print_error, print_problems

__all__ = ["main", "make_application"]

_WRONG_REQUESTS = (ConfigError, DataError, InvalidArgumentError, PluginError)


class _StoppedError(Exception):
    """Raised for Ctrl-C. It bypasses typer, whose versions convert Ctrl-C to different exit
    codes."""


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise _StoppedError from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code.

    Args:
        arguments: Arguments after the name of the program; None uses ``sys.argv``.
    """
    context = CommandContext(make_plugin_manager())
    application = make_application(context.plugin_manager)
    try:
        application(
            args=None if arguments is None else list(arguments),
            prog_name="sparring",
            obj=context,
        )
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except (_StoppedError, KeyboardInterrupt):
        print_error("stopped by Ctrl-C")
        return 130
    except SparringError as error:
        if context.is_debugging:
            raise
        if isinstance(error, ConfigError) and "problems" in error.details:
            print_problems(error)
        else:
            print_error(str(error))
        return 2 if isinstance(error, _WRONG_REQUESTS) else 1
    return 0


def make_application(plugin_manager: PluginManager) -> typer.Typer:
    """Returns the typer application with the subcommands of all plugins, including sparring-cli."""
    application = typer.Typer(
        name="sparring",
        cls=_Group,
        help="Distributed, dynamic embedding tables for recommender systems.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        add_completion=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    application.callback()(_set_up)
    failure = native_failure()
    for descriptor in plugin_manager.commands():
        if failure is not None and descriptor.name != "doctor":
            why = "the native library failed to load"
            _add_failing_command(application, descriptor.name, failure, why)
            continue
        try:
            descriptor.register(application)
        # A failing command must not affect the other commands.
        except Exception as error:
            print_error(
                f"command {descriptor.name!r} is not available: {type(error).__name__}: {error}"
            )
    for conflict in plugin_manager.conflicts():
        if conflict.kind == "commands":
            _add_failing_command(
                application,
                conflict.name,
                conflict.reason,
                "registered by more than one distribution",
            )
    return application


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"sparring {__version__}")
        raise typer.Exit


def _set_up(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
    version: Annotated[  # noqa: ARG001 (its callback does the work)
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    get_command_context(context).is_debugging = debug


def _add_failing_command(application: typer.Typer, name: str, reason: str, why: str) -> None:
    def refuse() -> None:
        raise PluginError(reason)

    refuse.__doc__ = f"Not usable: {why}."
    # Ignore all arguments, so that the command prints the reason and not its usage.
    takes_anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    application.command(name, context_settings=takes_anything)(refuse)
