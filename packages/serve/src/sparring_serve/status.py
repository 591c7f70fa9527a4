"""Refusals of a service: a status of gRPC, and a text for a person."""

from __future__ import annotations

from enum import Enum

from sparring.errors import SparringError

__all__ = ["SHARD_MAP_METADATA", "StatusError", "Status"]

SHARD_MAP_METADATA = "sparring-shard-map-bin"
"""Trailing metadata with a ShardMap, where a key of a foreign partition was asked for."""


class Status(Enum):
    """Status codes of gRPC that are used, by their names there."""

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
    """A call is answered with a status and this message.

    Args:
        status: of gRPC.
        message: what was asked, what was found, what to do.
        reason: a word for metrics.
        shard_map: a ShardMap to send along.
    """

    def __init__(
        self, status: Status, message: str, *, reason: str = "", shard_map: bytes = b""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason or status.value.lower()
        self.shard_map = shard_map
