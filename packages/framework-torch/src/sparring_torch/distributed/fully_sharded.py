"""Ordinary parameters sharded over ranks by torch's FSDP2 (`torch.distributed.fsdp.fully_shard`).

    between steps    each rank stores a shard of each parameter, its gradient and its optimizer state
    forward          all-gather: full parameters, until the backward pass has used them
    backward         reduce-scatter: each rank gets its shard of the mean gradients

The module is one unit: all its parameters are gathered together. Anchors of tables are excluded.
FSDP2 is imported when it is used, because it requires torch 2.6, and its import takes a second.
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
    """Wraps a module and converts its parameters to `DTensor`s.

    FSDP2 adds its hooks and its class to this wrapper, so that the wrapped module stays unchanged.

    Args:
        module: module with equal parameters on all ranks of the default group of `torch.distributed`.
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
        """Returns the output of the module."""
        return self.module(*arguments, **named)

    def release(self) -> None:
        """Frees full parameters after a forward pass without a backward pass."""
        sharded: Any = self
        sharded.reshard()

    def undo(self) -> None:
        """Replaces the module's sharded parameters by full ones. All ranks must call it."""
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
    """Checks that FSDP2 can shard the parameters of a module.

    Raises:
        UnsupportedError: a parameter has no dimensions or is already sharded, or parameters are on
            several devices.
    """
    import torch.distributed.fsdp

    if not hasattr(torch.distributed.fsdp, "fully_shard"):
        raise UnsupportedError(
            f"dense='fsdp2' requires torch 2.6 or later, found {torch.__version__}; use dense='ddp'"
        )
    parameters = dict(dense_parameters(module))
    for name, each in parameters.items():
        if is_sharded(each):
            raise UnsupportedError(
                f"FSDP2: parameter {name} is already sharded; give a module with plain parameters"
            )
        if not each.ndim:
            raise UnsupportedError(
                f"FSDP2: parameter {name} has no dimensions and cannot be sharded; give it shape (1,), "
                "or use dense='ddp'"
            )
    devices = {each.device for each in parameters.values()}
    if len(devices) > 1:
        raise UnsupportedError(
            f"FSDP2: found parameters on {', '.join(sorted(map(str, devices)))}; move them to one "
            "device, or use dense='ddp'"
        )
