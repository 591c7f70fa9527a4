"""Starts servers in this process: of rows in memory, and of tables that learn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparring.contracts import TableConfig
from sparring_serve.config import ServerConfig, ServingConfig
from sparring_serve.parameters.server import open_parameter_server
from sparring_serve.server.lookup_server import LookupServer
from sparring_serve.service import ShardPosition
from sparring_serve.tables.shard_ranges import ShardReplicas
from sparring_serve.testing.memory_tables import MemoryTables

__all__ = ["ITEM", "ROWS", "open_learning_server", "open_memory_server"]

ITEM = TableConfig("item", 4, seed=3)
ROWS = {"item": {key: [1, key, -key, 0.5] for key in range(100)}}
"""The rows that `open_memory_server` serves by default."""


def open_memory_server(
    tables: MemoryTables | None = None, shard: int = 0, shards: int = 1, **server: Any
) -> LookupServer:
    """Starts a lookup server on a free port that looks for newer versions only on request.

    Args:
        tables: the served tables; the default is `ITEM` with `ROWS`.
        shard: position of this server among the shards, from 0.
        shards: number of shards; the others have no server.
        **server: settings of the section ``server``.
    """
    config = ServingConfig(server=ServerConfig(**{"poll_seconds": 3600, **server}))
    addresses = ShardReplicas(tuple((f"127.0.0.1:{each + 1}",) for each in range(shards)))
    served = MemoryTables([ITEM], ROWS) if tables is None else tables
    return LookupServer(served, config, ShardPosition(addresses, shard), "127.0.0.1:0")


def open_learning_server(
    folder: Path,
    tables: Mapping[str, Any] | None = None,
    address: str = "127.0.0.1:0",
    server: Mapping[str, Any] | None = None,
    **parameters: Any,
) -> LookupServer:
    """Starts a server of the role parameters that loads no save.

    Args:
        folder: folder of the folder ``saved`` for saves, and of the push log.
        tables: section ``parameters.tables``; the default is a table `item` of dimension 4.
        address: address of its port.
        server: settings of the section ``server``.
        **parameters: further settings of the section ``parameters``.
    """
    section = {
        "tables": tables or {"item": {"dim": 4}},
        "folders": [str(folder / "saved")],
        "start": None,
        **parameters,
    }
    config = ServingConfig.model_validate(
        {"parameters": section, "server": ServerConfig(**server or {})}
    )
    return open_parameter_server(config, address=address)
