"""A Job that trains with a plan: one pod per node; the ranks connect with torchrun's rendezvous."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

from sparring.errors import InvalidArgumentError
from sparring_plan.kubernetes.options import ResourceOptions, format_quantity, format_yaml_block
from sparring_plan.planning.inputs import Topology
from sparring_plan.planning.plan import Plan
from sparring_plan.resumable_run import check_saves

__all__ = ["make_training_resources"]

_PROCESS_BYTES = 2 << 30
"""Memory of a rank without tables: interpreter, framework, dense model, batches."""
_MAX_CONFIG_BYTES = 1_000_000
"""Kubernetes rejects a ConfigMap of more than 1 MiB."""

_SCRATCH_MOUNT = "            - {name: scratch, mountPath: /scratch}\n"
_SCRATCH = """        - name: scratch              # rows on disk, loaded from a snapshot by a new pod
          ephemeral:
            volumeClaimTemplate:
              spec:
                accessModes: [ReadWriteOnce]
                resources:
                  requests: {storage: $disk}
"""


def make_training_resources(
    plan: Plan,
    topology: Topology,
    run: Path,
    overrides: Sequence[str],
    *,
    options: ResourceOptions,
    command: Sequence[str],
) -> str:
    """Returns the YAML of a Service, a Job and a ConfigMap.

    Args:
        plan: Plan of the tables.
        topology: Topology of the plan.
        run: Configuration of `sparring train`; its content is stored in the ConfigMap.
        overrides: ``dotted.key=value`` items for `sparring train`.
        options: Image and names.
        command: Command to show at the top of the file.

    Raises:
        ConfigError: The run saves no snapshots, so that a pod that ends would lose its rows.
        InvalidArgumentError: The ConfigMap would be larger than Kubernetes allows.
    """
    check_saves(run, overrides)
    text = run.read_text(encoding="utf-8-sig")
    if len(text.encode()) + len(plan.to_yaml().encode()) > _MAX_CONFIG_BYTES:
        raise InvalidArgumentError(
            f"{run} and the plan have more than {_MAX_CONFIG_BYTES:,} bytes, too many for a "
            "ConfigMap; store them in the image or the volume, and write the Job by hand"
        )
    nodes, ranks, memory = topology.nodes, topology.ranks_per_node, topology.memory
    of_tables = memory.get("host", 0)
    needed = format_quantity(ranks * (of_tables + _PROCESS_BYTES))
    limits = f"memory: {needed}"
    if "gpu" in memory:
        limits += f", nvidia.com/gpu: {ranks}"
    disk = memory.get("disk")
    scratch = (
        "" if disk is None else Template(_SCRATCH).substitute(disk=format_quantity(ranks * disk))
    )
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
        memory_of_a_rank=format_quantity(of_tables),
        limits=limits,
        overrides="".join(f"            - {json.dumps(each)}\n" for each in overrides),
        scratch=scratch,
        scratch_mount=_SCRATCH_MOUNT if disk is not None else "",
        run=format_yaml_block(text),
        plan=format_yaml_block(plan.to_yaml()),
    )
