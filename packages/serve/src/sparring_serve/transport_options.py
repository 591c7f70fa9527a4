"""Options of gRPC for servers and clients."""

from __future__ import annotations

from sparring_serve.wire.fields import MAX_BYTES

__all__ = ["CHANNEL_OPTIONS", "server_options"]

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES),
    # A replica that came back is found soon, not after two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 250),
    # Channels of several clients in a process do not share connections, nor their failures.
    ("grpc.use_local_subchannel_pool", 1),
)

_MAX_STREAMS = 128
"""Calls of one connection at the same time; a client keeps further ones back."""
_AGE_SECONDS = 3600.0
"""After which a client connects again, so that connections spread over new replicas."""
_MIN_GRACE_SECONDS = 60.0
_KEEPALIVE_SECONDS, _KEEPALIVE_TIMEOUT_SECONDS = 30.0, 10.0
_MIN_PING_SECONDS = 10.0
"""Clients may send keepalive pings this often; gRPC's default closes connections that ping within 5
minutes."""


def server_options(longest_seconds: float) -> tuple[tuple[str, int], ...]:
    """Options of a server that limit the resources of one client.

    Args:
        longest_seconds: longest deadline of a call; a call in progress is not cut off when its connection
            has reached its age.
    """
    grace_seconds = max(_MIN_GRACE_SECONDS, longest_seconds)
    return (
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.max_connection_age_ms", round(1000 * _AGE_SECONDS)),
        ("grpc.max_connection_age_grace_ms", round(1000 * grace_seconds)),
        # Connections of clients that are gone without a word are closed.
        ("grpc.keepalive_time_ms", round(1000 * _KEEPALIVE_SECONDS)),
        # The first is the name of older releases of gRPC, the second of newer ones.
        ("grpc.keepalive_timeout_ms", round(1000 * _KEEPALIVE_TIMEOUT_SECONDS)),
        ("grpc.http2.ping_timeout_ms", round(1000 * _KEEPALIVE_TIMEOUT_SECONDS)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", round(1000 * _MIN_PING_SECONDS)),
    )
