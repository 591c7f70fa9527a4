"""The ``torch`` collective for tensors on GPUs: they travel by NCCL, straight from GPU memory.

``torch.distributed`` has NCCL too, but its watchdog ends the process where a message is late, and its
messages cannot be given up one by one. So GPU tensors take core's own way to NCCL
(`sparring.collective.nccl`), with the library that torch itself brings, and everything in host memory
goes by gloo as before.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparring.adapter import NcclCollective, open_cuda, open_nccl, why_nccl_is_unavailable
from sparring.contracts import Collective, Membership, Work
from sparring.errors import InvalidArgumentError

__all__ = ["TorchDeviceCollective", "with_devices"]


def with_devices(host: Collective, membership: Membership, process_group: str) -> Collective:
    """`host`, which also takes tensors on this rank's GPU where the job uses NCCL. All ranks call it.

    The job uses NCCL where `process_group` names it, or the default group that there is has it.

    Args:
        host: carries what is in host memory.
        membership: whose local rank is the number of the GPU.
        process_group: the option of that name.

    Raises:
        PluginError, DeviceError: `process_group` names NCCL, and it cannot be used here.
    """
    is_named = "nccl" in process_group
    if not is_named:
        has_nccl = dist.is_initialized() and "nccl" in dist.get_backend_config()
        if not has_nccl or why_nccl_is_unavailable() is not None:
            return host
    try:
        nccl, cuda = open_nccl(), open_cuda()
        return TorchDeviceCollective(host, nccl, cuda, device=membership.local_rank)
    except BaseException:
        host.close()
        raise


class TorchDeviceCollective(NcclCollective):
    """One rank of a gloo group and of an NCCL communicator.

    Without `stream`, messages of tensors go after the work on torch's current stream; no thread
    waits.
    """

    def send(
        self, buffer: Any, destination: int, tag: int = 0, *, stream: int | None = None
    ) -> Work:
        if _is_on_gpu(buffer):
            stream = current_stream(buffer) if stream is None else stream
            buffer = _as_bytes(buffer)
        return super().send(buffer, destination, tag, stream=stream)

    def receive(self, buffer: Any, source: int, tag: int = 0, *, stream: int | None = None) -> Work:
        if _is_on_gpu(buffer):
            stream = current_stream(buffer) if stream is None else stream
            buffer = _as_bytes(buffer)
        return super().receive(buffer, source, tag, stream=stream)


def current_stream(tensor: Tensor) -> int:
    """Torch's stream of the calling thread on the tensor's GPU."""
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)


def _is_on_gpu(buffer: Any) -> bool:
    return isinstance(buffer, Tensor) and buffer.is_cuda


def _as_bytes(tensor: Tensor) -> Tensor:
    """The same memory without a gradient, as bytes: not every dtype of torch has a name elsewhere."""
    if not tensor.is_contiguous():
        raise InvalidArgumentError(
            f"collective: buffers must be C-contiguous, found strides {tensor.stride()} for shape "
            f"{tuple(tensor.shape)}; copy it first"
        )
    return tensor.detach().reshape(-1).view(torch.uint8)
