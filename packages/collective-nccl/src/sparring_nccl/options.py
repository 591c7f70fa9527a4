"""Options of the collective ``nccl``."""

from __future__ import annotations

from pydantic import Field

from sparring.contracts import Options

__all__ = ["NcclOptions"]


class NcclOptions(Options):
    """Options of the collective ``nccl``."""

    host: str = Field(
        "torch",
        description="The collective for host memory, with its default options.",
    )
