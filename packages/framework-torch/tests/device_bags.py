"""Batches of bags of one table, and its embeddings, for tests of tables on devices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["bags_of", "read_all", "two_tiers"]


def bags_of(step: int) -> tuple[Tensor, Tensor]:
    """Returns ids and offsets of 30 bags with new ids in each step, and an extreme id."""
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(-50, 50 + 30 * step, (120,), generator=generator)
    ids[::7] = -(2**63)
    cuts = torch.randint(0, 121, (29,), generator=generator).sort().values
    return ids, torch.cat([torch.zeros(1, dtype=torch.int64), cuts])


def read_all(module: nn.Module, where: torch.device | str | None = None) -> Tensor:
    """Returns the current embedding of each id of `bags_of` and of some more."""
    with torch.no_grad():
        found: Tensor = module.eval()(torch.arange(-200, 300, device=where)[:, None])
    return found


def two_tiers(device: str, capacity: int, *below: Any, **options: Any) -> dict[str, Any]:
    """Returns the configuration of a stack whose first tier stores part of the rows on a device."""
    first = {"device": device, "capacity": capacity, "policy": "lru"}
    tiers = [{"backend": "hkv", "options": first}, *(below or ("hkv",))]
    return {"backend": "tiered", "tiers": tiers, **options}
