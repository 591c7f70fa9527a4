"""Serves embedding tables over gRPC: publisher, lookup service, clients.

Names are imported on first access, because listing plugins imports `sparring_serve.plugin` and should
not import gRPC.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_serve.client.answer import LookupReply, ReplyVersion, RowStatus
    from sparring_serve.client.failures import (
        AccessError,
        ReplicasFailedError,
        ShardRestartedError,
        StaleRowsError,
    )
    from sparring_serve.client.lookup_client import AsyncLookupClient, LookupClient
    from sparring_serve.client.recommend_steps import Recommendations
    from sparring_serve.client.sample import Sample
    from sparring_serve.config import (
        ClientConfig,
        ServerConfig,
        ServingConfig,
        TlsFiles,
        read_serving_config,
    )
    from sparring_serve.declaration import ParametersConfig, TableDeclaration
    from sparring_serve.hookspecs import EvaluatorDescriptor, MetricValue
    from sparring_serve.metrics import ServingMetrics
    from sparring_serve.parameters.client import AsyncParameterClient, ParameterClient
    from sparring_serve.parameters.push_steps import (
        PushFailedError,
        PushResult,
        ServiceSnapshot,
        TablePush,
    )
    from sparring_serve.parameters.push_window import Token
    from sparring_serve.parameters.server import open_parameter_server
    from sparring_serve.publishing.gate_file import open_gate
    from sparring_serve.publishing.publisher import close_gate
    from sparring_serve.server.lookup_server import LookupServer, open_server
    from sparring_serve.service import LookupService, ShardPosition
    from sparring_serve.tables.contract import ServingTables, VersionGoneError
    from sparring_serve.tables.shard_ranges import ShardReplicas

__all__ = [
    "TableDeclaration",
    "ServiceSnapshot",
    "open_parameter_server",
    "Token",
    "TablePush",
    "PushResult",
    "PushFailedError",
    "ParametersConfig",
    "AsyncParameterClient",
    "ParameterClient",
    "AccessError",
    "LookupReply",
    "ReplyVersion",
    "AsyncLookupClient",
    "ClientConfig",
    "EvaluatorDescriptor",
    "LookupClient",
    "LookupServer",
    "LookupService",
    "ShardPosition",
    "MetricValue",
    "ModelFiles",
    "Recommendations",
    "ReplicasFailedError",
    "RowStatus",
    "Sample",
    "ServerConfig",
    "ServingConfig",
    "ServingMetrics",
    "ServingTables",
    "ShardReplicas",
    "ShardRestartedError",
    "StaleRowsError",
    "TlsFiles",
    "VersionGoneError",
    "close_gate",
    "open_gate",
    "open_server",
    "read_serving_config",
]

_HOMES = {
    "AccessError": "client.failures",
    "LookupReply": "client.answer",
    "ReplyVersion": "client.answer",
    "AsyncLookupClient": "client.lookup_client",
    "AsyncParameterClient": "parameters.client",
    "ClientConfig": "config",
    "EvaluatorDescriptor": "hookspecs",
    "LookupClient": "client.lookup_client",
    "LookupServer": "server.lookup_server",
    "LookupService": "service",
    "ParameterClient": "parameters.client",
    "ParametersConfig": "declaration",
    "ShardPosition": "service",
    "PushFailedError": "parameters.push_steps",
    "PushResult": "parameters.push_steps",
    "MetricValue": "hookspecs",
    "ModelFiles": "client.model_steps",
    "Recommendations": "client.recommend_steps",
    "ReplicasFailedError": "client.failures",
    "RowStatus": "client.answer",
    "Sample": "client.sample",
    "ServerConfig": "config",
    "ServiceSnapshot": "parameters.push_steps",
    "ServingConfig": "config",
    "ServingMetrics": "metrics",
    "ServingTables": "tables.contract",
    "ShardReplicas": "tables.shard_ranges",
    "ShardRestartedError": "client.failures",
    "StaleRowsError": "client.failures",
    "TableDeclaration": "declaration",
    "TablePush": "parameters.push_steps",
    "TlsFiles": "config",
    "Token": "parameters.push_window",
    "VersionGoneError": "tables.contract",
    "close_gate": "publishing.publisher",
    "open_gate": "publishing.gate_file",
    "open_parameter_server": "parameters.server",
    "open_server": "server.lookup_server",
    "read_serving_config": "config",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
