"""Opens servers of the role `parameters`."""

from __future__ import annotations

from sparring.errors import ConfigError
from sparring_serve.client.grpc_transport import GrpcTransport
from sparring_serve.config import ServingConfig
from sparring_serve.parameters.push_log_files import read_followed, read_partitions
from sparring_serve.parameters.service import ParameterService
from sparring_serve.parameters.shard import ParameterShard
from sparring_serve.replication.owner import ReplicaPlace, shard_key
from sparring_serve.replication.store import open_store
from sparring_serve.resizing.map_store import MapStore, map_key
from sparring_serve.server.lookup_server import LookupServer
from sparring_serve.service import LookupService, ShardPosition

__all__ = ["open_parameter_server"]


def open_parameter_server(
    config: ServingConfig, *, shard: int = 0, replica: int = 0, address: str | None = None
) -> LookupServer:
    """Opens the tables of one shard, and serves pulls and pushes until `close`.

    Args:
        config: Configuration of the service.
        shard: Shard of this server, from 0.
        replica: Replica of the shard, from 0.
        address: ``host:port``; port 0 selects a free port; None uses `server.address` or the address
            of the replica.

    Raises:
        ConfigError: The configuration has no section `parameters`, or settings that are invalid for
            this role.
        StorageIOError: The server cannot listen on the port.
        SnapshotError: The snapshot to start with is damaged.
    """
    declared = config.parameters
    if declared is None:
        raise ConfigError(
            "role parameters: the configuration has no section `parameters`; declare tables there"
        )
    has_replicas = any(len(each) > 1 for each in config.shards)
    if declared.replication is None and has_replicas:
        raise ConfigError(
            "role parameters: `shards` lists several replicas of a shard, which must agree on a leader; "
            "set parameters.replication.store, or list one address per shard"
        )
    if config.server.workers > 1:
        raise ConfigError(
            "role parameters: server.workers must be 1, because processes cannot share mutable rows; "
            "increase server.threads, or add shards"
        )
    position, maps = ShardPosition(config.shard_map, shard), None
    store = None if declared.replication is None else open_store(declared.replication.store)
    if store is not None and not has_replicas:  # followers do not receive the rows of a resize
        maps = MapStore(store, map_key(declared.folders[0]))
        position = ShardPosition(maps.renumber(config.shard_map, shard), shard)
    if replica:
        # The replicas of a shard may run on one machine, and then need separate logs. The first one
        # continues the log of a shard that had no followers.
        folder = declared.push_log_folder / f"replica-{replica + 1}"
        declared = declared.model_copy(update={"push_log": folder})
    tables = ParameterShard(declared, position, can_move=maps is not None)
    if maps is not None:
        tables.began_partitions = read_partitions(declared.push_log_folder, shard)
    num_shards = 0 if maps is not None else position.shards.num_shards
    tables.superseded, tables.followed = read_followed(declared.push_log_folder, shard, num_shards)
    if len(config.shards[shard]) > 1 and (kept := tables.persistent_tables()):
        tables.close()
        raise ConfigError(
            f"role parameters: the storage of table {kept[0]!r} keeps rows, so each replica would apply "
            "pushes to rows that already have them; use a storage in memory such as hkv, or list one "
            "address per shard"
        )

    def changes(lookups: LookupService) -> ParameterService:
        service = ParameterService(tables, lookups, GrpcTransport(config.client), maps)
        service.resume()
        if store is not None and maps is None:
            service.join(_place(config, shard, replica), store)
        if service.scheduled is not None:
            service.scheduled.start()
        return service

    try:
        tables.start()
        listening = address or config.server.address or config.shards[shard][replica]
        return LookupServer(tables, config, position, listening, changes)
    except BaseException:
        tables.close()
        raise


def _place(config: ServingConfig, shard: int, replica: int) -> ReplicaPlace:
    assert config.parameters is not None
    replicas, num_shards = config.shards[shard], len(config.shards)
    own = replicas[replica]
    return ReplicaPlace(
        shard,
        num_shards,
        own,
        tuple(each for each in replicas if each != own),
        is_first=replica == 0,
        key=shard_key(config.parameters.folders[0], shard, num_shards),
    )
