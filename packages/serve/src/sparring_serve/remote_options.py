"""Options of the storage `remote`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from sparring.contracts import Options

__all__ = ["RemoteOptions"]


class RemoteOptions(Options):
    """Reads rows from a lookup service; with the role ``parameters``, training also updates them."""

    config: Path | None = Field(
        None, description="The YAML file of the service; its `shards` and `client` are used."
    )
    target: str | None = Field(
        None,
        description="host:port of a replica, instead of `config`; client settings have defaults.",
    )
    role: Literal["inference", "parameters"] = Field(
        "inference",
        description="`parameters`: training steps push gradients to the service, which updates its rows.",
    )
    wait: Literal["queued", "applied"] = Field(
        "queued",
        description="Whether a push returns when the service has queued it, or when rows are updated.",
    )
    deadline_seconds: float | None = Field(
        None,
        gt=0,
        le=600,
        description="Deadline of a find; null: the deadline of the configuration.",
    )
