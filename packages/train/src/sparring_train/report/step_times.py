"""`StepTimes`: where the time of a run goes, from the spans of its steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sparring.adapter import Trace
from sparring_train.report.run_data import SECONDS, TOTAL, Points

__all__ = ["PARTS", "STEP_PARTS", "StepTimes", "final_seconds", "short_name"]

PARTS: Mapping[str, str] = {
    "data": "waiting for the next batch",
    "lookup": "lookup of rows",
    "dense": "dense model",
    "graph": "lookup and dense model, which TensorFlow runs as one graph",
    "exchange": "exchange: waiting for messages of other ranks, and for the rows that they request",
    "update": "update of rows",
    "save": "save: until training continues",
    "report": "counting ids for this report",
    "other": "other",
    "evaluation": "evaluation",
}
"""Part of the time → its description."""

STEP_PARTS = tuple(part for part in PARTS if part != "evaluation")
"""Parts of the time of a step, in the order in which they are drawn."""

_PART_OF_SPAN = {
    "average gradients": "exchange",
    "apply": "update",
    "backward": "dense",
    "count ids": "report",
    "dense optimizer": "dense",
    "evaluate": "evaluation",
    "forward": "dense",
    "forward and backward": "graph",
    "look up": "lookup",
    "read batch": "data",
    "save": "save",
    "wait": "exchange",
    "wait for prefetch": "lookup",
}
"""Name of a span → part. Other spans have the part of the span that contains them."""

_CONTAIN_ALL = frozenset({"data", "evaluation", "report", "save"})
"""Parts to which all inner spans belong, for example the lookups of an evaluation."""


class StepTimes(Trace):
    """Adds up the time of the thread that creates it, by part.

    The time of inner spans is subtracted from outer ones. A span takes less than 5 µs, and a
    step has about ten spans.

    Args:
        rank: the rank.
        keeps_spans: whether the spans are also kept, so that the trace can be written.
    """

    def __init__(self, rank: int = 0, *, keeps_spans: bool = False) -> None:
        super().__init__(rank)
        self._keeps_spans = keeps_spans
        self._thread = threading.get_ident()
        self._nanoseconds = dict.fromkeys(PARTS, 0)
        # Part of each open span, and the time of the spans in it.
        self._open: list[list[Any]] = []
        self._begin_ns = self._outer_begin = time.perf_counter_ns()
        # Time of all spans that were not within another one.
        self._outer_ns = 0

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each part since this object was created, and of all of them as `TOTAL`.

        Time outside of all spans belongs to the part ``other``.
        """
        now = time.perf_counter_ns()
        total = now - self._begin_ns
        found = dict(self._nanoseconds)
        # The time of an open span is counted when it ends, so that no part ever decreases.
        end = self._outer_begin if self._open else now
        found["other"] += max(0, end - self._begin_ns - self._outer_ns)
        return {part: each / 1e9 for part, each in found.items()} | {TOTAL: total / 1e9}

    @contextmanager
    def span(self, name: str, **details: Any) -> Iterator[None]:
        """See `Trace.span`."""
        begin = time.perf_counter_ns()
        is_own = threading.get_ident() == self._thread
        if is_own:
            if not self._open:
                self._outer_begin = begin
            self._open.append([self._part_of(name), 0])
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            if is_own:
                part, inner = self._open.pop()
                self._count(part, end - begin, inner)
            if self._keeps_spans:
                super().add(name, begin, end, details)

    def add(
        self,
        name: str,
        begin_ns: int,
        end_ns: int,
        details: dict[str, Any] | None = None,
        *,
        thread_id: int | None = None,
    ) -> None:
        """See `Trace.add`."""
        if name in _PART_OF_SPAN and threading.get_ident() == self._thread:
            self._count(self._part_of(name), end_ns - begin_ns, 0)
        if self._keeps_spans:
            super().add(name, begin_ns, end_ns, details, thread_id=thread_id)

    def add_to_line(
        self,
        line: str,
        name: str,
        begin_ns: int,
        end_ns: int,
        details: dict[str, Any] | None = None,
    ) -> None:
        """See `Trace.add_to_line`."""
        if self._keeps_spans:
            super().add_to_line(line, name, begin_ns, end_ns, details)

    def add_transfer(
        self, name: str, begin_ns: int, end_ns: int, details: dict[str, Any] | None = None
    ) -> None:
        """See `Trace.add_transfer`."""
        if self._keeps_spans:
            super().add_transfer(name, begin_ns, end_ns, details)

    def _part_of(self, name: str) -> str:
        outer: str = self._open[-1][0] if self._open else "other"
        return outer if outer in _CONTAIN_ALL else _PART_OF_SPAN.get(name, outer)

    def _count(self, part: str, duration: int, inner: int) -> None:
        self._nanoseconds[part] += duration - inner
        if self._open:
            self._open[-1][1] += duration
        else:
            self._outer_ns += duration


def short_name(part: str) -> str:
    """Returns the beginning of the description of a part, for legends and lines."""
    return PARTS[part].partition(":")[0].partition(",")[0]


def final_seconds(series: Mapping[str, Points]) -> dict[str, float]:
    """Returns the seconds of each part in a run, in the order of `PARTS`; empty if they were not
    measured."""
    ends = {part: series[SECONDS + part].values[-1] for part in PARTS if SECONDS + part in series}
    return {part: seconds for part, seconds in ends.items() if seconds > 0}
