"""gRPC options of servers and clients."""

from __future__ import annotations

from sparring_serve.wire.fields import MAX_BYTES

__all__ = ["CHANNEL_OPTIONS", "server_options"]

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.max_send_message_length", MAX_BYTES),
    # Reconnect to a restarted replica soon, not after two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 250),
    # Clients in one process do not share connections, and therefore no connection failures.
    ("grpc.use_local_subchannel_pool", 1),
)

_MAX_STREAMS = 128
"""Maximum number of concurrent calls per connection; clients queue further calls."""
_AGE_SECONDS = 3600.0
"""Clients reconnect after this time, so that connections spread over new replicas."""
_MIN_GRACE_SECONDS = 60.0
_KEEPALIVE_SECONDS, _KEEPALIVE_TIMEOUT_SECONDS = 30.0, 10.0
_MIN_PING_SECONDS = 10.0
"""Minimum interval of keepalive pings; by default, gRPC closes connections that ping within 5
minutes."""


def server_options(longest_seconds: float) -> tuple[tuple[str, int], ...]:
    """Returns server options that limit the resources of one client.

    Args:
        longest_seconds: Maximum deadline of a call. Calls in progress complete even if their
            connection reaches its maximum age.
    """
    grace_seconds = max(_MIN_GRACE_SECONDS, longest_seconds)
    return (
        # Reject compressed messages: gRPC 1.51 checks the size only after it has decompressed one.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.max_concurrent_streams", _MAX_STREAMS),
        ("grpc.max_connection_age_ms", round(1000 * _AGE_SECONDS)),
        ("grpc.max_connection_age_grace_ms", round(1000 * grace_seconds)),
        # Close connections of clients that disappeared.
        ("grpc.keepalive_time_ms", round(1000 * _KEEPALIVE_SECONDS)),
        # The first is the name of older releases of gRPC, the second of newer ones.
        ("grpc.keepalive_timeout_ms", round(1000 * _KEEPALIVE_TIMEOUT_SECONDS)),
        ("grpc.http2.ping_timeout_ms", round(1000 * _KEEPALIVE_TIMEOUT_SECONDS)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", round(1000 * _MIN_PING_SECONDS)),
    )
