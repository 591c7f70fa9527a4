"""Extends the ``torch`` collective to tensors on GPUs, which are sent over NCCL from GPU memory.

``torch.distributed`` supports NCCL, too, but its watchdog ends the process if a message is late, and
single messages cannot be canceled. Therefore tensors on GPUs use the collective ``nccl``, with the NCCL
library of torch, and host memory is sent over gloo.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sparring import make_plugin_manager
from sparring.contracts import Collective, CollectiveDescriptor, Membership
from sparring.errors import InvalidArgumentError, PluginError

__all__ = ["view_on_gpu", "with_devices"]

_log = logging.getLogger(__name__)

_NAME = "nccl"
"""Name of the collective for GPU memory, and of the backend in process groups."""


def with_devices(host: Collective, membership: Membership, process_group: str) -> Collective:
    """Returns a collective that also sends tensors on this rank's GPU, or `host` if the job does not use
    NCCL. All ranks must call it.

    The job uses NCCL if `process_group` contains it, or if the default group has it and it can be used.

    Args:
        host: the collective for host memory.
        membership: the membership of this rank, whose local rank is the number of its GPU.
        process_group: the option `process_group` of the collective.

    Raises:
        PluginError, DeviceError: `process_group` contains NCCL, but it cannot be used here.
    """
    is_named = _NAME in process_group
    if not is_named and not (dist.is_initialized() and _NAME in dist.get_backend_config()):
        return host
    try:
        found = _find_collective(is_named)
        if found is None or found.device_factory is None:
            return host
        return found.device_factory(host, membership, view_on_gpu)
    except BaseException:
        host.close()
        raise


def _find_collective(is_named: bool) -> CollectiveDescriptor | None:
    """Returns the collective for GPU memory, or None if it cannot be used and is not required.

    Raises:
        PluginError: it is required, but not installed.
    """
    try:
        found = make_plugin_manager().collective(_NAME)
    except PluginError as error:
        if is_named:
            raise
        if torch.cuda.is_available():
            _log.warning("tensors on GPUs are sent through host memory, because %s", error)
        return None
    if not is_named and found.unavailable is not None and found.unavailable() is not None:
        return None
    return found


def view_on_gpu(buffer: Any, stream: int | None) -> tuple[Any, int | None]:
    """Returns a tensor on a GPU as bytes, and the stream after which its message is ordered: `stream`,
    or torch's current stream, so that no thread waits. Returns other buffers unchanged.

    Raises:
        InvalidArgumentError: the tensor is not contiguous.
    """
    if not isinstance(buffer, Tensor) or not buffer.is_cuda:
        return buffer, stream
    if not buffer.is_contiguous():
        raise InvalidArgumentError(
            f"collective: buffers must be C-contiguous, found strides {buffer.stride()} for shape "
            f"{tuple(buffer.shape)}; copy it first"
        )
        # A view without a gradient; other libraries have no names for some dtypes of torch.
    as_bytes = buffer.detach().reshape(-1).view(torch.uint8)
    return as_bytes, current_stream(buffer) if stream is None else stream


def current_stream(tensor: Tensor) -> int:
    """Returns torch's stream of the calling thread on the tensor's GPU."""
    return int(torch.cuda.current_stream(tensor.device).cuda_stream)
