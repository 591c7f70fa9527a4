"""Values and messages of the replicas of a shard."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol

from sparring.errors import StorageIOError
from sparring_serve.wire.fields import Buffer

__all__ = [
    "LogPosition",
    "LostLogError",
    "ReadState",
    "Record",
    "ReplaceState",
    "ReplicaOptions",
    "ReplicateReply",
    "ReplicateRequest",
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


@dataclass(frozen=True, slots=True)
class LogPosition:
    """End of a log.

    Args:
        epoch: Epoch of the leader that the log followed last; -1 if acknowledged records may be missing.
        position: Number of records since the beginning of the history.
    """

    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Record:
    """A change of the rows of a shard, in the order in which the leader applied it.

    Args:
        kind: Kind of the record, as in the push log.
        payload: Its content.
    """

    kind: int
    payload: Buffer


class LostLogError(Exception):
    """The leader's log does not contain the requested records, so followers cannot join."""


class ReplicatedLog(Protocol):
    """Log of one replica. The owner of the replica serializes all calls."""

    @property
    def end(self) -> LogPosition: ...

    @property
    def base(self) -> tuple[str, int]:
        """URL of the snapshot that the log follows, and its position."""
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
class ReplicateRequest:
    """Message of a leader to a follower. An empty one only asks for the end of the follower's log.

    Args:
        epoch: Epoch of the leader.
        leader: Address of the leader.
        session: Session that the follower reported; a request of an earlier session is ignored.
        is_append: Whether the follower appends `records`.
        after: End of the follower's log, as the leader knows it.
        records: Records after `after`.
        kept_from: Position of the snapshot that the leader's log follows.
        is_reset: Whether the follower replaces its rows and its log by `base`.
        base: URL of the snapshot at `kept_from`; empty if there were no rows.
    """

    epoch: int
    leader: str
    session: int = 0
    is_append: bool = False
    after: LogPosition = LogPosition(0, 0)
    records: tuple[Record, ...] = ()
    kept_from: int = 0
    is_reset: bool = False
    base: str = ""


@dataclass(frozen=True, slots=True)
class ReplicateReply:
    """Reply of a follower.

    Args:
        epoch: Highest epoch that it knows.
        session: Changes when the follower starts, and when its log begins to follow a leader.
        end: End of its log.
        is_loading: Whether it loads a snapshot.
    """

    epoch: int
    session: int
    end: LogPosition
    is_loading: bool = False


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
