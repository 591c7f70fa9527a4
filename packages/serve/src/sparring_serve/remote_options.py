"""Options of the storage `remote`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from sparring.contracts import Options

__all__ = ["RemoteOptions"]


class RemoteOptions(Options):
    """A lookup service whose rows are read; in the role `parameters` they learn, too."""

    config: Path | None = Field(
        None, description="The YAML file of the service; its `shards` and `client` are used."
    )
    target: str | None = Field(
        None, description="host:port of a replica, in place of `config`; the client has defaults."
    )
    role: Literal["inference", "parameters"] = Field(
        "inference",
        description="`parameters`: steps push gradients to the service, which updates its rows.",
    )
    wait: Literal["queued", "applied"] = Field(
        "queued",
        description="Of a push: until the service has it, or until its rows have changed.",
    )
    deadline_seconds: float | None = Field(
        None, gt=0, le=600, description="Of a find; null: that of the configuration."
    )
