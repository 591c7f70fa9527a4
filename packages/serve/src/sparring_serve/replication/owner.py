"""What the replication of a shard needs to know about its server."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from sparring_serve.parameters.push_log import PushLog
from sparring_serve.parameters.push_log_files import Base
from sparring_serve.wire.messages import LogPosition, Record

__all__ = ["Follower", "FollowerLog", "ReplicaPlace", "service_key", "shard_key", "suspend_clock"]


def suspend_clock() -> float:
    """Returns seconds of a clock that continues while the process or the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class ReplicaPlace:
    """Place of a replica in a service.

    Args:
        shard: Number of the shard, from 0.
        num_shards: Number of shards.
        address: Address of this replica in `shards`.
        others: Addresses of the other replicas of the shard.
        is_first: Whether this is the first replica.
        key: Key of the shard in the store.
    """

    shard: int
    num_shards: int
    address: str
    others: tuple[str, ...]
    is_first: bool
    key: str


class Follower(Protocol):
    """Owner of the rows and the log."""

    def apply_record(self, record: Record) -> bool:
        """Logs and queues a record of the leader; returns False if the queue is full."""
        ...

    def reset_rows(self, base: str) -> None:
        """Replaces all rows by a snapshot, in the order of the queue; empty: no rows."""
        ...

    def base_of(self, url: str) -> Base:
        """Returns the identity of a snapshot; of no rows for an empty URL."""
        ...

    def lead(self, may_lack_pushes: str) -> Future[Any]:
        """Prepares to answer clients; the result is there when all records are applied.

        Args:
            may_lack_pushes: Reason why acknowledged pushes may be missing; empty if none are.
        """
        ...

    @property
    def lost(self) -> str:
        """Reason why acknowledged pushes may be missing; empty if none are."""
        ...

    def adopt(self, incarnation: int, lost: str) -> None:
        """Takes the incarnation of the leader's rows."""
        ...


class FollowerLog:
    """`ReplicatedLog` of a push log."""

    def __init__(self, log: PushLog, owner: Follower) -> None:
        self.log, self._owner = log, owner

    @property
    def end(self) -> LogPosition:
        return LogPosition(self.log.epoch, self.log.position)

    @property
    def base(self) -> tuple[Base, int]:
        start = self.log.start
        return start.base, start.position

    def read(self, position: int) -> list[Record]:
        return self.log.read(position)

    def append(self, records: Sequence[Record]) -> None:
        for each in records:
            if not self._owner.apply_record(each):
                return

    def begin_epoch(self, epoch: int) -> None:
        self.log.begin_epoch(epoch)

    def drop_before(self, position: int) -> None:
        self.log.drop_before(position)


def service_key(folder: str, *names: str | int) -> str:
    """Returns a key of a service in the store; services have different folders of snapshots."""
    folder = folder.removeprefix("file://")
    if "://" not in folder:
        folder = os.path.abspath(folder)  # noqa: PTH100 - links may differ between replicas
    return json.dumps(["sparring-parameters", folder, *names])


def shard_key(folder: str, shard: int, num_shards: int) -> str:
    """Returns the key of a shard in the store."""
    return service_key(folder, shard + 1, num_shards)
