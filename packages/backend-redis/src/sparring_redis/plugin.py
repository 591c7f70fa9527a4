"""The sparring plugin of this package. Importing it does not import redis-py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparring.contracts import RendezvousDescriptor, StorageDescriptor, hookimpl
from sparring.errors import PluginError
from sparring_redis.options import RedisOptions, RedisRendezvousOptions

if TYPE_CHECKING:
    from sparring.contracts import ChangeLog, Rendezvous, Shard, Storage, TableConfig


@hookimpl
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    return [
        StorageDescriptor(
            name="redis",
            api_version=(1, 0),
            summary="Persistent rows in Redis (standalone, Sentinel or Cluster), shared by all ranks.",
            options=RedisOptions,
            factory=_open,
            shard_factory=_open,
            found=_found,
            estimate_bytes=_estimate,
            unavailable=_reason,
            change_log=_open_change_log,
        )
    ]


@hookimpl
def sparring_register_rendezvous() -> Sequence[RendezvousDescriptor]:
    return [
        RendezvousDescriptor(
            name="redis",
            api_version=(1, 0),
            summary="Ranks meet in Redis. Their numbers come from the launcher's variables or "
            "from the order of arrival.",
            options=RedisRendezvousOptions,
            factory=_meet,
            unavailable=_reason,
        )
    ]


def _open(table: TableConfig, options: RedisOptions, shard: Shard | None = None) -> Storage:
    from sparring_redis.backend import RedisStorage

    return RedisStorage(table, options, shard)


def _found(table: TableConfig, options: RedisOptions) -> TableConfig | None:
    from sparring_redis.backend import found_table

    return found_table(table, options)


def _estimate(table: TableConfig, options: RedisOptions, rows: int) -> Mapping[str, int]:
    from sparring_redis.estimate import estimate_redis_bytes

    return estimate_redis_bytes(table, options, rows)


def _open_change_log(table: str, options: RedisOptions) -> ChangeLog:
    from sparring_redis.change_log import RedisChangeLog

    return RedisChangeLog(table, options)


def _meet(options: RedisRendezvousOptions) -> Rendezvous:
    if reason := _reason():
        raise PluginError(f"rendezvous 'redis' cannot run here: {reason}", backend="redis")
    from sparring_redis.rendezvous import RedisRendezvous

    return RedisRendezvous(options)


def _reason() -> str | None:
    try:
        import hiredis  # noqa: F401
        import redis  # noqa: F401
    except ImportError as error:
        return f"{error}; run: pip install 'redis[hiredis]'"
    return None
