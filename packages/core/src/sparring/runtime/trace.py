"""Traces of a rank's work over time, for Perfetto and chrome://tracing.

    container.exchange.trace = trace = Trace(rank)
    …
    trace.write("out.json")

Each thread has one line of spans. Messages overlap, so each is drawn on a separate line. Without a
trace, a span costs one comparison with None.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["AllGather", "Span", "Trace"]

MAX_SPANS = 1_000_000
"""Maximum number of spans in a trace, about 200 MB of JSON. Later spans are only counted."""


@dataclass(frozen=True, slots=True)
class Span:
    """A named interval."""

    name: str
    begin_ns: int
    """Start, by ``time.perf_counter_ns``."""
    end_ns: int
    thread_id: int
    """Thread of the span; 0 for a message, and for a span with `line`."""
    details: dict[str, Any] = field(default_factory=dict)
    line: str = ""
    """Name of the line if it is not a thread, for example a stream."""


class AllGather(Protocol):
    """The part of a collective that `Trace.write_together` uses."""

    rank: int

    def all_gather(self, buffer: Any) -> list[npt.NDArray[Any]]:
        """Returns the arrays of all ranks, in rank order."""


class Trace:
    """Collects spans of one rank. Every method may be called from any thread.

    Args:
        rank: the rank; each rank has a separate group of lines.
    """

    def __init__(self, rank: int = 0) -> None:
        self.rank = rank
        self.spans: list[Span] = []
        self.num_dropped = 0

    def add(
        self,
        name: str,
        begin_ns: int,
        end_ns: int,
        details: dict[str, Any] | None = None,
        *,
        thread_id: int | None = None,
    ) -> None:
        """Adds a span of a thread.

        Args:
            name: name of the span.
            begin_ns: begin in nanoseconds, by `time.perf_counter_ns`.
            end_ns: end in nanoseconds.
            details: values to show with the span, which can be converted to JSON.
            thread_id: the thread, by `threading.get_ident`; None: the calling thread.
        """
        found = threading.get_ident() if thread_id is None else thread_id
        self._keep(Span(name, begin_ns, end_ns, found, details or {}))

    def add_to_line(
        self,
        line: str,
        name: str,
        begin_ns: int,
        end_ns: int,
        details: dict[str, Any] | None = None,
    ) -> None:
        """Adds a span to a line that is not a thread.

        Args:
            line: name of the line, for example of a stream of a device.
            name: name of the span.
            begin_ns: begin in nanoseconds, by `time.perf_counter_ns`.
            end_ns: end in nanoseconds.
            details: values to show with the span, which can be converted to JSON.
        """
        self._keep(Span(name, begin_ns, end_ns, 0, details or {}, line))

    def add_transfer(
        self, name: str, begin_ns: int, end_ns: int, details: dict[str, Any] | None = None
    ) -> None:
        """Adds a message, from its start until it was received or sent.

        Args:
            name: name of the message.
            begin_ns: begin in nanoseconds, by `time.perf_counter_ns`.
            end_ns: end in nanoseconds.
            details: values to show with the message, which can be converted to JSON.
        """
        self._keep(Span(name, begin_ns, end_ns, 0, details or {}))

    @contextmanager
    def span(self, name: str, **details: Any) -> Iterator[None]:
        """Adds a span for the duration of the ``with`` block.

        Args:
            name: name of the span.
            **details: values to show with the span, which can be converted to JSON.
        """
        begin = time.perf_counter_ns()
        try:
            yield
        finally:
            self.add(name, begin, time.perf_counter_ns(), details)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the trace in Chrome's trace event format, which https://ui.perfetto.dev reads.

        Args:
            path: file to write; an existing one is replaced.

        Raises:
            OSError: the file cannot be written.
        """
        _write(path, list(self._events()))

    def write_together(self, path: str | os.PathLike[str], collective: AllGather) -> None:
        """Writes the traces of all ranks to one file. All ranks call it, and rank 0 writes.

        Each machine uses its own clock, so times on different machines are not aligned.

        Args:
            path: file that rank 0 writes; an existing one is replaced.
            collective: connection to the other ranks.

        Raises:
            OSError: the file cannot be written.
            PeerFailure: a rank failed or does not answer.
        """
        mine = np.frombuffer(json.dumps(list(self._events())).encode(), np.uint8)
        parts = collective.all_gather(mine)
        if collective.rank == 0:
            _write(path, [event for part in parts for event in json.loads(part.tobytes())])

    def _keep(self, span: Span) -> None:
        if len(self.spans) < MAX_SPANS:
            self.spans.append(span)
        else:
            self.num_dropped += 1

    def _events(self) -> Iterator[dict[str, Any]]:
        spans = list(self.spans)
        yield _metadata_event("process_name", self.rank, 0, f"rank {self.rank}")
        lines: dict[int | str, int] = {}
        for span in spans:
            line = span.line or span.thread_id
            if line and line not in lines:
                lines[line] = len(lines) + 1
                name = span.line or _thread_name(span.thread_id)
                yield _metadata_event("thread_name", self.rank, lines[line], name)
        numbers = itertools.count(1)
        for span in spans:
            common = {"name": span.name, "pid": self.rank, "args": span.details}
            if span.line or span.thread_id:
                yield {
                    **common,
                    "ph": "X",
                    "cat": "stream" if span.line else "thread",
                    "tid": lines[span.line or span.thread_id],
                    "ts": span.begin_ns / 1000,
                    "dur": (span.end_ns - span.begin_ns) / 1000,
                }
                continue
            number = next(numbers)
            for phase, at in (("b", span.begin_ns), ("e", span.end_ns)):
                yield {
                    **common,
                    "ph": phase,
                    "cat": "message",
                    "id": f"{self.rank}.{number}",
                    "tid": 0,
                    "ts": at / 1000,
                }


def _write(path: str | os.PathLike[str], events: list[dict[str, Any]]) -> None:
    document = {"displayTimeUnit": "ms", "traceEvents": events}
    Path(path).write_text(json.dumps(document), encoding="utf-8")


def _metadata_event(what: str, rank: int, line: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": line, "args": {"name": name}}


def _thread_name(thread_id: int) -> str:
    for thread in threading.enumerate():
        if thread.ident == thread_id:
            return thread.name
    return f"thread {thread_id}"
