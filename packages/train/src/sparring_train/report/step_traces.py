"""`StepTraces`: one trace of OpenTelemetry per step, with its stages as spans."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparring_train.report.step_times import StepTimes

__all__ = ["StepTraces"]


class StepTraces(StepTimes):
    """Sends the spans of the training thread to OpenTelemetry after each step.

    A trace begins at the end of the previous step. The provider's sampler chooses steps.

    Args:
        rank: the rank.
        tracer: creates the spans.
        keeps_spans: see `StepTimes`.
    """

    def __init__(self, rank: int, tracer: Any, *, keeps_spans: bool = False) -> None:
        super().__init__(rank, keeps_spans=keeps_spans)
        self._tracer = tracer
        self._driver = threading.get_ident()
        self._stages: list[tuple[int, int, str]] = []
        self._due: int | None = None
        self._step_begin = time.perf_counter_ns()
        # Spans have wall time; `time.perf_counter_ns` measures durations.
        self._epoch = time.time_ns() - time.perf_counter_ns()

    @contextmanager
    def span(self, name: str, **details: Any) -> Iterator[None]:
        """See `Trace.span`."""
        begin = time.perf_counter_ns()
        try:
            with super().span(name, **details):
                yield
        finally:
            self._note(name, begin, time.perf_counter_ns())
            # Spans of other threads also end here.
            is_driver = threading.get_ident() == self._driver
            if is_driver and self._due is not None and not self._open:
                self._send_step(self._due)

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
        super().add(name, begin_ns, end_ns, details, thread_id=thread_id)
        if thread_id is None:
            self._note(name, begin_ns, end_ns)

    def end_step(self, step: int) -> None:
        """Sends the spans since the previous step, once the spans that are open have ended.

        Args:
            step: number of completed steps.
        """
        self._due = step
        if not self._open:
            self._send_step(step)

    def _send_step(self, step: int) -> None:
        self._due = None
        begin, end = self._step_begin, time.perf_counter_ns()
        stages, self._stages, self._step_begin = self._stages, [], end
        root = self._tracer.start_span(
            "step",
            start_time=self._epoch + begin,
            attributes={"sparring.step": step, "sparring.rank": self.rank},
        )
        if root.is_recording():
            self._send(root, begin, end, stages)
        root.end(self._epoch + end)

    def _send(self, root: Any, begin: int, end: int, stages: list[tuple[int, int, str]]) -> None:
        from opentelemetry.trace import set_span_in_context

        # Outer spans end later, but begin earlier; each is the parent of those within it.
        open_spans = [(end, root)]
        for first, last, name in sorted(stages, key=lambda each: (each[0], -each[1])):
            while len(open_spans) > 1 and open_spans[-1][0] < last:
                open_spans.pop()
            span = self._tracer.start_span(
                name,
                context=set_span_in_context(open_spans[-1][1]),
                start_time=self._epoch + max(first, begin),
            )
            span.end(self._epoch + last)
            open_spans.append((last, span))

    def _note(self, name: str, begin: int, end: int) -> None:
        if threading.get_ident() == self._driver:
            self._stages.append((begin, end, name))
