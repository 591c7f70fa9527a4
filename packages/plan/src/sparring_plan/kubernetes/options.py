"""Names and sizes of resources that neither a plan nor a snapshot contains, and their formats."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparring.errors import InvalidArgumentError

__all__ = ["ResourceOptions", "format_quantity", "format_yaml_block"]

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][\w./:@-]*")


@dataclass(frozen=True, slots=True)
class ResourceOptions:
    """Names and sizes of resources.

    Args:
        image: Container image with sparring and all dependencies of the program.
        name: Name of all resources.
        claim: PersistentVolumeClaim for data and snapshots.
        cpus: CPUs that a rank or a server requests.

    Raises:
        InvalidArgumentError: Kubernetes would reject a name.
    """

    image: str
    name: str
    claim: str
    cpus: int

    def __post_init__(self) -> None:
        for option, name in (("--name", self.name), ("--claim", self.claim)):
            if not _NAME.fullmatch(name):
                raise InvalidArgumentError(
                    f"{option} must be a Kubernetes name of at most 40 lower-case letters, digits "
                    f"and hyphens, starting with a letter, found {name!r}"
                )
        if not _IMAGE.fullmatch(self.image):
            raise InvalidArgumentError(
                f"--image must be the name of a container image, such as "
                f"registry.example/sparring:0.1.0, found {self.image!r}"
            )


def format_quantity(size: int) -> str:
    """Formats bytes as a Kubernetes quantity, rounded up to MiB."""
    mib = -(-size // (1 << 20))
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def format_yaml_block(text: str) -> str:
    """Formats text as a YAML literal block, without trailing spaces."""
    lines = [f"    {line.rstrip()}".rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join(lines)
