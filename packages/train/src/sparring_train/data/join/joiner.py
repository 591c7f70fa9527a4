"""Joins impressions with actions, in the order of event time.

    add  ->  events by time  --watermark-->  records by key  --end of the window-->  examples

Events wait until the watermark reaches their time. Then they are processed in the order of time, kind,
key and content. So the examples do not depend on the order in which events arrive before the watermark.
A record is an open impression, an impression whose window has ended, or an action without an impression.
"""

from __future__ import annotations

import math
import struct
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from sparring_train.data.join.step_store import Change, StepStore

__all__ = ["Counts", "Event", "Example", "Joiner", "Window", "partition_of"]

_TIME = attrgetter("time")
_OPEN, _ENDED, _ACTION = range(3)
_HEADER = struct.Struct("<BIqdd")
"""Kind, number of the partition, step in which the event was read, event time, label or NaN."""


@dataclass(frozen=True, slots=True)
class Window:
    """Times of a join, in seconds of event time."""

    seconds: float
    """Time after an impression in which an action is its label."""
    early_seconds: float
    """Maximum time by which an action may precede its impression, because clocks differ."""
    late_seconds: float | None
    """Time after the window in which an action corrects the label; None: it does not."""


class Event(NamedTuple):
    """An impression or an action. Events are processed in the order of their fields."""

    time: float
    is_action: bool
    key: bytes
    row: bytes
    """The encoded example; empty for an action."""
    label: float
    """Label of the action; 0 for an impression."""
    partition: int
    """Number of the partition."""
    step: int
    """Step in which it was read."""


class Example(NamedTuple):
    """An impression with its label. Examples are in the order of their fields."""

    time: float
    """End of the window; of a correction, the time of the action."""
    key: bytes
    is_correction: bool
    label: float
    impression_time: float
    row: bytes
    step: int
    """Step in which the impression was read."""


@dataclass(slots=True)
class Counts:
    """Numbers of impressions and actions since the join began."""

    open: int = 0
    """Impressions whose window has not ended."""
    joined: int = 0
    """Examples with the label of an action."""
    without_action: int = 0
    """Examples without an action, whose label is 0."""
    repeated: int = 0
    """Impressions that were left out, because an impression of the same key was open."""
    corrected: int = 0
    """Actions after the window of their impression that became a correction."""
    unchanged: int = 0
    """Actions after the window that did not change the label."""
    dropped: int = 0
    """Actions that were dropped, because there was no impression of their key."""


@dataclass(slots=True)
class _Record:
    kind: int
    partition: int
    step: int
    time: float
    label: float
    """NaN: no action."""
    row: bytes
    end: float
    """Time at which it changes its kind or is removed."""

    def as_value(self) -> bytes:
        head = _HEADER.pack(self.kind, self.partition, self.step, self.time, self.label)
        return head + self.row


def _record_of(end: float, value: bytes) -> _Record:
    kind, partition, step, time, label = _HEADER.unpack_from(value)
    return _Record(kind, partition, step, time, label, value[_HEADER.size :], end)


def partition_of(value: bytes) -> int:
    """Returns the number of the partition of a stored record."""
    return int(_HEADER.unpack_from(value)[1])


