"""Maps device names of storages to torch devices and to kernels that work on torch tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparring import make_plugin_manager
from sparring.contracts import ArraySource, KernelSet
from sparring.errors import InvalidArgumentError
from sparring_torch.device.memory import convert_memory_errors, release_unused_memory
from sparring_torch.device.streams import ProducedTensors

__all__ = ["current_gpu", "get_kernel_set", "find_storage_device", "tensor_device"]


def find_storage_device(device: torch.device | str | None) -> str:
    """Returns the name that storages use for a torch device, for example ``cpu`` or ``cuda:1``.

    ``emulated``, the device of tests without a GPU, is returned unchanged. ``cuda`` without a number
    means the GPU of this rank or, with one rank, torch's current GPU. The number is determined
    when the table is declared.

    Raises:
        InvalidArgumentError: the device type does not support tables.
    """
    if device is None:
        return "cpu"
    if device == "emulated":
        return "emulated"
    try:
        found = torch.device(device)
    except RuntimeError:  # torch does not know the name
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(
            f"device must be cpu or cuda, found {str(device)!r}; move the module to one of these"
        )
    if found.type == "cpu":
        return "cpu"
    return "cuda" if found.index is None else f"cuda:{found.index}"


def tensor_device(device: str) -> torch.device:
    """Returns the torch device of tensors in the memory of a storage's device."""
    if device in ("cpu", "emulated"):
        return torch.device("cpu")
    return torch.device("cuda", torch.device(device).index or 0)


def current_gpu() -> str | None:
    """Returns torch's current GPU, for example ``cuda:1``, or None if torch has no GPU."""
    return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else None


@functools.cache
def get_kernel_set(device: str) -> KernelSet:
    """Returns the kernels of a device, which work on torch tensors and torch's current stream.

    Raises:
        PluginError: no installed plugin has kernels for the device; the message names the package.
        DeviceError: the device cannot be used in this process.
    """
    kind = device.partition(":")[0]
    where = tensor_device(device)

    def empty(shape: tuple[int, ...], dtype: str) -> Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype), device=where)

    def empty_bytes(shape: tuple[int, ...], dtype: str) -> int:
        return math.prod(shape) * int(getattr(torch, dtype).itemsize)

    def from_host(array: npt.NDArray[Any]) -> Tensor:
        given = torch.from_numpy(np.ascontiguousarray(array))
        if where.type != "cpu":
            # torch keeps pinned memory until the copy ends. Pageable memory could be freed earlier.
            given = given.pin_memory()
        return given.to(where, non_blocking=True)

    def concatenate(parts: Sequence[Tensor]) -> Tensor:
        return torch.cat(list(parts))

    def take(array: Tensor, positions: Tensor) -> Tensor:
        return array.index_select(0, positions)

    def taken_bytes(array: Tensor, positions: Tensor) -> int:
        return len(positions) * math.prod(array.shape[1:]) * array.element_size()

    def put(array: Tensor, positions: Tensor, values: Tensor) -> None:
        array.index_copy_(0, positions, values)

    def stream() -> int:
        return 0 if where.type == "cpu" else int(torch.cuda.current_stream(where).cuda_stream)

    def using(address: int) -> AbstractContextManager[Any]:
        if where.type == "cpu":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.ExternalStream(address, device=where))  # type: ignore[no-untyped-call]

    def open_stream() -> int:
        # A stream of torch's pool, which torch reuses and never destroys.
        return int(torch.cuda.Stream(where).cuda_stream)  # type: ignore[no-untyped-call]

    arrays = ArraySource(
        empty=convert_memory_errors(where, empty, empty_bytes),
        stream=stream,
        index=where.index or 0,
        using=using,
        open_stream=None if where.type == "cpu" else open_stream,
        here=nullcontext if where.type == "cpu" else lambda: torch.cuda.device(where),
        to_host=lambda array: array.cpu().numpy(),
        from_host=convert_memory_errors(where, from_host, lambda array: int(array.nbytes)),
        concatenate=convert_memory_errors(
            where, concatenate, lambda parts: sum(each.nbytes for each in parts)
        ),
        take=convert_memory_errors(where, take, taken_bytes),
        put=convert_memory_errors(where, put),
        follow=lambda tensors: ProducedTensors(where, list(tensors)).take,
        view=lambda array, dtype: array.view(getattr(torch, dtype)),
        release_unused=None if where.type == "cpu" else partial(release_unused_memory, where),
    )
    return make_plugin_manager().kernels(kind).factory(arrays)
