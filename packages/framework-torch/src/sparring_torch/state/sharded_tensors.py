"""`DTensor`s of torch: tensors that FSDP2 cut, of which each rank has a share.

`torch.distributed.tensor` is imported where there is one already: its import takes a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["shard_like", "shard_state", "is_sharded", "replicate", "unshard"]


def is_sharded(value: object) -> bool:
    """Whether it is a `DTensor`: a tensor of which each rank has a share."""
    return isinstance(value, Tensor) and hasattr(value, "full_tensor")


def unshard(value: Tensor) -> Tensor:
    """A tensor with the shares of all ranks, which all call it; another tensor as it is."""
    made: Tensor = value.full_tensor() if is_sharded(value) else value  # type: ignore[attr-defined]
    return made


def shard_like(value: Any, like: Tensor | None) -> Any:
    """This rank's share of a whole tensor, where `like` has its shape and is cut; otherwise as it is."""
    if not is_sharded(like) or not isinstance(value, Tensor) or is_sharded(value):
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    if value.shape != like.shape:
        return value
    own = value.detach().to(like.device)
    return distribute_tensor(own, like.device_mesh, like.placements, src_data_rank=None)


def shard_state(state_dict: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The `state_dict` of an optimizer, with this rank's share of whole tensors where it has such."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    numbers = [each for group in state_dict["param_groups"] for each in group["params"]]
    of = dict(zip(numbers, parameters, strict=False))  # the optimizer refuses other counts
    state = {
        number: {name: shard_like(each, of.get(number)) for name, each in values.items()}
        for number, values in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def replicate(value: Tensor, mesh: Any) -> Tensor:
    """A tensor that all ranks have, for ops with tensors that are cut; it shares the elements."""
    from torch.distributed.tensor import DTensor, Replicate

    made: Tensor = DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return made
