"""`DTensor`s of torch: tensors that FSDP2 sharded over ranks.

`torch.distributed.tensor` is imported only if there are such tensors: its import takes a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["shard_like", "shard_state", "is_sharded", "replicate", "unshard"]


def is_sharded(value: object) -> bool:
    """Returns whether a value is a `DTensor`, of which each rank has a shard."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def unshard(value: Tensor) -> Tensor:
    """Returns a full tensor; all ranks must call it. Returns other tensors unchanged."""
    made: Tensor = value.full_tensor() if is_sharded(value) else value  # type: ignore[attr-defined]
    return made


def shard_like(value: Any, like: Tensor | None) -> Any:
    """Returns this rank's shard of a full tensor if `like` is sharded; else the value itself."""
    if not is_sharded(like) or not isinstance(value, Tensor) or is_sharded(value):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    if value.shape != like.shape:
        return value
    own = value.detach().to(like.device)
    return distribute_tensor(own, like.device_mesh, like.placements, src_data_rank=None)


def shard_state(state_dict: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the `state_dict` of an optimizer with full tensors sharded like its parameters."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    numbers = [each for group in state_dict["param_groups"] for each in group["params"]]
    of = dict(zip(numbers, parameters, strict=False))  # the optimizer rejects other counts
    state = {
        number: {name: shard_like(each, of.get(number)) for name, each in values.items()}
        for number, values in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def replicate(value: Tensor, mesh: Any) -> Tensor:
    """Returns a tensor that is equal on all ranks as a `DTensor`, without copying."""
    from torch.distributed.tensor import DTensor, Replicate

    made: Tensor = DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return made
