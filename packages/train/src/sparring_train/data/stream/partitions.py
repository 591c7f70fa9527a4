"""Reads the partitions of one rank, up to a number of events, a deadline or an offset."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence

import pyarrow

from sparring.errors import DataError
from sparring_train.data.stream.events import Events, Parser
from sparring_train.streams import StreamMessage, StreamSource

__all__ = ["PartitionReader", "owned_partitions"]

_FIRST_READ = 16
"""Number of messages of the first read, when the number of events per message is unknown."""
_RECORDED_SECONDS = 30.0
"""Maximum time to read the recorded events of a step, which exist."""
_TURN_SECONDS = 0.01
"""Maximum wait for one of several partitions."""


def owned_partitions(names: Sequence[str], rank: int, world_size: int) -> list[str]:
    """Returns the partitions that a rank reads: consecutive ones in the order of names, so that the
    order of a step's events does not depend on the number of ranks."""
    owners = min(world_size, len(names))
    return [name for at, name in enumerate(sorted(names)) if at * owners // len(names) == rank]


class _Partition:
    """One partition, with messages that were read in advance."""

    def __init__(self, name: str, position: int, source: StreamSource, decoder: Parser):
        self.name, self.position = name, position
        self._source, self._decoder = source, decoder
        self._fetched = position
        self._messages: deque[StreamMessage] = deque()
        self._first: Events | None = None
        self._num_messages = self._num_events = 0

    def peek(self, max_events: int, deadline: float, end: int | None) -> Events | None:
        """Returns the first message before the offset `end` with its events, which stays the first one;
        None if there is none until the deadline."""
        while True:
            while self._messages:
                message = self._messages[0]
                if end is not None and message.offset >= end:
                    # No message has an offset between the last one that was taken and the end.
                    self.position = end
                    return None
                if self._first is None:
                    self._first = self._decoder.parse(self.name, message)
                if self._first is not None:
                    return self._first
                self.pop()
            if end is not None and self._fetched >= end:
                return None
            count = self._count_to_read(max_events)
            count = count if end is None else min(count, end - self._fetched)
            read = self._source.read(self.name, self._fetched, count, deadline)
            if not read.messages and read.next_offset == self._fetched:
                return None
            self._fetched = read.next_offset
            self._messages.extend(read.messages)
            if not self._messages:
                self.position = self._fetched

    def _count_to_read(self, max_events: int) -> int:
        """Returns a number of messages, or of rows, that contain about `max_events` events."""
        if not self._num_messages:
            return min(max_events, _FIRST_READ)
        return max(max_events * self._num_messages // max(self._num_events, 1), 1)

    def pop(self) -> None:
        """Removes the first message."""
        message = self._messages.popleft()
        if isinstance(message.value, pyarrow.RecordBatch):
            # A read is limited by rows.
            self._num_messages += message.value.num_rows
        else:
            self._num_messages += 1
        self._num_events += 0 if self._first is None else len(self._first)
        self._first = None
        # Offsets may skip numbers, and a source may only read at the offset of a message.
        self.position = self._messages[0].offset if self._messages else self._fetched


class PartitionReader:
    """Takes messages from the partitions of one rank.

    Args:
        source: the open stream.
        decoder: parses messages.
        positions: partition → offset of the first event to take, for this rank's partitions.
        ends: partition → offset at which reading ends; None: it does not end.
    """

    def __init__(
        self,
        source: StreamSource,
        decoder: Parser,
        positions: Mapping[str, int],
        ends: Mapping[str, int] | None,
    ) -> None:
        self._partitions = {
            name: _Partition(name, begin, source, decoder) for name, begin in positions.items()
        }
        self._ends = ends
        self._turn = 0
        # Partition → first and last time since its last event at which a read found none.
        self._empty: dict[str, tuple[float, float]] = {}

    @property
    def positions(self) -> dict[str, int]:
        """Offset of the first event that was not taken, for each partition."""
        return {each.name: each.position for each in self._partitions.values()}

    def take(
        self, max_events: int, deadline: float, paused: Collection[str] = ()
    ) -> dict[str, list[Events]]:
        """Takes the next messages of each partition, in the order of offsets.

        Args:
            max_events: maximum number of events; a single message may exceed it.
            deadline: time of `time.monotonic` at which taking ends.
            paused: partitions from which nothing is taken.
        """
        found: dict[str, list[Events]] = {name: [] for name in self._partitions}
        for name in paused:
            self._empty.pop(name, None)
        partitions = [each for name, each in self._partitions.items() if name not in paused]
        if not partitions:
            return found
        # Another partition is the first one each time, so that none is left behind.
        first = self._turn % len(partitions)
        self._turn += 1
        count, is_waiting = 0, False
        while True:
            before = count
            for each in partitions[first:] + partitions[:first]:
                now = time.monotonic()
                turn = deadline if len(partitions) == 1 else min(now + _TURN_SECONDS, deadline)
                end = None if self._ends is None else self._ends[each.name]
                events = each.peek(max_events - count, turn if is_waiting else now, end)
                if events is not None:
                    self._empty.pop(each.name, None)
                elif not found[each.name]:
                    self._empty[each.name] = self._empty.get(each.name, (now,))[0], now
                while events is not None:
                    if count and count + len(events) > max_events:
                        return found
                    each.pop()
                    found[each.name].append(events)
                    count += len(events)
                    if count >= max_events:
                        return found
                    events = each.peek(max_events - count, now, end)
            if time.monotonic() >= deadline or all(map(self._is_at_end, partitions)):
                return found
            is_waiting = count == before

    def idle(self, seconds: float) -> list[str]:
        """Returns the partitions in which reads found no event for this time, while they were not paused.
        Time in which nothing was read, such as a long step, does not make a partition idle."""
        return [name for name, (first, last) in self._empty.items() if last - first >= seconds]

    def _is_at_end(self, partition: _Partition) -> bool:
        return self._ends is not None and partition.position >= self._ends[partition.name]

    def take_range(self, name: str, end: int) -> list[Events]:
        """Takes all messages of a partition before the offset `end`.

        Raises:
            DataError: the stream ends before.
        """
        partition, found = self._partitions[name], []
        deadline = time.monotonic() + _RECORDED_SECONDS
        while events := partition.peek(end - partition.position, deadline, end):
            partition.pop()
            found.append(events)
        if partition.position < end:
            raise DataError(
                f"partition {name}: found no event at offset {partition.position}, expected the events "
                f"before {end}, which the run has trained; restore them",
                partition=name,
                offset=partition.position,
            )
        return found
