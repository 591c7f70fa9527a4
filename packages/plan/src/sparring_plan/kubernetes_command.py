"""``sparring plan kubernetes``: converts a plan or a serving snapshot to Kubernetes resources."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from sparring.contracts import ByteCount
from sparring.errors import InvalidArgumentError
from sparring_cli import print_document, print_note
from sparring_plan.kubernetes.options import ResourceOptions, format_quantity
from sparring_plan.kubernetes.serving import (
    ServingSize,
    compute_served_bytes,
    make_serving_resources,
)
from sparring_plan.kubernetes.training import make_training_resources
from sparring_plan.planning.inputs import read_inputs
from sparring_plan.planning.plan import read_plan
from sparring_plan.planning.planner import check_plan

__all__ = ["kubernetes"]

_TRAINING, _SERVING = ("train", 2), ("serve", 1)
"""Default name, and CPUs per rank or server."""
_CLAIM = "sparring-data"


def kubernetes(  # noqa: PLR0913, PLR0917 (each is an option of the command line)
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="PLAN INPUTS RUN | SERVED [KEY=VALUE]...",
            help="To train: a plan written by `sparring plan make`, its inputs, and the configuration "
            "of `sparring train`. To serve: the folder of serving snapshots, relative to the volume of "
            "the pods, or a URL. Then overrides of the configuration.",
        ),
    ],
    image: Annotated[str, typer.Option(help="Container image.")],
    name: Annotated[
        str | None, typer.Option(help="Name of all resources; by default, train or serve.")
    ] = None,
    claim: Annotated[
        str, typer.Option(help="PersistentVolumeClaim for data and snapshots.")
    ] = _CLAIM,
    cpus: Annotated[
        int | None,
        typer.Option(
            help="Number of CPUs that a rank or a server requests; by default, 2 per rank and 1 per "
            "server.",
            min=1,
        ),
    ] = None,
    shards: Annotated[
        int,
        typer.Option(
            help="To serve: number of servers that the rows are split among.", min=1, max=4096
        ),
    ] = 1,
    replicas: Annotated[
        int, typer.Option(help="To serve: number of servers per shard.", min=1)
    ] = 2,
    bytes_: Annotated[
        str | None,
        typer.Option(
            "--bytes",
            help="To serve: size of a serving snapshot, such as 40GiB, if SERVED cannot be read here.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File to write; by default, the resources are printed."
        ),
    ] = None,
) -> None:
    """Write Kubernetes resources: a Job that trains with a plan, or StatefulSets that serve a folder."""
    paths = [each for each in given if "=" not in each]
    overrides = given[len(paths) :]
    if any("=" not in each for each in overrides) or len(paths) not in (1, 3):
        raise InvalidArgumentError(
            f"plan kubernetes: found {' '.join(given)!r}, expected PLAN INPUTS RUN to train, or SERVED "
            "to serve, followed by KEY=VALUE overrides"
        )
    name_of, cpus_of = _TRAINING if len(paths) == 3 else _SERVING
    options = ResourceOptions(image, name or name_of, claim, cpus or cpus_of)
    command = ["sparring", "plan", "kubernetes", *given, "--image", image]
    chosen = [("name", options.name, name_of), ("claim", claim, _CLAIM)]
    chosen += [("cpus", str(options.cpus), str(cpus_of))]
    if len(paths) == 1:
        chosen += [("shards", str(shards), "1"), ("replicas", str(replicas), "2")]
        chosen += [("bytes", bytes_ or "", "")]
    elif bytes_ is not None:
        raise InvalidArgumentError(
            "--bytes is only supported for serving, found PLAN INPUTS RUN; remove --bytes"
        )
    for option, value, default in chosen:
        if value != default:
            command += [f"--{option}", value]
    if len(paths) == 3:
        text, summary = _training(paths, overrides, options, command)
    else:
        size = ServingSize(
            compute_served_bytes(paths[0]) if bytes_ is None else _byte_count(bytes_),
            shards,
            replicas,
        )
        text = make_serving_resources(paths[0], size, overrides, options=options, command=command)
        memory = format_quantity(size.memory_bytes)
        summary = f"{shards} shards with {replicas} replicas, each server with {memory}"
    print_document(text, output)
    if output is not None:
        print_note(f"{output}: {summary}")


def _training(
    paths: Sequence[str],
    overrides: Sequence[str],
    options: ResourceOptions,
    command: Sequence[str],
) -> tuple[str, str]:
    plan, inputs, run = map(Path, paths)
    read = read_plan(plan)
    given, calibration = read_inputs(inputs)
    check_plan(read, given, calibration)
    topology = given.topology
    text = make_training_resources(read, topology, run, overrides, options=options, command=command)
    return text, f"{topology.nodes} pods of {topology.ranks_per_node} ranks"


def _byte_count(text: str) -> int:
    try:
        found: int = TypeAdapter(ByteCount).validate_python(int(text) if text.isdecimal() else text)
    except ValidationError:
        found = 0
    if found < 1:
        raise InvalidArgumentError(
            f"--bytes must be a number of bytes, such as 40GiB, found {text!r}"
        )
    return found
