"""Contract of stream sources: partitions of messages with offsets.

A source is opened by each rank, and used by one thread. A rank reads some of the partitions. The run
stores its own offsets, in its snapshots: a source stores none, and joins no group of consumers.
`sparring_testing.StreamSourceTests` tests an implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparring.errors import DataError

__all__ = ["OffsetGoneError", "StreamMessage", "StreamRead", "StreamSource"]


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """One message, which contains any number of events."""

    offset: int
    """At least 0. Offsets of a partition increase, and may skip numbers."""
    value: Any
    """The payload as `bytes`, which `data.format` describes; or the events as a
    `pyarrow.RecordBatch`."""
    timestamp: float | None = None
    """Time of the message in seconds since 1970, if the source knows it. It never changes."""


@dataclass(frozen=True, slots=True)
class StreamRead:
    """Result of `StreamSource.read`."""

    next_offset: int
    """Offset at which the next read continues: after the last message."""
    messages: Sequence[StreamMessage] = field(default=())
    """In the order of their offsets."""


class StreamSource(Protocol):
    """An open stream.

    REQUIRES: messages with an offset below the end offset never change.
    """

    def partitions(self) -> Sequence[str]:
        """Returns the names of all partitions, in any order. Ranks divide them among themselves."""

    def earliest_offsets(self) -> Mapping[str, int]:
        """Returns partition → offset of its first message that can be read."""

    def end_offsets(self) -> Mapping[str, int]:
        """Returns partition → offset after its last message; of the next one if it is empty."""

    def read(self, partition: str, offset: int, max_events: int, deadline: float) -> StreamRead:
        """Returns the messages from `offset`, which may be fewer than exist.

        Waits for the first message, but not for more. At the deadline it may return none although there
        are some, for example because the client has only started to request them.

        Args:
            partition: one of `partitions`.
            offset: offset of the first message.
            max_events: maximum number of messages; of events if messages are record batches.
            deadline: time of `time.monotonic` at which a read without messages returns.

        Raises:
            OffsetGoneError: the source no longer contains the message at `offset`.
            DataError: the stream cannot be read.
        """

    def close(self) -> None:
        """Releases connections."""


class OffsetGoneError(DataError):
    """Messages were removed before they were read.

    Args:
        url: URL of the stream.
        partition: the partition.
        offset: offset of the first missing message.
        earliest: offset of the first message that can be read.
    """

    def __init__(self, url: str, partition: str, offset: int, earliest: int) -> None:
        super().__init__(
            f"reading {url}, partition {partition}: the offsets {offset} to {earliest - 1} are missing, "
            f"because the stream now starts at {earliest}; restore these messages, or train again with "
            "another folder for snapshots, and keep messages longer",
            partition=partition,
            offset=offset,
            earliest=earliest,
        )
