"""Time on a GPU, and what a plain copy on it reaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

__all__ = ["GpuFigure", "copy_bandwidth", "gpu_name", "seconds_of"]

_UNCOUNTED, _COUNTED = 5, 30
_COPY_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class GpuFigure:
    """One line of the table."""

    name: str
    value: float
    unit: str
    share: str
    """What it is of the copy's bandwidth, or against whom; empty where it stands alone."""


def gpu_name() -> str:
    return str(torch.cuda.get_device_name())


def seconds_of(call: Callable[[int], object]) -> float:
    """The median time of a call on the current stream; it is given the number of the turn."""
    for turn in range(_UNCOUNTED):
        call(turn)
    seconds = []
    for turn in range(_COUNTED):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call(turn)
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1000)
    return median(seconds)


def copy_bandwidth() -> float:
    """Bytes read and written each second by a copy of 1 GiB within the GPU."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * _COPY_BYTES / seconds_of(lambda _: target.copy_(source))
