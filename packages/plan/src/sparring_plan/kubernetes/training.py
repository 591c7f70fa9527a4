"""A Job that trains by a plan: a pod for each node; they meet by torchrun's rendezvous."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from sparring import read_document
from sparring.errors import InvalidArgumentError
from sparring_plan.planning.inputs import Topology
from sparring_plan.planning.plan import Plan

__all__ = ["JobOptions", "training_resources"]

_PROCESS_BYTES = 2 << 30
"""Of a rank, for what is no table: interpreter, framework, dense model, batches."""
_MOST_CONFIG_BYTES = 1_000_000
"""Kubernetes refuses a ConfigMap of more than 1 MiB."""
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][\w./:@-]*")

_SCRATCH_MOUNT = "            - {name: scratch, mountPath: /scratch}\n"
_SCRATCH = """        - name: scratch              # rows on disk: gone with the pod, back from a snapshot
          ephemeral:
            volumeClaimTemplate:
              spec:
                accessModes: [ReadWriteOnce]
                resources:
                  requests: {storage: $disk}
"""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Names and needs of a Job that no plan says.

    Args:
        image: that has sparring and what the run needs.
        name: of all resources.
        claim: the PersistentVolumeClaim of data and snapshots.
        cpus: that a rank asks for.

    Raises:
        InvalidArgumentError: Kubernetes would refuse a name.
    """

    image: str
    name: str = "train"
    claim: str = "sparring-data"
    cpus: int = 2

    def __post_init__(self) -> None:
        for option, name in (("--name", self.name), ("--claim", self.claim)):
            if not _NAME.fullmatch(name):
                raise InvalidArgumentError(
                    f"{option} must be a name of Kubernetes: small letters, digits and hyphens, at "
                    f"most 40, a letter first; found {name!r}"
                )
        if not _IMAGE.fullmatch(self.image):
            raise InvalidArgumentError(
                f"--image must be the name of a container image, as registry.example/sparring:0.1.0, "
                f"found {self.image!r}"
            )


def training_resources(
    plan: Plan,
    topology: Topology,
    run: Path,
    overrides: Sequence[str],
    *,
    options: JobOptions,
    command: Sequence[str],
) -> str:
    """The YAML of a Service, a Job and a ConfigMap.

    Args:
        plan: of the tables.
        topology: that it was made for.
        run: the configuration of `sparring train`; its content goes into the ConfigMap.
        overrides: ``dotted.key=value`` that `sparring train` gets.
        options: the image, and names.
        command: that is told in the head of the file.

    Raises:
        ConfigError: the run saves no snapshots, so that a pod that ends would lose its rows.
        InvalidArgumentError: the ConfigMap would be larger than Kubernetes takes.
    """
    _check_saves(run, overrides)
    text = run.read_text(encoding="utf-8-sig")
    if len(text.encode()) + len(plan.to_yaml().encode()) > _MOST_CONFIG_BYTES:
        raise InvalidArgumentError(
            f"{run} and the plan have more than {_MOST_CONFIG_BYTES:,} bytes, which no ConfigMap "
            "holds; put them into the image or the volume, and write the Job by hand"
        )
    nodes, ranks, memory = topology.nodes, topology.ranks_per_node, topology.memory
    of_tables = memory.get("host", 0)
    needed = _quantity(ranks * (of_tables + _PROCESS_BYTES))
    limits = f"memory: {needed}"
    if "gpu" in memory:
        limits += f", nvidia.com/gpu: {ranks}"
    disk = memory.get("disk")
    scratch = "" if disk is None else Template(_SCRATCH).substitute(disk=_quantity(ranks * disk))
    template = files("sparring_plan.kubernetes").joinpath("train.yaml").read_text(encoding="utf-8")
    return Template(template).substitute(
        name=options.name,
        image=options.image,
        claim=options.claim,
        command=shlex.join(command),
        nodes=nodes,
        last=nodes - 1,
        ranks_per_node=ranks,
        cpus=options.cpus * ranks,
        memory=needed,
        memory_of_a_rank=_quantity(of_tables),
        limits=limits,
        overrides="".join(f"            - {json.dumps(each)}\n" for each in overrides),
        scratch=scratch,
        scratch_mount=_SCRATCH_MOUNT if disk is not None else "",
        run=_block(text),
        plan=_block(plan.to_yaml()),
    )


def _check_saves(run: Path, overrides: Sequence[str]) -> None:
    document = read_document(run)
    for each in overrides:
        document.override(each)
    snapshots = document.value.get("snapshots")
    if not isinstance(snapshots, dict) or snapshots.get("url") is None:
        document.refuse(
            ("snapshots", "url"),
            "pods end and are made again, and their rows come back from snapshots; add "
            "snapshots.url=runs/NAME, on the volume or in an object store",
        )


def _quantity(size: int) -> str:
    """Bytes as Kubernetes writes them, rounded up to MiB."""
    mib = -(-size // (1 << 20))
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def _block(text: str) -> str:
    """Lines of a literal block of YAML, without blanks at their ends."""
    lines = [f"    {line.rstrip()}".rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join(lines)
