"""Training from YAML configurations: the commands `sparring train`, `sparring config` and others.

Also contains the base classes for plugins that register kinds of data or models.

Names are imported on first access, because listing plugins imports `sparring_train.plugin` and must not
import readers and models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_train.columns import Column, ColumnBatch, Feature, Schema
    from sparring_train.config.reading.loader import load_config, parse_config
    from sparring_train.config.reading.printer import config_as_yaml
    from sparring_train.config.run import CollectiveConfig, RendezvousConfig, RunConfig
    from sparring_train.config.sections.columns import ColumnSettings
    from sparring_train.config.sections.kinds import DataSection, ModelSection, Ranking
    from sparring_train.data.dataset import Dataset, LabelRange, OpenRequest
    from sparring_train.data.table.decode import Decoder, RawRows
    from sparring_train.data.table.strings import find_strings
    from sparring_train.engines import hash_column, hash_polars, register_duckdb
    from sparring_train.hookspecs import (
        DataDescriptor,
        JoinStoreDescriptor,
        ModelDescriptor,
        ModelRequest,
        StreamDescriptor,
        TrackerDescriptor,
    )
    from sparring_train.join_stores import JoinStore
    from sparring_train.loop.saved_model import evaluate_model
    from sparring_train.metrics_files.writer import MetricsWriter
    from sparring_train.recommend.all_users import RecommendationOptions, open_recommendations
    from sparring_train.recommend.part_jobs import PartsResult, compute_parts, count_parts
    from sparring_train.registered_kinds import find_trainer
    from sparring_train.run.allocator import keep_freed_memory
    from sparring_train.run.result import TrainResult
    from sparring_train.run.saved_run import open_run
    from sparring_train.streams import OffsetGoneError, StreamMessage, StreamRead, StreamSource
    from sparring_train.trackers.contract import Tracker, TrackerRequest
    from sparring_train.view.notebook import LookPage, look

__all__ = [
    "CollectiveConfig",
    "Column",
    "ColumnBatch",
    "ColumnSettings",
    "DataDescriptor",
    "DataSection",
    "Dataset",
    "Decoder",
    "Feature",
    "JoinStore",
    "JoinStoreDescriptor",
    "LabelRange",
    "LookPage",
    "MetricsWriter",
    "ModelDescriptor",
    "ModelRequest",
    "ModelSection",
    "OffsetGoneError",
    "OpenRequest",
    "PartsResult",
    "Ranking",
    "RawRows",
    "RecommendationOptions",
    "RendezvousConfig",
    "RunConfig",
    "Schema",
    "StreamDescriptor",
    "StreamMessage",
    "StreamRead",
    "StreamSource",
    "Tracker",
    "TrackerDescriptor",
    "TrackerRequest",
    "TrainResult",
    "compute_parts",
    "config_as_yaml",
    "count_parts",
    "evaluate_model",
    "load_config",
    "look",
    "open_recommendations",
    "open_run",
    "parse_config",
    "find_strings",
    "find_trainer",
    "hash_column",
    "hash_polars",
    "keep_freed_memory",
    "register_duckdb",
]

_HOMES = {
    "CollectiveConfig": "config.run",
    "Column": "columns",
    "ColumnBatch": "columns",
    "ColumnSettings": "config.sections.columns",
    "DataDescriptor": "hookspecs",
    "DataSection": "config.sections.kinds",
    "Dataset": "data.dataset",
    "Decoder": "data.table.decode",
    "Feature": "columns",
    "JoinStore": "join_stores",
    "JoinStoreDescriptor": "hookspecs",
    "LabelRange": "data.dataset",
    "LookPage": "view.notebook",
    "MetricsWriter": "metrics_files.writer",
    "ModelDescriptor": "hookspecs",
    "ModelRequest": "hookspecs",
    "ModelSection": "config.sections.kinds",
    "OffsetGoneError": "streams",
    "OpenRequest": "data.dataset",
    "PartsResult": "recommend.part_jobs",
    "Ranking": "config.sections.kinds",
    "RawRows": "data.table.decode",
    "RecommendationOptions": "recommend.all_users",
    "RendezvousConfig": "config.run",
    "RunConfig": "config.run",
    "Schema": "columns",
    "StreamDescriptor": "hookspecs",
    "StreamMessage": "streams",
    "StreamRead": "streams",
    "StreamSource": "streams",
    "Tracker": "trackers.contract",
    "TrackerDescriptor": "hookspecs",
    "TrackerRequest": "trackers.contract",
    "TrainResult": "run.result",
    "compute_parts": "recommend.part_jobs",
    "config_as_yaml": "config.reading.printer",
    "evaluate_model": "loop.saved_model",
    "load_config": "config.reading.loader",
    "look": "view.notebook",
    "open_run": "run.saved_run",
    "parse_config": "config.reading.loader",
    "count_parts": "recommend.part_jobs",
    "open_recommendations": "recommend.all_users",
    "find_strings": "data.table.strings",
    "find_trainer": "registered_kinds",
    "hash_column": "engines",
    "hash_polars": "engines",
    "keep_freed_memory": "run.allocator",
    "register_duckdb": "engines",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
