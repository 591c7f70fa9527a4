"""Messages of the lookup service; `lookup.proto` describes each field."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from sparring_serve.wire.fields import Buffer, data, flag, many, number, one, real, text, texts

__all__ = [
    "MoveReply",
    "MoveRequest",
    "MoveStage",
    "MovedPart",
    "PartReply",
    "PartRequest",
    "SnapshotReply",
    "SnapshotRequest",
    "SERVICE",
    "DescribeReply",
    "DescribeRequest",
    "FlushReply",
    "FlushRequest",
    "InitialValues",
    "LogPosition",
    "Missing",
    "ModelFileMessage",
    "ParametersMessage",
    "PullReply",
    "PullRequest",
    "PushReply",
    "Record",
    "ReplicateReply",
    "ReplicateRequest",
    "PushRequest",
    "ReadModelReply",
    "ReadModelRequest",
    "RecommendReply",
    "RecommendRequest",
    "RefreshReply",
    "RefreshRequest",
    "Replicas",
    "RowDtype",
    "SampleColumn",
    "ScanReply",
    "ScanRequest",
    "ShardMapMessage",
    "TableGradients",
    "TableIds",
    "TableMessage",
    "TableMethod",
    "TableRows",
    "VersionMessage",
    "Wait",
]

SERVICE = "sparring.serving.v1.Lookup"


class RowDtype(IntEnum):
    """Data type of rows in messages."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT8 = 2


class Missing(IntEnum):
    """Values of keys without a row."""

    INITIAL = 0
    ZERO = 1
    ONLY_FOUND = 2


@dataclass(frozen=True, slots=True)
class VersionMessage:
    run: str = text(1)
    step: int = number(2)
    hash: str = text(3)


@dataclass(frozen=True, slots=True)
class TableIds:
    table: str = text(1)
    ids: Buffer = data(2)


@dataclass(frozen=True, slots=True)
class SampleColumn:
    name: str = text(1)
    ids: Buffer = data(2)
    numbers: Buffer = data(3)
    lengths: Buffer = data(4)


@dataclass(frozen=True, slots=True)
class PullRequest:
    tables: tuple[TableIds, ...] = many(1, TableIds)
    row_dtype: int = number(2)
    missing: int = number(3)
    version: str = text(4)
    max_staleness_seconds: float = real(5)
    accepts_partial: bool = flag(6)
    request_id: str = text(7)
    sample: tuple[SampleColumn, ...] = many(8, SampleColumn)
    epoch: int = number(9)


@dataclass(frozen=True, slots=True)
class TableRows:
    table: str = text(1)
    dim: int = number(2)
    rows: Buffer = data(3)
    found: Buffer = data(4)
    failed: Buffer = data(5)


@dataclass(frozen=True, slots=True)
class PullReply:
    tables: tuple[TableRows, ...] = many(1, TableRows)
    version: VersionMessage = one(2, VersionMessage)
    age_seconds: float = real(3)
    newest: str = text(4)
    failure: str = text(5)
    incarnation: int = number(6)
    padding: Buffer = data(7)
    epoch: int = number(8)


@dataclass(frozen=True, slots=True)
class ScanRequest:
    table: str = text(1)
    version: str = text(2)
    max_rows: int = number(3)
    cursor: Buffer = data(4)


@dataclass(frozen=True, slots=True)
class ScanReply:
    ids: Buffer = data(1)
    rows: Buffer = data(2)
    cursor: Buffer = data(3)
    version: VersionMessage = one(4, VersionMessage)


@dataclass(frozen=True, slots=True)
class RecommendRequest:
    table: str = text(1)
    version: str = text(2)
    queries: Buffer = data(3)
    k: int = number(4)
    excluded: Buffer = data(5)
    num_excluded: Buffer = data(6)
    shard: int = number(7)
    num_shards: int = number(8)


@dataclass(frozen=True, slots=True)
class RecommendReply:
    ids: Buffer = data(1)
    scores: Buffer = data(2)
    num_ids: Buffer = data(3)
    version: VersionMessage = one(4, VersionMessage)
    newest: str = text(5)


