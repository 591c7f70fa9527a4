"""StatefulSets for serving: one per replica, with one pod per shard and memory for the snapshot."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from sparring.adapter import locate
from sparring.errors import InvalidArgumentError, PluginError, SnapshotNotFoundError
from sparring_plan.kubernetes.options import ResourceOptions, format_quantity

__all__ = ["MAX_REPLICAS", "ServingSize", "compute_served_bytes", "make_serving_resources"]

MAX_REPLICAS = 26
"""Replicas are named with letters."""

_PROCESS_BYTES = 512 << 20
"""Memory of a server without rows: interpreter, gRPC, and `server.max_bytes_in_flight`."""
_VERSIONS = 2
"""During a switch to a newer version, the files of both versions are read."""
_VOLUME = "/data"
"""Mount path of the volume in a pod."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_STORE = ', sparring-object-store: "true"'
"""Label of pods that network-policy.yaml allows to access object stores."""
_CACHE = "      cache: /tmp/served       # files are copied here before they are mapped\n"


@dataclass(frozen=True, slots=True)
class ServingSize:
    """Size of a service.

    Args:
        snapshot_bytes: Size of the files of a serving snapshot, including its bases.
        num_shards: Number of shards that the rows are split into.
        num_replicas: Number of servers per shard.

    Raises:
        InvalidArgumentError: There are more replicas than letters.
    """

    snapshot_bytes: int
    num_shards: int
    num_replicas: int

    def __post_init__(self) -> None:
        if self.num_replicas > MAX_REPLICAS:
            raise InvalidArgumentError(
                f"--replicas must be at most {MAX_REPLICAS}, found {self.num_replicas}; use fewer "
                "replicas, or run a second service"
            )

    @property
    def shard_bytes(self) -> int:
        return -(-self.snapshot_bytes // self.num_shards)

    @property
    def memory_bytes(self) -> int:
        """Memory that a server requests."""
        return _VERSIONS * self.shard_bytes + _PROCESS_BYTES


def compute_served_bytes(served: str) -> int:
    """Returns the size of the newest serving snapshot in a folder, including its bases.

    Raises:
        SnapshotNotFoundError: The folder contains no serving snapshot.
        SnapshotDamagedError: Its manifest is damaged.
        PluginError: sparring-packed, which reads it, is not installed.
    """
    try:
        from sparring_packed import ServingManifest, read_manifest
    except ImportError:
        raise PluginError(
            "plan kubernetes: reading serving snapshots needs sparring-packed, which is not installed; "
            "run pip install 'sparring-plan[packed]', or specify --bytes"
        ) from None
    folder = served.rstrip("/")
    place, _ = locate(f"{folder}/newest")
    try:
        names = [each for each in place.names() if place.is_committed(each)]
    except FileNotFoundError:
        names = []
    found: dict[str, ServingManifest] = {each: read_manifest(f"{folder}/{each}") for each in names}
    if not found:
        raise SnapshotNotFoundError(
            f"plan kubernetes: found no serving snapshot in {served}; run sparring publish RUN "
            f"--output {served} first, or specify the expected size with --bytes",
            url=served,
        )
    # Use the order of readers: the last one is the newest.
    name = max(found, key=lambda each: (found[each].order, each))
    total, base = 0, found[name]
    while True:
        total += sum(each.size_bytes for each in base.files)
        if base.base is None:
            return total
        base = found.get(base.base.name) or read_manifest(f"{folder}/{base.base.name}")


def make_serving_resources(
    served: str,
    size: ServingSize,
    overrides: Sequence[str],
    *,
    options: ResourceOptions,
    command: Sequence[str],
) -> str:
    """Returns the YAML of a ConfigMap, a Certificate, a Service, a disruption budget and
    StatefulSets.

    Args:
        served: Folder of serving snapshots as seen by the servers: in the volume, or a URL.
        size: Size of the service.
        overrides: ``dotted.key=value`` items for `sparring serve`.
        options: Image and names.
        command: Command to show at the top of the file.
    """
    name, letters = options.name, _LETTERS[: size.num_replicas]
    hosts = [
        [f"{name}-{letter}-{shard}.{name}" for letter in letters]
        for shard in range(1, size.num_shards + 1)
    ]
    is_remote = "://" in served
    copies = format_quantity((_VERSIONS + 1) * size.shard_bytes)
    values = {
        "name": name,
        "image": options.image,
        "claim": options.claim,
        "cpus": options.cpus,
        "command": shlex.join(command),
        "num_shards": size.num_shards,
        "num_replicas": size.num_replicas,
        # Relative paths in a file start at its folder, which is the folder of the ConfigMap.
        "snapshots": json.dumps(served if is_remote else posixpath.join(_VOLUME, served)),
        "memory": format_quantity(size.memory_bytes),
        "ephemeral": f", ephemeral-storage: {copies}" if is_remote else "",
        "reason": f"{format_quantity(size.shard_bytes)} per shard, twice during a switch to a newer "
        "version, and 512 MiB",
        "cache": _CACHE if is_remote else "",
        "store": _STORE if is_remote else "",
        "shards": "\n".join(
            f"      - {json.dumps([f'{host}:7433' for host in each])}" for each in hosts
        ),
        "names": "\n".join(f"    - {host}" for each in hosts for host in each),
        "overrides": "".join(f"            - {json.dumps(each)}\n" for each in overrides),
    }
    folder = files("sparring_plan.kubernetes")
    head = Template(folder.joinpath("serve.yaml").read_text(encoding="utf-8"))
    replica = Template(folder.joinpath("serve_replica.yaml").read_text(encoding="utf-8"))
    texts = [head.substitute(values)]
    for number, letter in enumerate(letters, 1):
        texts.append(replica.substitute(values, letter=letter, number=number))
    return "".join(texts)