class _Batch:
    """Records and examples of one advance."""

    def __init__(self, window: Window, counts: Counts) -> None:
        self._window, self._counts = window, counts
        self.before: dict[bytes, float | None] = {}
        """Key → time of the stored record, or None."""
        self.records: dict[bytes, _Record | None] = {}
        self.examples: list[Example] = []

    def load(self, key: bytes, found: tuple[float, bytes] | None) -> None:
        self.before[key] = None if found is None else found[0]
        self.records[key] = None if found is None else _record_of(*found)

    def process(self, event: Event) -> None:
        self.settle(event.key, event.time, is_included=False)
        if event.is_action:
            self._add_action(event)
        else:
            self._add_impression(event)

    def settle(self, key: bytes, time: float, *, is_included: bool) -> None:
        """Ends the windows of a record that end before a time, or at it if `is_included`."""
        record = self.records[key]
        while record is not None and (record.end < time or (is_included and record.end == time)):
            record = self._end(key, record)
            self.records[key] = record

    def _end(self, key: bytes, record: _Record) -> _Record | None:
        if record.kind == _ACTION:
            self._counts.dropped += 1
            return None
        if record.kind == _ENDED:
            return None
        has_action = not math.isnan(record.label)
        self._counts.open -= 1
        self._counts.joined += has_action
        self._counts.without_action += not has_action
        label = record.label if has_action else 0.0
        self._emit(record.end, key, record, label, is_correction=False)
        late = self._window.late_seconds
        if late is None:
            return None
        record.kind, record.end = _ENDED, record.end + late
        return record

    def _emit(
        self, time: float, key: bytes, record: _Record, label: float, *, is_correction: bool
    ) -> None:
        self.examples.append(
            Example(time, key, is_correction, label, record.time, record.row, record.step)
        )

    def _add_impression(self, event: Event) -> None:
        record = self.records[event.key]
        window = self._window
        if record is not None and record.kind != _ACTION:
            if record.kind == _OPEN or event.time <= record.time + window.seconds:
                self._counts.repeated += 1
                return
            record = None
        made = _Record(
            _OPEN,
            event.partition,
            event.step,
            event.time,
            math.nan,
            event.row,
            event.time + window.seconds,
        )
        self.records[event.key] = made
        self._counts.open += 1
        if record is not None:
            action = Event(record.time, True, event.key, b"", record.label, record.partition, 0)
            self._add_action(action)

    def _add_action(self, event: Event) -> None:
        window, record = self._window, self.records[event.key]
        if record is None or record.kind == _ACTION:
            label = event.label if record is None else max(event.label, record.label)
            time = event.time if record is None else max(event.time, record.time)
            self.records[event.key] = _Record(
                _ACTION, event.partition, event.step, time, label, b"", time + window.early_seconds
            )
            return
        if event.time < record.time - window.early_seconds:
            self._counts.dropped += 1
            return
        if record.kind == _OPEN and event.time <= record.time + window.seconds:
            record.label = _larger(record.label, event.label)
            return
        if record.kind == _OPEN:
            # The impression arrived after the watermark, and after this action.
            self.settle(event.key, record.end, is_included=True)
            if self.records[event.key] is None:
                self._counts.dropped += 1
                return
        label = _larger(record.label, event.label)
        is_changed = label != (0.0 if math.isnan(record.label) else record.label)
        record.label = label
        self._counts.corrected += is_changed
        self._counts.unchanged += not is_changed
        if is_changed:
            time = max(event.time, record.time + window.seconds)
            self._emit(time, event.key, record, label, is_correction=True)

    def changes(self) -> dict[bytes, Change]:
        """Returns the changes of the store."""
        found: dict[bytes, Change] = {}
        for key, record in self.records.items():
            before = self.before[key]
            if record is not None:
                found[key] = before, (record.end, record.as_value())
            elif before is not None:
                found[key] = before, None
        return found


def _larger(label: float, other: float) -> float:
    return other if math.isnan(label) else max(label, other)


@dataclass(slots=True)
class Joiner:
    """The join of one rank. It reads and writes nothing but its store.

    Args:
        store: its records.
        window: times of the join.
    """

    store: StepStore
    window: Window
    watermark: float = -math.inf
    """All events up to this time have been processed."""
    is_behind: bool = False
    """Whether the last advance stopped before the watermark."""
    waiting: list[Event] = field(default_factory=list)
    """Events after the watermark, sorted. The list is replaced by each advance, and never changed."""
    counts: Counts = field(default_factory=Counts)

    def advance(
        self, step: int, events: Sequence[Event], watermark: float, max_examples: int
    ) -> list[Example]:
        """Adds events, processes events up to the watermark, and returns the examples in order.

        It stops earlier if more than `max_examples` windows end; impressions whose windows end at the
        same time are not divided.

        Args:
            step: number of the step to which the examples belong.
            events: new events, in any order.
            watermark: time up to which all events should have arrived.
            max_examples: maximum number of examples, except corrections.
        """
        waiting = sorted([*self.waiting, *events])
        target = max(watermark, self.watermark)
        due = waiting[: bisect_right(waiting, target, key=_TIME)]
        # All records that end before the watermark have been removed.
        timers = self.store.scan(self.watermark, target, max_examples + 1)
        ends = [each.time + self.window.seconds for each in due if not each.is_action]
        ends = sorted([each for each in ends if each <= target] + [each[0] for each in timers])
        self.is_behind = len(ends) > max_examples and ends[max_examples - 1] < target
        if len(ends) > max_examples:
            target = max(ends[max_examples - 1], self.watermark)
            due = due[: bisect_right(due, target, key=_TIME)]
            timers = self.store.scan(self.watermark, target, sys.maxsize)
        counts = replace(self.counts)
        batch = _Batch(self.window, counts)
        for time, key, value in timers:
            batch.load(key, (time, value))
        missing = dict.fromkeys(each.key for each in due if each.key not in batch.before)
        for key, found in self.store.get(missing).items():
            batch.load(key, found)
        for event in due:
            batch.process(event)
        for key in batch.before:
            batch.settle(key, target, is_included=True)
        self.store.change(step, batch.changes())
        self.counts, self.watermark, self.waiting = counts, target, waiting[len(due) :]
        return sorted(batch.examples)
