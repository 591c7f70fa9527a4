"""Training with sparring on Ray Train, and recommendations with Ray Data.

Names are imported on first access, because listing plugins imports `sparring_ray.plugin`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_ray.recommending import recommend
    from sparring_ray.section import RayData
    from sparring_ray.snapshot_reports import read_snapshot_url
    from sparring_ray.training import train

__all__ = ["RayData", "read_snapshot_url", "recommend", "train"]

_HOMES = {
    "RayData": "section",
    "read_snapshot_url": "snapshot_reports",
    "recommend": "recommending",
    "train": "training",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
