"""The program ``sparring``: collects the subcommands and converts errors to exit codes.

`sparring_cli.exit_codes` defines the exit codes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sparring import PluginManager, __version__, make_plugin_manager
from sparring.adapter import native_failure
from sparring.contracts import CommandDescriptor
from sparring.errors import ConfigError, InvalidArgumentError, PluginError, SparringError
from sparring_cli.context import CommandContext, get_command_context
from sparring_cli.exit_codes import ExitCode, exit_code_of
from sparring_cli.output import console_output, print_error, print_problems, set_verbosity
from sparring_cli.registration import GROUPS

__all__ = ["main", "make_application"]


OTHER_COMMANDS = {
    "plan": ("plan",),
    "serve": ("lookup", "publish", "resize", "serve"),
    "train": (
        "blame", "config", "erase", "evaluate", "export-program", "get", "init", "look", "neighbors",
        "predict", "recommend", "replay", "report", "skew", "train",
    ),
}  # fmt: skip
"""Extra of sparring → commands that it adds."""


class _StoppedError(Exception):
    """Raised for Ctrl-C. It bypasses typer, whose versions convert Ctrl-C to different exit
    codes."""


class _Group(TyperGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        """Lists the commands by group; commands of other packages without a group are last."""

        def order(name: str) -> int:
            group = getattr(self.commands[name], "rich_help_panel", None)
            return GROUPS.index(group) if group in GROUPS else len(GROUPS)

        return sorted(super().list_commands(ctx), key=order)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Finds a command; if its package is not installed, the error contains the line to install it."""
        for extra, names in OTHER_COMMANDS.items():
            is_missing = args[0] in names and args[0] not in self.commands
            if is_missing and find_spec(f"sparring_{extra}") is None:
                raise PluginError(
                    f"the command {args[0]} needs sparring-{extra}, which is not installed; run: pip "
                    f"install 'sparring[{extra}]'"
                )
        return super().resolve_command(ctx, args)

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
    command = _find_command(sys.argv[1:] if arguments is None else arguments)
    runs = bool(command) and "_SPARRING_COMPLETE" not in os.environ
    manager = make_plugin_manager() if runs else make_plugin_manager(kinds=["commands"])
    context = CommandContext(manager)
    application = make_application(manager, command)
    try:
        with console_output():
            application(
                args=None if arguments is None else list(arguments),
                prog_name="sparring",
                obj=context,
            )
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except (_StoppedError, KeyboardInterrupt):
        print_error("stopped by Ctrl-C")
        return ExitCode.INTERRUPTED
    except SparringError as error:
        if context.is_debugging:
            raise
        if isinstance(error, ConfigError) and "problems" in error.details:
            print_problems(error)
        else:
            print_error(str(error))
        return exit_code_of(error)
    return ExitCode.SUCCESS


def _find_command(given: Sequence[str]) -> str:
    """Returns the name of the command in the arguments, or in those that a shell completes."""
    line = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    words = line.split()[1:] if "_SPARRING_COMPLETE" in os.environ else given
    # Options before the name of the command have no values.
    return next((each for each in words if not each.startswith("-")), "")


def make_application(plugin_manager: PluginManager, name: str | None = None) -> typer.Typer:
    """Returns the typer application with the subcommands of all plugins, including sparring-cli.

    Args:
        plugin_manager: Plugin manager with the commands.
        name: Name of the only command that is needed, so that no module of the others is imported. If no
            command has it, the commands only have a name and a summary, for ``sparring --help``. None:
            all commands are added.
    """
    application = typer.Typer(
        name="sparring",
        cls=_Group,
        help="Distributed, dynamic embedding tables for recommender systems.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    application.callback()(_set_up)
    failure = native_failure()
    commands = plugin_manager.commands()
    chosen = [each for each in commands if each.name == name]
    for descriptor in chosen or commands:
        if failure is not None and descriptor.name != "doctor":
            why = "the native library failed to load"
            _add_failing_command(application, descriptor.name, failure, why)
            continue
        if name is not None and not chosen:
            _add_summary(application, descriptor)
            continue
        try:
            descriptor.register(application)
            _set_group(application, descriptor)
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


def _set_group(application: typer.Typer, descriptor: CommandDescriptor) -> None:
    added: list[Any] = [*application.registered_commands, *application.registered_groups]
    for each in added:
        if each.name == descriptor.name:
            each.rich_help_panel = descriptor.group or None


def _add_summary(application: typer.Typer, descriptor: CommandDescriptor) -> None:
    application.command(
        descriptor.name, help=descriptor.summary, rich_help_panel=descriptor.group or None
    )(lambda: None)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"sparring {__version__}")
        raise typer.Exit


def _set_up(
    context: typer.Context,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of errors.")] = False,
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet",
            "-q",
            help="Print no progress, notes or warnings to standard error, only errors.",
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Print the log messages of all levels to standard error."
        ),
    ] = False,
    version: Annotated[  # noqa: ARG001 (its callback does the work)
        bool,
        typer.Option(
            "--version",
            "-V",
            help="Print the version and exit.",
            is_eager=True,
            callback=_print_version,
        ),
    ] = False,
) -> None:
    own = get_command_context(context)
    own.is_debugging = debug
    if quiet and verbose:
        raise InvalidArgumentError("found both --quiet and --verbose, expected one of them")
    if quiet or verbose:
        own.log_level = "error" if quiet else "debug"
        set_verbosity(own.log_level)


def _add_failing_command(application: typer.Typer, name: str, reason: str, why: str) -> None:
    def refuse() -> None:
        raise PluginError(reason)

    refuse.__doc__ = f"Not usable: {why}."
    # Ignore all arguments, so that the command prints the reason and not its usage.
    takes_anything = {"ignore_unknown_options": True, "allow_extra_args": True}
    application.command(name, context_settings=takes_anything)(refuse)
