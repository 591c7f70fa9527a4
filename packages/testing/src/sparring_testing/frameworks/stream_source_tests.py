"""`StreamSourceTests`: tests every promise of a stream source of `sparring train`.

Use:
    class TestMySource(StreamSourceTests):
        @pytest.fixture
        def stream(self):
            return MyWritableStream()

It uses `sparring_train.StreamSource` without importing that package.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

import pytest

from sparring.errors import DataError
from sparring_testing.guard import find_violations

__all__ = ["StreamSourceTests", "WritableStream"]

_LONG_SECONDS = 20.0
"""Deadline of reads that should return earlier."""


class WritableStream(Protocol):
    """A new stream to which the kit adds events."""

    partitions: Sequence[str]
    """Names of the partitions, as the source returns them."""

    def open(self) -> Any:
        """Opens the stream. The kit closes the source."""

    def append(self, partition: str, numbers: Sequence[int]) -> None:
        """Adds one event per number: one per message, or a row each if messages are record batches."""

    def numbers(self, message: Any) -> list[int]:
        """Returns the numbers of a message's events."""

    def remove(self, partition: str, count: int) -> bool:
        """Removes the `count` oldest events; returns False if the stream cannot do that."""


class StreamSourceTests:
    """Tests a source on a stream that is empty at first."""

    @pytest.fixture
    def stream(self) -> WritableStream:
        """Required: a new `WritableStream`."""
        raise NotImplementedError(
            f"{type(self).__name__} must define the fixture stream: a new, empty WritableStream"
        )

    def test_no_standard_test_is_removed_or_overridden_without_a_reason(self) -> None:
        violations = find_violations(type(self), StreamSourceTests)
        assert not violations, "\n".join(violations)

    def test_an_empty_partition_ends_at_its_earliest_offset(self, stream: WritableStream) -> None:
        source = stream.open()
        assert sorted(source.partitions()) == sorted(stream.partitions)
        assert set(source.earliest_offsets()) == set(stream.partitions)
        assert source.earliest_offsets() == source.end_offsets()
        source.close()

    def test_each_event_is_read_once_in_order(self, stream: WritableStream) -> None:
        for number, name in enumerate(stream.partitions):
            stream.append(name, range(100 * number, 100 * number + 7))
            stream.append(name, range(100 * number + 7, 100 * number + 20))
        source = stream.open()
        for number, name in enumerate(stream.partitions):
            found, offsets = _read_all(stream, source, name, max_events=3)
            assert found == list(range(100 * number, 100 * number + 20))
            assert offsets == sorted(set(offsets)), "offsets must increase"
        source.close()

    def test_a_read_continues_at_every_offset(self, stream: WritableStream) -> None:
        name = stream.partitions[0]
        stream.append(name, range(30))
        source = stream.open()
        places = [source.earliest_offsets()[name]]
        while places[-1] < source.end_offsets()[name]:
            places.append(source.read(name, places[-1], 1, _long()).next_offset)
        source.close()
        for done in (0, 1, 14, 29, 30):
            # A resumed run opens the source again.
            again = stream.open()
            assert _read_all(stream, again, name, 8, begin=places[done])[0] == [*range(done, 30)]
            again.close()

    def test_times_of_messages_do_not_change(self, stream: WritableStream) -> None:
        name = stream.partitions[0]
        before = time.time()
        stream.append(name, range(3))
        source = stream.open()
        begin = source.earliest_offsets()[name]
        first, second = (source.read(name, begin, 1, _long()).messages[0] for _ in range(2))
        assert first.timestamp == second.timestamp
        if first.timestamp is not None:
            assert before - 1 < first.timestamp < time.time() + 1
        source.close()

    def test_a_read_has_at_most_max_events(self, stream: WritableStream) -> None:
        name = stream.partitions[0]
        stream.append(name, range(9))
        source = stream.open()
        begin = source.earliest_offsets()[name]
        read = source.read(name, begin, 4, _long())
        numbers = [each for message in read.messages for each in stream.numbers(message)]
        assert 1 <= len(numbers) <= 4
        assert begin < read.next_offset <= source.end_offsets()[name]
        source.close()

    def test_a_read_without_events_returns_at_the_deadline(self, stream: WritableStream) -> None:
        name = stream.partitions[0]
        stream.append(name, range(3))
        source = stream.open()
        end = source.end_offsets()[name]
        began = time.monotonic()
        read = source.read(name, end, 5, began + 0.1)
        assert not read.messages
        assert read.next_offset == end
        assert 0.05 < time.monotonic() - began < _LONG_SECONDS / 2
        source.close()

    def test_a_read_waits_for_the_first_event(self, stream: WritableStream) -> None:
        name = stream.partitions[0]
        source = stream.open()
        begin = source.earliest_offsets()[name]
        later = threading.Timer(0.2, stream.append, (name, [5]))
        later.start()
        began = time.monotonic()
        read = source.read(name, begin, 5, began + _LONG_SECONDS)
        later.join()
        assert time.monotonic() - began < _LONG_SECONDS / 2
        assert [stream.numbers(each) for each in read.messages] == [[5]]
        assert source.end_offsets()[name] == read.next_offset
        source.close()

    def test_removed_events_are_reported(self, stream: WritableStream) -> None:
        name = stream.partitions[0]
        stream.append(name, range(10))
        stream.append(name, range(10, 20))
        source = stream.open()
        begin = source.earliest_offsets()[name]
        source.close()
        if not stream.remove(name, 10):
            pytest.skip("the stream cannot remove events")
        source = stream.open()
        earliest = source.earliest_offsets()[name]
        assert earliest > begin
        with pytest.raises(DataError, match="missing") as error:
            source.read(name, begin, 5, _long())
        assert error.value.details["offset"] == begin
        assert error.value.details["earliest"] == earliest
        assert _read_all(stream, source, name, 8, begin=earliest)[0] == [*range(10, 20)]
        source.close()


def _long() -> float:
    """Returns a deadline of a read that should return earlier."""
    return time.monotonic() + _LONG_SECONDS


def _read_all(
    stream: WritableStream, source: Any, name: str, max_events: int, begin: int | None = None
) -> tuple[list[int], list[int]]:
    """Returns the numbers of all events from an offset, and the offsets of their messages."""
    at = source.earliest_offsets()[name] if begin is None else begin
    numbers: list[int] = []
    offsets: list[int] = []
    while at < source.end_offsets()[name]:
        read = source.read(name, at, max_events, _long())
        assert read.next_offset > at
        at = read.next_offset
        offsets += [message.offset for message in read.messages]
        numbers += [each for message in read.messages for each in stream.numbers(message)]
    return numbers, offsets
