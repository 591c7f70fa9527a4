"""Memory that a planner leaves free for everything but tables."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from sparring.errors import InvalidArgumentError
from sparring_torch.lookup.row_gradients import dense_parameters

__all__ = [
    "FixedPercentageStorageReservation",
    "HeuristicalStorageReservation",
    "host_memory_bytes",
]


class FixedPercentageStorageReservation:
    """Leaves a share of the memory free.

    Args:
        percentage: share of the memory, from 0 to 1.

    Raises:
        InvalidArgumentError: if it is out of range.
    """

    def __init__(self, percentage: float) -> None:
        if not 0 <= percentage <= 1:
            raise InvalidArgumentError(
                f"{type(self).__name__}: percentage must be from 0 to 1, found {percentage}"
            )
        self._share = percentage

    def available_bytes(self, memory_bytes: int, module: nn.Module) -> int:
        """Bytes that tables may use, of the memory of a rank."""
        return int(memory_bytes * (1 - self._share))


class HeuristicalStorageReservation(FixedPercentageStorageReservation):
    """Leaves a share of the memory free, and room for ordinary parameters.

    Args:
        percentage: share of the memory, from 0 to 1.
        parameter_multiplier: room for each byte of an ordinary parameter: its gradient, the state of
            its optimizer and the like.
        dense_tensor_estimate: the room in bytes; None: it is computed from parameters and buffers.

    Raises:
        InvalidArgumentError: if `percentage` is out of range.
    """

    def __init__(
        self,
        percentage: float,
        parameter_multiplier: float = 6.0,
        dense_tensor_estimate: int | None = None,
    ) -> None:
        super().__init__(percentage)
        self._multiplier, self._estimate = parameter_multiplier, dense_tensor_estimate

    def available_bytes(self, memory_bytes: int, module: nn.Module) -> int:
        """As of the base."""
        room = self._estimate
        if room is None:
            parameters = sum(each.nbytes for _, each in dense_parameters(module))
            buffers = sum(each.nbytes for each in module.buffers())
            room = int(parameters * self._multiplier) + buffers
        left = super().available_bytes(memory_bytes, module) - room
        if left <= 0:
            raise InvalidArgumentError(
                f"HeuristicalStorageReservation: {memory_bytes:,} bytes of memory leave nothing for "
                f"tables, found {room:,} bytes of room for ordinary parameters; give "
                "dense_tensor_estimate, a smaller parameter_multiplier, or a Topology with more memory"
            )
        return left


def host_memory_bytes() -> int:
    """Memory of this machine, or the limit of this container if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdecimal() else total
