"""Trains what a YAML file describes: `sparring train` and `sparring config`.

Names are imported when they are asked for: listing plugins imports `sparring_train.plugin`, and should
not have to wait for readers and models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_train.config.loader import load_config, parse_config
    from sparring_train.config.printer import config_as_yaml
    from sparring_train.config.run import CollectiveConfig, RendezvousConfig, RunConfig
    from sparring_train.data.table.strings import strings_of
    from sparring_train.metrics_files.writer import MetricsWriter
    from sparring_train.result import TrainResult

__all__ = [
    "CollectiveConfig",
    "MetricsWriter",
    "RendezvousConfig",
    "RunConfig",
    "TrainResult",
    "config_as_yaml",
    "load_config",
    "parse_config",
    "strings_of",
]

_HOMES = {
    "CollectiveConfig": "config.run",
    "MetricsWriter": "metrics_files.writer",
    "RendezvousConfig": "config.run",
    "RunConfig": "config.run",
    "TrainResult": "result",
    "config_as_yaml": "config.printer",
    "load_config": "config.loader",
    "parse_config": "config.loader",
    "strings_of": "data.table.strings",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
