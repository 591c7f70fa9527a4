"""Opens a server of the role `parameters`."""

from __future__ import annotations

from sparring.errors import ConfigError
from sparring_serve.client.grpc_transport import GrpcTransport
from sparring_serve.config import ServingConfig
from sparring_serve.parameters.service import ParameterService
from sparring_serve.parameters.shard import ParameterShard
from sparring_serve.server.lookup_server import LookupServer
from sparring_serve.service import LookupService, ShardPosition

__all__ = ["open_parameter_server"]


def open_parameter_server(
    config: ServingConfig, *, shard: int = 0, address: str | None = None
) -> LookupServer:
    """Opens the tables of one shard, and serves pulls and pushes until `close`.

    Args:
        config: of the service.
        shard: of this server, from 0.
        address: ``host:port``, port 0 takes a free one; None: `server.address`, or that of the shard.

    Raises:
        ConfigError: the configuration has no section `parameters`, or what such a service cannot have.
        StorageIOError: the port cannot be listened on.
        SnapshotError: the snapshot to begin with is damaged.
    """
    declared = config.parameters
    if declared is None:
        raise ConfigError(
            "role parameters: the configuration has no section `parameters`; declare tables there"
        )
    if any(len(each) > 1 for each in config.shards):
        raise ConfigError(
            "role parameters: `shards` lists several replicas of a shard, and tables that learn have one "
            "server each; list one address for each shard"
        )
    if config.server.workers > 1:
        raise ConfigError(
            "role parameters: server.workers must be 1, as processes share no rows that change; raise "
            "server.threads, or add shards"
        )
    position = ShardPosition(config.shard_map, shard)
    tables = ParameterShard(declared, position)

    def changes(lookups: LookupService) -> ParameterService:
        service = ParameterService(tables, lookups, GrpcTransport(config.client))
        service.resume()
        return service

    try:
        tables.start()
        listening = address or config.server.address or config.shards[shard][0]
        return LookupServer(tables, config, position, listening, changes)
    except BaseException:
        tables.close()
        raise
