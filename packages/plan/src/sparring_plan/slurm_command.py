"""``sparring plan slurm``: writes a batch script that trains under Slurm."""

from __future__ import annotations

import re
import shlex
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from sparring.errors import InvalidArgumentError
from sparring_cli import print_document, print_note
from sparring_plan.resumable_run import check_saves

__all__ = ["slurm"]

_NAME = re.compile(r"[\w.-]{1,64}")
_OPTION = re.compile(r"-[^\n]+")
_MAX_REQUEUES = 20
"""A preempted job is also counted."""


def slurm(
    run: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="The configuration of `sparring train`.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Values that replace values of the file."),
    ] = None,
    nodes: Annotated[int, typer.Option(help="Number of nodes.", min=1)] = 1,
    ranks: Annotated[int, typer.Option(help="Number of ranks per node.", min=1)] = 1,
    cpus: Annotated[int, typer.Option(help="Number of CPUs per rank.", min=1)] = 2,
    name: Annotated[str, typer.Option(help="Name of the job.")] = "train",
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Further option of sbatch, such as `--time=12:00:00` or `--gpus-per-node=4`; can "
            "be repeated."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="File to write; by default, the script is printed."),
    ] = None,
) -> None:
    """Write a batch script for Slurm that trains, and is queued again after a failure."""
    given, options = overrides or [], option or []
    if not _NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"--name must be at most 64 letters, digits, and _ . -, found {name!r}"
        )
    for each in options:
        if not _OPTION.fullmatch(each):
            raise InvalidArgumentError(
                f"--option must be an option of sbatch on one line, such as --time=12:00:00, found "
                f"{each!r}"
            )
    # The script contains the command as a comment.
    for each in (str(run), *given):
        if "\n" in each:
            raise InvalidArgumentError(
                f"CONFIG and KEY=VALUE must be on one line, found {each!r}; write the value in one line"
            )
    check_saves(run, given)
    command = ["sparring", "plan", "slurm", str(run), *given]
    chosen = [("nodes", str(nodes), "1"), ("ranks", str(ranks), "1"), ("cpus", str(cpus), "2")]
    for key, value, default in [*chosen, ("name", name, "train")]:
        if value != default:
            command.append(f"--{key}={value}")
    command += [f"--option={each}" for each in options]
    template = files("sparring_plan.slurm").joinpath("train.sbatch").read_text(encoding="utf-8")
    text = Template(template).substitute(
        name=name,
        nodes=nodes,
        ranks=ranks,
        cpus=cpus * ranks,
        options="".join(f"#SBATCH {each}\n" for each in options),
        command=shlex.join(command),
        arguments=shlex.join([str(run.resolve()), *given]),
        max_requeues=_MAX_REQUEUES,
    )
    print_document(text, output)
    if output is not None:
        print_note(f"{output}: {nodes} nodes of {ranks} ranks; submit it with sbatch")
