"""Errors of a service: a gRPC status code and a message."""

from __future__ import annotations

from enum import Enum

from sparring.errors import SparringError

__all__ = ["SHARD_MAP_METADATA", "StatusError", "Status"]

SHARD_MAP_METADATA = "sparring-shard-map-bin"
"""Trailing metadata with a ShardMap, sent if a request contains keys of another shard."""


class Status(Enum):
    """The gRPC status codes that the service returns."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"


class StatusError(SparringError):
    """Ends a call with a gRPC status and a message.

    Args:
        status: Status code.
        message: Description of the error and its fix.
        reason: Label for metrics; the default is the status.
        shard_map: Encoded ShardMap to attach to the reply.
    """

    def __init__(
        self, status: Status, message: str, *, reason: str = "", shard_map: bytes = b""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or status.value.lower()
        self.shard_map = shard_map
