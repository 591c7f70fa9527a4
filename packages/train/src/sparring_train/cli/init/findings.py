"""What is uncertain about the columns of a file: remarks, and doubts that need an answer."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import typer

from sparring.errors import DataError
from sparring_cli import print_note

__all__ = ["Doubt", "Findings", "resolve"]


@dataclass(frozen=True, slots=True)
class Doubt:
    """A decision that the file does not determine."""

    reason: str
    """The doubt, for example ``two columns could be the label``."""
    key: str
    """Argument that decides it, for example ``label``."""
    default: str
    """Value that ``--yes`` takes."""
    choices: tuple[str, ...] = ()
    """Possible values; empty: any."""

    @property
    def word(self) -> str:
        return f"{self.key}={self.default}"


@dataclass(slots=True)
class Findings:
    """Remarks and doubts about the columns of a file."""

    doubts: list[Doubt] = field(default_factory=list)
    _remarks: list[tuple[int, str, str]] = field(default_factory=list)

    def add(self, rank: int, text: str, column: str = "") -> None:
        """Adds a remark. Columns with the same text are named in one line.

        Args:
            rank: 0 for the most important remarks, which are printed first.
            text: the remark, without the column.
            column: the column that it concerns, if any.
        """
        self._remarks.append((rank, text, column))

    @property
    def remarks(self) -> list[str]:
        """Lines of all remarks, the most important ones first."""
        columns: dict[tuple[int, str], list[str]] = {}
        for rank, text, column in self._remarks:
            columns.setdefault((rank, text), []).extend([column] if column else [])
        ordered = sorted(columns.items(), key=lambda each: each[0][0])
        return [f"{', '.join(names)}: {text}" if names else text for (_, text), names in ordered]


def resolve(
    path: str, doubts: Sequence[Doubt], command: Sequence[str], *, accepts_defaults: bool
) -> list[str]:
    """Returns arguments that decide all doubts: defaults, or answers of a user at a terminal.

    Args:
        path: path of the files, for messages.
        doubts: at least one.
        command: the command without such arguments, for messages.
        accepts_defaults: whether ``--yes`` was given.

    Raises:
        DataError: there is neither ``--yes`` nor a terminal; the message contains the command to run.
    """
    if accepts_defaults:
        for each in doubts:
            print_note(f"--yes: {each.word}, because {each.reason}")
        return [each.word for each in doubts]
    if sys.stdin.isatty() and sys.stderr.isatty():
        return [f"{each.key}={_answer(each)}" for each in doubts]
    line = " ".join(map(shlex.quote, [*command, *(each.word for each in doubts)]))
    reasons = "; ".join(
        each.reason + (f" (one of {', '.join(each.choices)})" if each.choices else "")
        for each in doubts
    )
    raise DataError(f"{path}: {reasons}. Decide, for example: {line}", path=path)


def _answer(doubt: Doubt) -> str:
    typer.echo(doubt.reason, err=True)
    shown = f" ({', '.join(doubt.choices)})" if doubt.choices else ""
    while True:
        answer = str(typer.prompt(f"{doubt.key}{shown}", default=doubt.default, err=True)).strip()
        if not doubt.choices or answer in doubt.choices:
            return answer
        typer.echo(f"{answer!r} is not one of them", err=True)
