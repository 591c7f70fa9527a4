"""Options of gRPC that server and client share."""

from __future__ import annotations

from sparring_serve.wire.fields import MOST_BYTES

__all__ = ["CHANNEL_OPTIONS"]

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BYTES),
    ("grpc.max_send_message_length", MOST_BYTES),
    # A replica that came back is found soon, not after two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 250),
    # Channels of several clients in a process do not share connections, nor their failures.
    ("grpc.use_local_subchannel_pool", 1),
)
