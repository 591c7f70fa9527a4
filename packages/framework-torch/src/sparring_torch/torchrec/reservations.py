"""Memory that a planner reserves for everything except tables."""

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
    """Reserves a share of the memory.

    Args:
        percentage: share of the memory, from 0 to 1.

    Raises:
        InvalidArgumentError: `percentage` is out of range.
    """

    def __init__(self, percentage: float) -> None:
        if not 0 <= percentage <= 1:
            raise InvalidArgumentError(
                f"{type(self).__name__}: percentage must be from 0 to 1, found {percentage}"
            )
        self._share = percentage

    def available_bytes(self, memory_bytes: int, module: nn.Module) -> int:
        """Returns the bytes that tables may use of a rank's memory."""
        return int(memory_bytes * (1 - self._share))


class HeuristicalStorageReservation(FixedPercentageStorageReservation):
    """Reserves a share of the memory, and memory for ordinary parameters.

    Args:
        percentage: share of the memory, from 0 to 1.
        parameter_multiplier: bytes to reserve per byte of an ordinary parameter, including its
            gradient and the state of its optimizer.
        dense_tensor_estimate: bytes to reserve; None computes them from parameters and buffers.

    Raises:
        InvalidArgumentError: `percentage` is out of range.
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
        """See `FixedPercentageStorageReservation.available_bytes`."""
        room = self._estimate
        if room is None:
            parameters = sum(each.nbytes for _, each in dense_parameters(module))
            buffers = sum(each.nbytes for each in module.buffers())
            room = int(parameters * self._multiplier) + buffers
        left = super().available_bytes(memory_bytes, module) - room
        if left <= 0:
            raise InvalidArgumentError(
                f"HeuristicalStorageReservation: found {memory_bytes:,} bytes of memory, of which "
                f"{room:,} are reserved for ordinary parameters and nothing is left for tables; set "
                "dense_tensor_estimate, a smaller parameter_multiplier, or a Topology with more memory"
            )
        return left


def host_memory_bytes() -> int:
    """Returns the memory of this machine, or the limit of this container if it is smaller."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(total, int(text)) if text.isdecimal() else total
