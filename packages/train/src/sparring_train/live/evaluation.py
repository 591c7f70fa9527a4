"""`LiveEvaluation`: measures each step of a stream by predictions that were made before the step."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import State, hash_strings
from sparring_train.columns import ColumnBatch, Cut
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.stream import StreamData
from sparring_train.live.row_ages import RowAges
from sparring_train.live.windows import Dimension, WindowResult, Windows
from sparring_train.loop.model import StepResult
from sparring_train.run.ranks import Ranks

__all__ = ["WINDOWS", "LiveEvaluation", "is_evaluated"]

WINDOWS = "windows"
"""Name of the state that contains the open window."""

_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, math.inf)
"""Upper bounds of buckets for seconds of lag."""
_LINE_SECONDS = 10.0
"""Minimum time between two lines about windows, of which old events have many."""

OnWindow = Callable[[WindowResult], None]


def is_evaluated(config: RunConfig) -> bool:
    """Returns whether the outputs of training steps are measured, if the model has one per event."""
    return (
        isinstance(config.data, StreamData)
        and config.metrics.window_seconds is not None
        and config.model.label is not None
        and config.model.ranking(config.data.columns) is None
    )


class LiveEvaluation:
    """Measures the steps of a stream. All ranks create one and make the same calls.

    Args:
        config: configuration of the run.
        ranks: ranks of the run.
        tell: shows one line to the user.
        ages: finds the ages of rows, if windows are also measured by age.

    Attributes:
        on_window: called with each closed window, on all ranks with equal values.
    """

    def __init__(
        self,
        config: RunConfig,
        ranks: Ranks,
        tell: Callable[[str], None],
        ages: RowAges | None = None,
    ) -> None:
        self._ranks, self._tell, self._ages = ranks, tell, ages
        # Ages of the events of batches that were read, but whose steps are not yet made.
        self._coming: deque[npt.NDArray[np.int64]] = deque()
        self._windows: Windows | None = None
        self._slices: list[_Slices] = []
        self.on_window: list[OnWindow] = []
        data, chosen, label = config.data, config.metrics, config.model.label
        self._kind = config.model.kind
        self._is_stream = isinstance(data, StreamData)
        join = data.join if isinstance(data, StreamData) else None
        self._join_seconds = 0.0 if join is None else join.window_seconds
        # A replay reads old events.
        self._has_lags = isinstance(data, StreamData) and data.cuts_from is None
        if isinstance(data, StreamData) and is_evaluated(config):
            assert chosen.window_seconds is not None
            assert label is not None
            self._slices = [
                _Slices(name, values, is_text=data.id_types[name] == "string")
                for name, values in chosen.slices.items()
            ]
            dimensions = [each.dimension for each in self._slices]
            if ages is not None:
                dimensions.append(ages.dimension)
            self._windows = Windows(chosen.window_seconds, label, ranks, dimensions)
        self._lags = {
            name: _Histogram()
            for name in ("event_lag_seconds", "ingest_lag_seconds", "step_lag_seconds")
        }
        self._event_time: float | None = None
        self._num_windows = 0
        self._last: WindowResult | None = None
        self._next_line = 0.0

    def before_step(self, batch: ColumnBatch) -> None:
        """Finds the ages of the rows of a batch, before its step is made. All ranks call it."""
        if self._ages is not None:
            self._coming.append(self._ages.codes(batch))

    def after_step(self, trained: StepResult, step: int) -> None:
        """Measures a step."""
        batch: ColumnBatch = trained.batch
        ages: list[npt.NDArray[np.int64]] = []
        if self._ages is not None:
            self._ages.after_step()
            ages = [self._coming.popleft()]
        if batch.cut is None:
            return
        times = np.empty(0) if batch.event_times is None else batch.event_times
        # A correcting example has no time, because its event was measured before.
        is_first = ~np.isnan(times)
        if self._has_lags:
            self._add_lags(times[is_first], batch.cut)
        newest = batch.cut.event_time
        if newest is None:
            return
        self._event_time = max(newest, self._event_time or newest)
        if self._windows is None:
            return
        if trained.outputs is None:
            self._windows = None
            self._tell(
                f"windows of event time are not measured, because model.kind: {self._kind} defines its "
                "own loss; set metrics.window_seconds: null, or choose another model"
            )
            return
        if batch.labels is not None and is_first.any():
            found = [each.codes(batch) for each in self._slices]
            codes = [each[is_first] for each in (*found, *ages)]
            measured = trained.outputs[is_first], batch.labels[is_first], times[is_first]
            self._windows.add(*measured, codes)
        if batch.cut.reads:
            # Joined examples are older than the newest event that was read.
            newest = batch.cut.reads[-1].watermark - self._join_seconds
        if not math.isfinite(newest):
            return
        for result in self._windows.close_until(newest, step):
            self._num_windows += 1
            self._report(result)
            for each in self.on_window:
                each(result)

    def _add_lags(self, times: npt.NDArray[np.float64], cut: Cut) -> None:
        """Adds the lags of this rank's events."""
        if not len(times):
            return
        now = time.time()
        read_times = [each.read_time for each in cut.ranges if each.read_time is not None]
        if not read_times:
            return
        # Partitions are read at the same time, up to differences between the clocks of ranks.
        read = min(read_times)
        self._lags["event_lag_seconds"].add(now - times)
        self._lags["ingest_lag_seconds"].add(read - times)
        self._lags["step_lag_seconds"].add(np.array([now - read]))

    def _report(self, result: WindowResult) -> None:
        self._last = result
        now = time.monotonic()
        if now < self._next_line:
            return
        self._next_line = now + _LINE_SECONDS
        end = datetime.fromtimestamp(result.end, timezone.utc)
        shown = "  ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
        self._tell(
            f"step {result.step:,}  {result.num_events:,} events before {end:%Y-%m-%d %H:%M:%S} UTC  "
            f"{shown}"
        )

    def end(self, step: int) -> WindowResult | None:
        """Shows the open window, which a resumed run continues, and returns it if it has events."""
        last = None if self._windows is None else self._windows.unfinished(step)
        if last is not None:
            self._next_line = 0.0
            self._report(last)
        return last

    def states(self) -> dict[str, State]:
        """Returns the open window for a snapshot. All ranks call it."""
        return {} if self._windows is None else {WINDOWS: self._windows.state()}

    def restore(self, states: Mapping[str, State], url: str) -> None:
        """Continues the open window of the snapshot at `url`, if it has one."""
        if self._windows is None or WINDOWS not in states:
            return
        if not self._windows.restore(states[WINDOWS]):
            self._tell(
                f"{url} was saved with other metrics.window_seconds, metrics.slices or "
                "metrics.row_age; its open window is not continued"
            )

    def metrics(self) -> dict[str, Any]:
        """Returns the section ``stream`` of the metrics of this rank, as JSON values."""
        if not self._is_stream:
            return {}
        found: dict[str, Any] = {"event_time_seconds": self._event_time}
        found |= {name: each.as_dict() for name, each in self._lags.items()}
        found["windows"] = self._num_windows
        if (last := self._last) is not None:
            slices = [
                {
                    "dimension": each.dimension,
                    "value": each.value,
                    "num_events": each.num_events,
                    **_finite(each.metrics),
                }
                for each in last.slices
            ]
            found["window"] = {
                "begin": last.begin,
                "end": last.end,
                "num_events": last.num_events,
                **_finite(last.metrics),
                "slices": slices,
            }
        return {"stream": found}


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


