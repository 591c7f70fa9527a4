"""Handles the case that torch's allocator and tables run out of the GPU memory that they share.

    torch runs out      torch.OutOfMemoryError ──► DeviceMemoryError with requested and free bytes
    a table runs out    torch releases its unused memory, and the table tries again

torch releases its unused memory before it raises.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

from sparring.errors import DeviceMemoryError

__all__ = ["convert_memory_errors", "make_memory_error", "memory_errors", "release_unused_memory"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_REQUESTED = re.compile(r"[Tt]ried to allocate ([\d.]+) ?(bytes|[KMGT]iB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def convert_memory_errors(
    device: torch.device, function: Callable[_P, _T], num_bytes: Callable[_P, int] | None = None
) -> Callable[_P, _T]:
    """Wraps `function`, so that it raises `DeviceMemoryError` if torch runs out of memory.

    Args:
        device: device on which the function allocates tensors.
        num_bytes: returns the number of bytes that the function allocates for the same arguments;
            None reads it from torch's message, which rounds to a hundredth of its unit.
    """

    @wraps(function)
    def checked(*arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            return function(*arguments, **named)
        except torch.OutOfMemoryError as error:
            asked = None if num_bytes is None else num_bytes(*arguments, **named)
            raise make_memory_error(device, error, asked) from error

    return checked


@contextmanager
def memory_errors(device: torch.device) -> Iterator[None]:
    """Raises `DeviceMemoryError` if torch runs out of memory in the block."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise make_memory_error(device, error) from error


def release_unused_memory(device: torch.device) -> bool:
    """Returns torch's unused memory on `device` to the device.

    Returns:
        Whether torch had unused memory.
    """
    if _count_reserved_bytes(device) <= 0:
        return False
    torch.cuda.empty_cache()
    return True


def _count_reserved_bytes(device: torch.device) -> int:
    return torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def make_memory_error(
    device: torch.device, error: torch.OutOfMemoryError, asked_bytes: int | None = None
) -> DeviceMemoryError:
    """Creates the `DeviceMemoryError` for an error of torch.

    Args:
        asked_bytes: number of requested bytes; None reads it from torch's message.
    """
    asked = _find_requested_bytes(error) if asked_bytes is None else asked_bytes
    free = _count_free_bytes(device)
    return DeviceMemoryError(
        f"torch on {device}: requested {asked} bytes of device memory, but only {free} bytes are free; "
        "no row has changed. Use smaller batches, or reduce device_memory_bytes of the tables "
        f"({str(error).splitlines()[0]})",
        asked_bytes=asked,
        free_bytes=free,
    )


def _find_requested_bytes(error: torch.OutOfMemoryError) -> int:
    """Returns the requested bytes according to torch's message, or 0 if it has no number."""
    found = _REQUESTED.search(str(error))
    return 0 if found is None else round(float(found[1]) * _UNITS[found[2]])


def _count_free_bytes(device: torch.device) -> int:
    """Returns the free memory of the device plus torch's unused memory."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.mem_get_info(device)[0]) + max(0, _count_reserved_bytes(device))
