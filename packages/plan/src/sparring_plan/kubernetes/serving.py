"""StatefulSets that serve: one for each replica, a pod for each shard, memory for the snapshot."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template

from sparring.adapter import locate
from sparring.errors import InvalidArgumentError, PluginError, SnapshotError
from sparring_plan.kubernetes.options import ResourceOptions, format_quantity

__all__ = ["MAX_REPLICAS", "ServingSize", "compute_served_bytes", "make_serving_resources"]

MAX_REPLICAS = 26
"""A replica is a letter."""

_PROCESS_BYTES = 512 << 20
"""Of a server, for what is no row: interpreter, gRPC, and `server.most_bytes_in_flight`."""
_VERSIONS = 2
"""While a newer version is taken, the files of both are read."""
_VOLUME = "/data"
"""Place of the volume in a pod."""
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_STORE = ', sparring-object-store: "true"'
"""Label of pods that network-policy.yaml lets call object stores."""
_CACHE = "      cache: /tmp/served       # files are copied here before they are mapped\n"


@dataclass(frozen=True, slots=True)
class ServingSize:
    """Size of a service.

    Args:
        snapshot_bytes: of the files of a serving snapshot, with those that it is over.
        num_shards: that share the rows.
        num_replicas: servers of each shard.

    Raises:
        InvalidArgumentError: there are more replicas than letters.
    """

    snapshot_bytes: int
    num_shards: int
    num_replicas: int

    def __post_init__(self) -> None:
        if self.num_replicas > MAX_REPLICAS:
            raise InvalidArgumentError(
                f"--replicas must be at most {MAX_REPLICAS}, found {self.num_replicas}; give each "
                "shard fewer replicas, or run a second service"
            )

    @property
    def shard_bytes(self) -> int:
        return -(-self.snapshot_bytes // self.num_shards)

    @property
    def memory_bytes(self) -> int:
        """That a server requests."""
        return _VERSIONS * self.shard_bytes + _PROCESS_BYTES


def compute_served_bytes(served: str) -> int:
    """Returns the bytes of the newest serving snapshot in a folder, with those that it is over.

    Raises:
        SnapshotError: the folder has no serving snapshot, or its manifest is damaged.
        PluginError: sparring-packed, which reads it, is not installed.
    """
    try:
        from sparring_packed import ServingManifest, read_manifest
    except ImportError:
        raise PluginError(
            "plan kubernetes: sparring-packed reads serving snapshots, and is not installed; run "
            "pip install 'sparring-plan[packed]', or give --bytes"
        ) from None
    folder = served.rstrip("/")
    place, _ = locate(f"{folder}/newest")
    try:
        names = [each for each in place.names() if place.is_committed(each)]
    except FileNotFoundError:
        names = []
    found: dict[str, ServingManifest] = {each: read_manifest(f"{folder}/{each}") for each in names}
    if not found:
        raise SnapshotError(
            f"plan kubernetes: found no serving snapshot in {served}; run sparring publish RUN "
            f"{served} first, or give --bytes, which you expect",
            url=served,
        )
    # The order of readers: the last one is the newest.
    name = max(found, key=lambda each: (found[each].step, each))
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
    """Returns the YAML of a ConfigMap, a Certificate, a Service, a disruption budget and StatefulSets.

    Args:
        served: the folder of serving snapshots as servers see it: in the volume, or a URL.
        size: of the service.
        overrides: ``dotted.key=value`` that `sparring serve` gets.
        options: the image, and names.
        command: that is shown in the head of the file.
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
        # Relative paths of a file start at its folder, which is that of the ConfigMap.
        "snapshots": json.dumps(served if is_remote else posixpath.join(_VOLUME, served)),
        "memory": format_quantity(size.memory_bytes),
        "ephemeral": f", ephemeral-storage: {copies}" if is_remote else "",
        "reason": f"{format_quantity(size.shard_bytes)} of a shard, twice while a version is "
        "taken, and 512 MiB",
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
