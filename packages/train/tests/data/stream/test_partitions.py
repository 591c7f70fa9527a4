"""Reads of several partitions: positions, and partitions without events."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pytest

pytest.importorskip("pyarrow", reason="reads batches of Arrow")

from sparring_train.config.sections.stream import StreamData
from sparring_train.data.stream.events import MessageDecoder
from sparring_train.data.stream.partitions import PartitionReader
from sparring_train.streams import StreamMessage, StreamRead


class Source:
    """Messages of two events, whose offsets are multiples of 10."""

    def __init__(self, **counts: int) -> None:
        self.counts = counts

    def partitions(self) -> Sequence[str]:
        return list(self.counts)

    def earliest_offsets(self) -> Mapping[str, int]:
        return dict.fromkeys(self.counts, 0)

    def end_offsets(self) -> Mapping[str, int]:
        return {name: 10 * count for name, count in self.counts.items()}

    def read(self, partition: str, offset: int, max_events: int, deadline: float) -> StreamRead:
        begin, end = offset // 10, min(offset // 10 + max_events, self.counts[partition])
        messages = [
            StreamMessage(10 * at, b'[{"user": 1}, {"user": 2}]') for at in range(begin, end)
        ]
        return StreamRead(10 * max(begin, end), messages)

    def close(self) -> None:
        """Has nothing to release."""


def open_reader(source: Source) -> PartitionReader:
    data = StreamData(kind="stream", url="x", format="json", categorical=("user",))
    return PartitionReader(source, MessageDecoder(data, None, 0), source.earliest_offsets(), None)


def take(reader: PartitionReader, count: int, paused: Sequence[str] = ()) -> dict[str, int]:
    taken = reader.take(count, time.monotonic(), paused)
    return {name: sum(map(len, events)) for name, events in taken.items()}


def test_a_position_is_the_offset_of_a_message() -> None:
    reader = open_reader(Source(a=9))
    # Three messages are read, and one is taken.
    assert take(reader, 3) == {"a": 2}
    assert reader.positions == {"a": 10}
    assert take(reader, 99) == {"a": 16}
    assert reader.positions == {"a": 90}


def test_a_partition_is_idle_if_its_reads_find_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source(a=1, b=1)
    reader, now = open_reader(source), 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert take(reader, 9) == {"a": 2, "b": 2}
    now = 200.0  # A long step: nothing was read.
    assert take(reader, 9) == {"a": 0, "b": 0}
    assert reader.idle(10) == []
    now, source.counts["b"] = 209.0, 2
    assert take(reader, 9) == {"a": 0, "b": 2}
    assert (reader.idle(10), reader.idle(9)) == ([], ["a"])
    take(reader, 9, paused=["a"])
    assert reader.idle(9) == []
    now = 300.0
    take(reader, 9)
    now, source.counts["a"] = 320.0, 2
    assert take(reader, 9) == {"a": 2, "b": 0}
    assert reader.idle(9) == ["b"]
