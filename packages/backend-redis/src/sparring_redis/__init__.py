"""A storage backend and a rendezvous of sparring in Redis (standalone, Sentinel or Cluster).

``sparring.open_storage("redis", table, url="redis://10.0.0.7:6379")`` opens a table on a single server,
``url="redis+cluster://10.0.0.7:7000,10.0.0.8:7000"`` opens one in a cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparring_redis.backend import RedisStorage
    from sparring_redis.options import RedisOptions, RedisRendezvousOptions
    from sparring_redis.rendezvous import RedisRendezvous

__all__ = ["RedisOptions", "RedisRendezvous", "RedisRendezvousOptions", "RedisStorage"]

__version__ = "0.1.0"

_MODULES = {
    "RedisOptions": "options",
    "RedisRendezvous": "rendezvous",
    "RedisRendezvousOptions": "options",
    "RedisStorage": "backend",
}


def __getattr__(name: str) -> object:
    # Imported on demand, so that importing the plugin module does not import redis-py.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"sparring_redis.{_MODULES[name]}"), name)
