"""Where torch's allocator and tables share the memory of a GPU, and it runs short.

    torch finds none    torch.OutOfMemoryError ──► DeviceMemoryError, with what was asked and free
    a table finds none  torch gives back what it keeps unused, and the table tries again

torch itself gives back what it keeps before it says that there is none.
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
    """`function`, whose want of memory is a `DeviceMemoryError`.

    Args:
        device: where it makes tensors.
        num_bytes: of the same arguments, how many bytes it makes; None: torch's message says how
            many, to a hundredth of its unit.
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
    """Surrounds what makes tensors on a device: want of memory is a `DeviceMemoryError`."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise make_memory_error(device, error) from error


def release_unused_memory(device: torch.device) -> bool:
    """Gives back to the device the unused memory that torch keeps there.

    Returns:
        Whether there was any.
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
    """The error for want of memory that torch found.

    Args:
        asked_bytes: as was asked for; None: torch's message says how many.
    """
    asked = _find_requested_bytes(error) if asked_bytes is None else asked_bytes
    free = _count_free_bytes(device)
    return DeviceMemoryError(
        f"torch on {device}: {asked} bytes of device memory were asked for, {free} are free; no row "
        "has changed. Use smaller batches, or leave tables less by device_memory_bytes "
        f"({str(error).splitlines()[0]})",
        asked_bytes=asked,
        free_bytes=free,
    )


def _find_requested_bytes(error: torch.OutOfMemoryError) -> int:
    """Bytes that torch's message says were requested; 0 where it says nothing."""
    found = _REQUESTED.search(str(error))
    return 0 if found is None else round(float(found[1]) * _UNITS[found[2]])


def _count_free_bytes(device: torch.device) -> int:
    """Free memory of the device, and memory that torch keeps for the next tensor."""
    if device.type != "cuda":
        return 0
    return int(torch.cuda.mem_get_info(device)[0]) + max(0, _count_reserved_bytes(device))
