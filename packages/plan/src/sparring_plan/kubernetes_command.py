"""``sparring plan kubernetes``: a plan as resources of Kubernetes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparring.errors import ConfigError
from sparring_plan.kubernetes.training import JobOptions, training_resources
from sparring_plan.planning.inputs import read_inputs
from sparring_plan.planning.plan import read_plan
from sparring_plan.planning.planner import check_plan

__all__ = ["kubernetes"]


def kubernetes(  # noqa: PLR0913, PLR0917 (each is an option of the command line)
    plan: Annotated[Path, typer.Argument(help="A plan that `sparring plan make` has written.")],
    inputs: Annotated[Path, typer.Argument(help="The topology and the tables: a YAML file.")],
    run: Annotated[Path, typer.Argument(help="The configuration of `sparring train`.")],
    image: Annotated[str, typer.Option(help="The container image.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Override values of the configuration."),
    ] = None,
    name: Annotated[str, typer.Option(help="Of the Job, its Service and its ConfigMap.")] = "train",
    claim: Annotated[
        str, typer.Option(help="The PersistentVolumeClaim of data and snapshots.")
    ] = "sparring-data",
    cpus: Annotated[int, typer.Option(help="CPUs that a rank asks for.", min=1)] = 2,
    output: Annotated[
        Path | None, typer.Option(help="The file to write; without it the resources are printed.")
    ] = None,
) -> None:
    """Write a Job that trains by a plan: a pod for each node, memory as the topology says."""
    read = read_plan(plan)
    given, calibration = read_inputs(inputs)
    check_plan(read, given, calibration)
    options = JobOptions(image, name, claim, cpus)
    defaults = JobOptions(image)
    command = ["sparring", "plan", "kubernetes", *map(str, (plan, inputs, run)), *(overrides or [])]
    command += ["--image", image]
    for option in ("name", "claim", "cpus"):
        if getattr(options, option) != getattr(defaults, option):
            command += [f"--{option}", str(getattr(options, option))]
    text = training_resources(
        read, given.topology, run, overrides or [], options=options, command=command
    )
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{output}: cannot write the resources: {error.strerror}") from None
    typer.echo(f"{output}: {given.topology.nodes} pods of {given.topology.ranks_per_node} ranks")
