"""The command line. `main` is the program; plugins add subcommands through the commands hook."""

from __future__ import annotations

from sparring.cli.application import main
from sparring.cli.context import CommandContext

__all__ = ["CommandContext", "main"]
