"""Values that the replicas of a shard store, and the log that they replicate."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from sparring.errors import StorageIOError
from sparring_serve.parameters.push_log_files import Base
from sparring_serve.wire.messages import LogPosition, Record

__all__ = [
    "LostLogError",
    "ReadState",
    "ReplaceState",
    "ReplicaOptions",
    "ReplicatedLog",
    "ShardState",
    "StoreSteps",
]


@dataclass(frozen=True, slots=True)
class ShardState:
    """Value of a shard in the coordination store.

    Args:
        epoch: Number of the leader; each new leader increases it by one.
        leader: Address of the leader.
        in_sync: Addresses of the replicas that have every acknowledged push, including the leader.
        renewal: Number of renewals of the lease. A value that does not change is not renewed.
        has_ended: Whether the leader has ended, so that another replica may claim the lead at once.
    """

    epoch: int
    leader: str
    in_sync: tuple[str, ...]
    renewal: int = 0
    has_ended: bool = False

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decode(cls, content: bytes) -> ShardState:
        try:
            values = json.loads(content)
            return cls(
                values["epoch"],
                values["leader"],
                tuple(values["in_sync"]),
                values["renewal"],
                values.get("has_ended", False),
            )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise StorageIOError(
                f"the coordination store contains {content[:80]!r} instead of the state of a shard; give "
                "each service a database of its own"
            ) from error


@dataclass(frozen=True, slots=True)
class ReadState:
    """Reads the value of the shard."""


@dataclass(frozen=True, slots=True)
class ReplaceState:
    """Replaces the value of the shard; the result is whether it was replaced."""

    before: bytes | None
    after: bytes


StoreSteps = Generator["ReadState | ReplaceState", "bytes | bool | None", None]
"""Yields operations on the store and receives their results. The driver throws `StorageIOError` into
it if the store cannot be reached."""


class LostLogError(Exception):
    """The leader's log does not contain the requested records, so followers cannot join."""


class ReplicatedLog(Protocol):
    """Log of one replica. The owner of the replica serializes all calls."""

    @property
    def end(self) -> LogPosition: ...

    @property
    def base(self) -> tuple[Base, int]:
        """Snapshot that the log follows, and its position."""
        ...

    def read(self, position: int) -> list[Record]:
        """Returns some of the records after a position; raises `LostLogError`."""
        ...

    def append(self, records: Sequence[Record]) -> None:
        """Appends records of the leader, and applies them."""
        ...

    def begin_epoch(self, epoch: int) -> None:
        """Records that later records belong to an epoch."""
        ...

    def drop_before(self, position: int) -> None:
        """Deletes records up to the snapshot at a position; the log may lack that snapshot."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicaOptions:
    """Settings of a replica.

    Args:
        lease_seconds: Time for which a leader may answer after it has renewed its lease.
        waits_for_followers: Whether a push is acknowledged only if all followers in sync have it.
        is_first: Whether this replica becomes the leader if the store has no value.
    """

    lease_seconds: float = 2.0
    waits_for_followers: bool = True
    is_first: bool = False
