"""Exit codes of ``sparring``. This module is the only one that converts errors to exit codes."""

from __future__ import annotations

from enum import IntEnum

from sparring.errors import (
    ConfigError,
    DataError,
    InvalidArgumentError,
    NotFoundError,
    PluginError,
)

__all__ = ["ExitCode", "exit_code_of"]


class ExitCode(IntEnum):
    """Exit codes of all commands."""

    SUCCESS = 0
    FAILURE = 1
    """A failure at run time, damaged data, or a problem that the command reports."""
    INVALID = 2
    """Wrong usage, configuration, data or plugins."""
    NOT_FOUND = 3
    """A snapshot, a table or a key does not exist."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C."""
    TERMINATED = 143
    """Stopped by SIGTERM."""


_INVALID = (ConfigError, DataError, InvalidArgumentError, PluginError)


def exit_code_of(error: BaseException) -> ExitCode:
    """Returns the exit code of a command that raised this error."""
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    # Checked first, because an unknown table is an invalid argument, too.
    if isinstance(error, NotFoundError):
        return ExitCode.NOT_FOUND
    return ExitCode.INVALID if isinstance(error, _INVALID) else ExitCode.FAILURE