@dataclass(frozen=True, slots=True)
class ReadModelRequest:
    kind: str = text(1)
    version: str = text(2)
    begin: int = number(3)
    max_bytes: int = number(4)


@dataclass(frozen=True, slots=True)
class ModelFileMessage:
    kind: str = text(1)
    size_bytes: int = number(2)
    hash: str = text(3)


@dataclass(frozen=True, slots=True)
class ReadModelReply:
    files: tuple[ModelFileMessage, ...] = many(1, ModelFileMessage)
    content: Buffer = data(2)
    version: VersionMessage = one(3, VersionMessage)


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    pass


@dataclass(frozen=True, slots=True)
class InitialValues:
    kind: str = text(1)
    first: float = real(2)
    second: float = real(3)
    seed: int = number(4)
    dtype: str = text(5)


@dataclass(frozen=True, slots=True)
class TableMessage:
    name: str = text(1)
    dim: int = number(2)
    dtype: str = text(3)
    rows: int = number(4)
    initial: InitialValues = one(5, InitialValues)


@dataclass(frozen=True, slots=True)
class Replicas:
    addresses: tuple[str, ...] = texts(1)


@dataclass(frozen=True, slots=True)
class ShardMapMessage:
    number: int = number(1)
    shards: tuple[Replicas, ...] = many(2, Replicas)
    owners: Buffer = data(3)


@dataclass(frozen=True, slots=True)
class TableMethod:
    table: str = text(1)
    update_method: str = text(2)
    hyper: str = text(3)


@dataclass(frozen=True, slots=True)
class ParametersMessage:
    tables: tuple[TableMethod, ...] = many(1, TableMethod)
    non_finite_gradients: str = text(2)
    save_seconds: float = real(3)
    incarnation: int = number(4)


@dataclass(frozen=True, slots=True)
class GateMessage:
    is_closed: bool = flag(1)
    reason: str = text(2)
    pin: str = text(3)
    pinned_by: str = text(4)
    since: float = real(5)


@dataclass(frozen=True, slots=True)
class DescribeReply:
    tables: tuple[TableMessage, ...] = many(1, TableMessage)
    versions: tuple[VersionMessage, ...] = many(2, VersionMessage)
    age_seconds: float = real(3)
    shard_map: ShardMapMessage = one(4, ShardMapMessage)
    shard: int = number(5)
    max_ids: int = number(6)
    max_bytes: int = number(7)
    max_deadline_seconds: float = real(8)
    is_ready: bool = flag(9)
    parameters: ParametersMessage = one(10, ParametersMessage)
    not_fresh: str = text(11)
    gate: GateMessage = one(12, GateMessage)


@dataclass(frozen=True, slots=True)
class RefreshRequest:
    pass


@dataclass(frozen=True, slots=True)
class RefreshReply:
    version: VersionMessage = one(1, VersionMessage)
    is_new: bool = flag(2)
    refused: str = text(3)


class Wait(IntEnum):
    """When a push is acknowledged."""

    QUEUED = 0
    APPLIED = 1


@dataclass(frozen=True, slots=True)
class TableGradients:
    table: str = text(1)
    ids: Buffer = data(2)
    gradients: Buffer = data(3)
    update_method: str = text(4)
    hyper: str = text(5)


@dataclass(frozen=True, slots=True)
class PushRequest:
    tables: tuple[TableGradients, ...] = many(1, TableGradients)
    client: str = text(2)
    sequence: int = number(3)
    wait: int = number(4)
    incarnation: int = number(5)
    epoch: int = number(6)
    map_number: int = number(7)


@dataclass(frozen=True, slots=True)
class PushReply:
    was_known: bool = flag(1)
    step: int = number(2)
    incarnation: int = number(3)
    known_at_start: int = number(4)
    epoch: int = number(5)
    is_unreplicated: bool = flag(6)


@dataclass(frozen=True, slots=True)
class FlushRequest:
    client: str = text(1)
    heard: int = number(2)
    epoch: int = number(3)
    map_number: int = number(4)


