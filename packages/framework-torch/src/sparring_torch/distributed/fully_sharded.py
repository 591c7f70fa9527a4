"""Ordinary parameters cut over ranks by FSDP2 of torch (`torch.distributed.fsdp.fully_shard`).

    between steps    each rank has a share of each parameter, of its gradient and of its optimizer state
    forward          all-gather: the whole of each parameter, until the backward pass has used it
    backward         reduce-scatter: the mean of the gradients over ranks, each rank its share

The module is one unit: all its parameters are gathered together. Anchors of tables stay out of it.
What it takes of torch is imported when it is used: it came with torch 2.6, and its import takes a second.
"""

from __future__ import annotations

from typing import Any, cast

import torch.distributed as dist
from torch import nn

from sparring.errors import UnsupportedError
from sparring_torch.lookup.row_gradients import Anchor, dense_parameters
from sparring_torch.state.sharded_tensors import is_sharded, unshard

__all__ = ["FullySharded", "check_shardable"]


class FullySharded(nn.Module):
    """Wraps a module, whose parameters become `DTensor`s.

    FSDP2 puts its hooks and its class on this wrapper, so that the module within stays what it is.

    Args:
        module: with the same parameters on all ranks of the default group of `torch.distributed`.
    """

    def __init__(self, module: nn.Module) -> None:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        super().__init__()
        self.module = module
        device = next(each.device for _, each in dense_parameters(module))
        self.mesh = DeviceMesh.from_group(cast(dist.ProcessGroup, dist.group.WORLD), device.type)
        anchors: set[nn.Parameter] = {
            each for each in module.parameters() if isinstance(each, Anchor)
        }
        for each in anchors:
            cast(Anchor, each).mesh = self.mesh
        fully_shard(self, mesh=self.mesh, ignored_params=anchors)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Output of the module."""
        return self.module(*arguments, **named)

    def release(self) -> None:
        """Frees whole parameters that a forward pass without a backward pass left."""
        sharded: Any = self
        sharded.reshard()

    def undo(self) -> None:
        """Puts whole parameters, as they were trained, into the module. All ranks call it."""
        self.release()
        made: dict[int, nn.Parameter] = {}
        for module in self.module.modules():
            for mark in ("_is_fsdp_managed_module", "_fsdp_use_orig_params"):
                vars(module).pop(mark, None)
            for name, each in module._parameters.items():
                if isinstance(each, Anchor):
                    each.mesh = None
                elif each is not None and is_sharded(each):
                    if id(each) not in made:
                        values = unshard(each.detach())
                        made[id(each)] = nn.Parameter(values, requires_grad=each.requires_grad)
                    module._parameters[name] = made[id(each)]


def check_shardable(module: nn.Module) -> None:
    """Raises where FSDP2 cannot cut the parameters of a module.

    Raises:
        UnsupportedError: a parameter without dimensions, one that is cut already, or several devices.
    """
    import torch.distributed.fsdp

    if not hasattr(torch.distributed.fsdp, "fully_shard"):
        raise UnsupportedError(
            f"FSDP2 came with torch 2.6, and this is {torch.__version__}; give dense='ddp'"
        )
    parameters = dict(dense_parameters(module))
    for name, each in parameters.items():
        if is_sharded(each):
            raise UnsupportedError(f"FSDP2: parameter {name} is cut over ranks already")
        if not each.ndim:
            raise UnsupportedError(
                f"FSDP2: parameter {name} has no dimensions and cannot be cut; give it shape (1,), or "
                "dense='ddp'"
            )
    devices = {each.device for each in parameters.values()}
    if len(devices) > 1:
        raise UnsupportedError(
            f"FSDP2: parameters are on {', '.join(sorted(map(str, devices)))}; move them to one device, "
            "or give dense='ddp'"
        )
