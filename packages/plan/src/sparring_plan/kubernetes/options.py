"""Names and needs of resources that neither a plan nor a snapshot tells, and how they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sparring.errors import InvalidArgumentError

__all__ = ["ResourceOptions", "format_quantity", "format_yaml_block"]

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][\w./:@-]*")


@dataclass(frozen=True, slots=True)
class ResourceOptions:
    """Names and needs of resources.

    Args:
        image: the container image, with sparring and what the program needs.
        name: of all resources.
        claim: the PersistentVolumeClaim of data and snapshots.
        cpus: that a rank or a server requests.

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
                    f"{option} must be a name of Kubernetes: small letters, digits and hyphens, at "
                    f"most 40, a letter first; found {name!r}"
                )
        if not _IMAGE.fullmatch(self.image):
            raise InvalidArgumentError(
                f"--image must be the name of a container image, as registry.example/sparring:0.1.0, "
                f"found {self.image!r}"
            )


def format_quantity(size: int) -> str:
    """Returns bytes as Kubernetes writes them, rounded up to MiB."""
    mib = -(-size // (1 << 20))
    return f"{mib // 1024}Gi" if mib % 1024 == 0 else f"{mib}Mi"


def format_yaml_block(text: str) -> str:
    """Returns lines of a literal block of YAML, without spaces at their ends."""
    lines = [f"    {line.rstrip()}".rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join(lines)
