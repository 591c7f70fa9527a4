"""Options of collective and rendezvous ``torch``; imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sparring.contracts import Options

__all__ = ["TorchCollectiveOptions", "TorchRendezvousOptions"]


class TorchCollectiveOptions(Options):
    """Options of collective ``torch``."""

    init_method: str = Field(
        "env://",
        description="URL at which ranks meet if torch.distributed is not initialized yet; see "
        "torch.distributed.init_process_group.",
    )
    process_group: str = Field(
        "cpu:gloo",
        description="The backends of the group that is initialized in this case: `cpu:gloo` or "
        "`cpu:gloo,cuda:nccl`.",
    )
    start_seconds: float = Field(
        120.0, gt=0, description="How long the first rank waits for the last to start."
    )


class TorchRendezvousOptions(Options):
    """Options of rendezvous ``torch``."""

    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="The device of this rank; `cuda` is the GPU of its local rank."
    )
    start_seconds: float = Field(
        120.0, gt=0, description="How long a rank waits for the store of rank 0."
    )