@dataclass(frozen=True, slots=True)
class FlushReply:
    step: int = number(1)
    failure: int = number(2)
    push: int = number(3)
    why: str = text(4)
    incarnation: int = number(5)
    known_at_start: int = number(6)
    epoch: int = number(7)


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    url: str = text(1)
    tables: tuple[str, ...] = texts(2)
    accepts_loss: bool = flag(3)


@dataclass(frozen=True, slots=True)
class SnapshotReply:
    url: str = text(1)
    step: int = number(2)
    rows: tuple[TableMessage, ...] = many(3, TableMessage)


@dataclass(frozen=True, slots=True)
class PartRequest:
    url: str = text(1)
    shard: int = number(2)
    num_shards: int = number(3)
    asks: bool = flag(4)
    token: str = text(5)
    step: int = number(6)
    hash: str = text(7)
    tables: tuple[str, ...] = texts(8)
    accepts_loss: bool = flag(9)
    map_number: int = number(10)


@dataclass(frozen=True, slots=True)
class PartReply:
    step: int = number(1)
    rows: tuple[TableMessage, ...] = many(2, TableMessage)
    hash: str = text(3)
    incarnation: int = number(4)


@dataclass(frozen=True, slots=True)
class LogPosition:
    """End of a log.

    Args:
        epoch: Epoch of the leader that the log followed last; -1 if acknowledged records may be missing.
        position: Number of records since the beginning of the history.
    """

    epoch: int = number(1)
    position: int = number(2)


@dataclass(frozen=True, slots=True)
class Record:
    """A change of the rows of a shard, in the order in which the leader applied it.

    Args:
        kind: Kind of the record, as in the push log.
        payload: Its content.
    """

    kind: int = number(1)
    payload: Buffer = data(2)


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
        lost: Reason why acknowledged pushes may be missing on the leader; empty if none are.
        incarnation: Incarnation of the leader's rows.
        shard: Number of the shard, from 0.
        num_shards: Number of shards.
        base_save, base_hash: Token of the save of `base` and hash of its manifest; empty if unknown.
    """

    epoch: int = number(1)
    leader: str = text(2)
    session: int = number(3)
    is_append: bool = flag(4)
    after: LogPosition = one(5, LogPosition)
    records: tuple[Record, ...] = many(6, Record)
    kept_from: int = number(7)
    is_reset: bool = flag(8)
    base: str = text(9)
    lost: str = text(10)
    incarnation: int = number(11)
    shard: int = number(12)
    num_shards: int = number(13)
    base_save: str = text(14)
    base_hash: str = text(15)


@dataclass(frozen=True, slots=True)
class ReplicateReply:
    """Reply of a follower.

    Args:
        epoch: Highest epoch that it knows.
        session: Changes when the follower starts, and when its log begins to follow a leader.
        end: End of its log.
        is_loading: Whether it loads a snapshot.
    """

    epoch: int = number(1)
    session: int = number(2)
    end: LogPosition = one(3, LogPosition)
    is_loading: bool = flag(4)


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """Asks a shard to move partitions to another one; without partitions, to read the shard map."""

    begin: int = number(1)
    end: int = number(2)
    target: int = number(3)
    is_settled: bool = flag(4)


@dataclass(frozen=True, slots=True)
class MoveReply:
    map_number: int = number(1)
    rows: int = number(2)


class MoveStage(IntEnum):
    """What a `MovedPart` contains."""

    BEGIN = 0
    ROWS = 1
    READY = 2
    CANCEL = 3
    OWN = 4
    LEAVE = 5
    SYNC = 6


@dataclass(frozen=True, slots=True)
class MovedPart:
    """A step of a move: sent by the source to the target, and a record in the push logs of both."""

    stage: int = number(1)
    move: str = text(2)
    begin: int = number(3)
    end: int = number(4)
    table: str = text(5)
    keys: Buffer = data(6)
    rows: Buffer = data(7)
    erased: Buffer = data(8)
    tokens: Buffer = data(9)
    map_number: int = number(10)
