"""Options → a client that knows where to go."""

from __future__ import annotations

from typing import Any

from sparring_redis.client import Client
from sparring_redis.connection import Access
from sparring_redis.options import RedisServerOptions
from sparring_redis.topology import (
    ClusterTopology,
    SentinelTopology,
    StandaloneTopology,
    Topology,
)

__all__ = ["open_client"]


def open_client(options: RedisServerOptions, what: str) -> Client:
    """A client; nothing is connected yet.

    Args:
        options: where Redis is.
        what: for messages, whose calls these are.

    Raises:
        InvalidArgumentError: the password cannot be read.
    """
    place = options.place()
    tls: dict[str, Any] = {
        "ssl_ca_certs": _path(options.tls_ca_file),
        "ssl_certfile": _path(options.tls_certificate_file),
        "ssl_keyfile": _path(options.tls_key_file),
        "ssl_check_hostname": options.tls_check_hostname,
        "ssl_cert_reqs": "required",
    }
    access = Access(
        username=options.username,
        password=options.password(),
        database=place.database,
        is_encrypted=place.is_encrypted,
        tls=tls,
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
                is_encrypted=place.is_encrypted,
                tls=tls,
            ),
        )
    else:
        topology = StandaloneTopology(place, access)
    return Client(topology, options.deadline_seconds, what)


def _path(path: object) -> str | None:
    return None if path is None else str(path)
