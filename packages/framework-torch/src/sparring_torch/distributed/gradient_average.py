"""Averages gradients of ordinary parameters over ranks without `torch.distributed`.

It replaces `DistributedDataParallel` for any collective of sparring, for example under mpiexec, where
there is no process group of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Variable

from sparring.contracts import Collective, Reduction
from sparring_torch.lookup.row_gradients import dense_parameters

__all__ = ["GradientAverager", "broadcast"]


class GradientAverager:
    """Averages gradients at the end of each backward pass, as `DistributedDataParallel` does.

    All ranks must make the same backward passes, each with a loss that depends on some parameter.

    Args:
        module: module with the parameters.
        collective: the collective of this rank.
        wait: waits until nothing else uses the collective.
    """

    def __init__(self, module: nn.Module, collective: Collective, wait: Callable[[], None]) -> None:
        self._parameters = [each for _, each in dense_parameters(module) if each.requires_grad]
        self._collective = collective
        self._wait = wait
        self._is_queued = False
        for each in self._parameters:
            each.register_post_accumulate_grad_hook(self._queue)  # type: ignore[no-untyped-call]

    def _queue(self, _: Tensor) -> None:
        if not self._is_queued:
            self._is_queued = True
            engine: Any = Variable._execution_engine
            engine.queue_callback(self._average)

    def _average(self) -> None:
        self._is_queued = False
        # A missing gradient counts as zeros if another rank has a gradient for the parameter.
        flat = [
            torch.zeros(each.numel()) if each.grad is None else each.grad.reshape(-1)
            for each in self._parameters
        ]
        has_any = torch.tensor([each.grad is not None for each in self._parameters])
        # float64 represents all gradients exactly, so one exchange serves all dtypes.
        joined = torch.cat([*(each.cpu().double() for each in flat), has_any.double()])
        self._wait()
        mean = torch.from_numpy(self._collective.all_reduce(joined.numpy(), Reduction.MEAN))
        sizes = [each.numel() for each in self._parameters]
        *parts, shares = torch.split(mean, [*sizes, len(sizes)])
        for parameter, part, share in zip(self._parameters, parts, shares.tolist(), strict=True):
            if not share:
                continue
            averaged = part.view_as(parameter).to(parameter.device, parameter.dtype)
            if parameter.grad is None:
                parameter.grad = averaged
            else:
                parameter.grad.copy_(averaged)


def broadcast(module: nn.Module, collective: Collective) -> None:
    """Copies parameters and buffers of rank 0 to all ranks."""
    with torch.no_grad():
        parameters = [each for _, each in dense_parameters(module)]
        for each in (*parameters, *module.buffers()):
            mine = each.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
            if collective.rank > 0:
                mine = np.empty(0, np.uint8)
            first = collective.all_gather(np.ascontiguousarray(mine))[0]
            theirs = torch.from_numpy(first).view(each.dtype).view_as(each)
            each.copy_(theirs)