class _Slices:
    """Values of a column that define slices.

    Args:
        name: name of the column.
        values: the values, as text.
        is_text: whether ids are hashes of strings.
    """

    def __init__(self, name: str, values: Sequence[str], *, is_text: bool) -> None:
        self.dimension = Dimension(name, tuple(values))
        ids = hash_strings(list(values)) if is_text else np.array(list(map(int, values)), np.int64)
        order = np.argsort(ids)
        self._ids, self._places = ids[order], order

    def codes(self, batch: ColumnBatch) -> npt.NDArray[np.int64]:
        """Returns the place of each event's value, ``(b,)``; -1 if it is another one or missing."""
        column = batch.ids[self.dimension.name]
        at = np.minimum(np.searchsorted(self._ids, column.ids), len(self._ids) - 1)
        found = np.where(self._ids[at] == column.ids, self._places[at], -1)
        if column.lengths is None:
            return found
        codes = np.full(len(column), -1, np.int64)
        codes[column.lengths > 0] = found
        return codes


class _Histogram:
    """Numbers of seconds in buckets."""

    def __init__(self) -> None:
        self._counts = np.zeros(len(_BOUNDS), np.int64)
        self._sum = 0.0

    def add(self, seconds: npt.NDArray[np.float64]) -> None:
        self._sum += float(seconds.sum())
        first = bisect_left(_BOUNDS, float(seconds.min()))
        if seconds.max() <= _BOUNDS[first]:
            # Most steps have events of about the same age.
            self._counts[first] += len(seconds)
            return
        self._counts += np.bincount(np.searchsorted(_BOUNDS, seconds), minlength=len(_BOUNDS))

    def as_dict(self) -> dict[str, Any]:
        bounds = [f"{each:g}" for each in _BOUNDS]
        return {
            "counts": dict(zip(bounds, self._counts.tolist(), strict=True)),
            "sum": self._sum,
        }
