"""Creates a client from options."""

from __future__ import annotations

from sparring_redis.connections.client import Client
from sparring_redis.connections.connection import Access
from sparring_redis.connections.encryption import create_tls_context
from sparring_redis.connections.topology import (
    ClusterTopology,
    SentinelTopology,
    StandaloneTopology,
    Topology,
)
from sparring_redis.options import RedisServerOptions

__all__ = ["open_client"]


def open_client(options: RedisServerOptions, what: str) -> Client:
    """Creates a client without connecting it.

    Args:
        options: location of Redis.
        what: name of the owner for messages.

    Raises:
        InvalidArgumentError: a password, or a file for TLS, cannot be read.
    """
    place = options.place()
    context = create_tls_context(options) if place.is_encrypted else None
    access = Access(
        username=options.username,
        password=options.password(),
        database=place.database,
        context=context,
    )
    topology: Topology
    if place.mode == "cluster":
        topology = ClusterTopology(place, access)
    elif place.mode == "sentinel":
        topology = SentinelTopology(
            place,
            access,
            Access(
                username=options.sentinel_username,
                password=options.sentinel_password(),
                context=context,
                what="sentinel",
            ),
        )
    else:
        topology = StandaloneTopology(place, access)
    return Client(topology, options.deadline_seconds, what)
