"""Generates keys and batches of ids."""

from __future__ import annotations

import torch

from benchmarks.gpu.machine import Machine
from benchmarks.inputs import batches

__all__ = ["spread", "zipf_ids"]


def spread(numbers: torch.Tensor) -> torch.Tensor:
    """Maps distinct numbers to distinct keys that are spread over 64 bits."""
    return numbers * 0x1E3779B97F4A7C15


def zipf_ids(machine: Machine, count: int, num_ids: int, num_rows: int) -> list[torch.Tensor]:
    """Returns `count` batches of ids, Zipf 1.05 over `num_rows`, with frequent ids scattered."""
    made = batches(count, skew="zipf", num_rows=num_rows, num_bags=num_ids, bag_size=1)
    return [spread(torch.from_numpy(batch.ids)).to(machine.where) for batch in made]
