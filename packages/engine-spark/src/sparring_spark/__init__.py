"""Ids of strings and recommendations on Apache Spark.

Names are imported on first access, so that executors that only compute ids need no model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_spark.ids import hash_strings
    from sparring_spark.recommendations import recommend

__all__ = ["hash_strings", "recommend"]

_HOMES = {"hash_strings": "ids", "recommend": "recommendations"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
