"""Records series of a run in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError
from sparring_train.report.run_data import Points
from sparring_train.run.result import Progress

__all__ = ["RecordingProgress", "RunRecorder"]


@dataclass(slots=True)
class _Collected:
    """A growing series. When it is full, every second point is removed and the stride is doubled."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    stride: int = 1
    num_offered: int = 0
    last: tuple[int, float] | None = None

    def offer(self, step: int, value: float, max_points: int) -> None:
        self.last = (step, value)
        if self.steps and self.steps[-1] == step:
            # The last of several values of a step replaces the earlier ones.
            self.values[-1] = value
            return
        if self.num_offered % self.stride == 0:
            if len(self.steps) == max_points:
                del self.steps[1::2], self.values[1::2]
                self.stride *= 2
            if self.num_offered % self.stride == 0:
                self.steps.append(step)
                self.values.append(value)
        self.num_offered += 1

    def with_last(self) -> Points:
        """Returns the kept points and the newest point."""
        steps, values = list(self.steps), list(self.values)
        if self.last is not None and steps[-1] != self.last[0]:
            steps.append(self.last[0])
            values.append(self.last[1])
        return Points(steps=steps, values=values)


class RunRecorder:
    """Series of numbers by name, and numbers of occurrences of ids.

    Names of series in a report: ``loss`` (of a training step), metrics on the test samples (``auc``,
    ``log_loss``, ``rmse``), metrics on the validation samples (``validation/<metric>``),
    ``rows/<table>``, ``seconds/<part>``, ``samples`` and ``memory``; the last three are cumulative or
    of the first rank. The steps of ``window/<metric>`` are times.

    Args:
        max_points: maximum number of points of a series. A longer one keeps every second, fourth, …
            point and the newest one.
        max_ids: maximum number of ids of a feature that are counted. Later ids are ignored.

    Raises:
        InvalidArgumentError: `max_points` is less than 2, or `max_ids` less than 0.
    """

    def __init__(self, *, max_points: int = 2000, max_ids: int = 200_000) -> None:
        if max_points < 2 or max_ids < 0:
            raise InvalidArgumentError(
                f"recorder: found max_points {max_points} and max_ids {max_ids}, expected at least 2 "
                "and 0"
            )
        self._max_points, self._max_ids = max_points, max_ids
        self._series: dict[str, _Collected] = {}
        self._ids: dict[str, list[npt.NDArray[np.int64]]] = {}
        self._num_ids: dict[str, int] = {}

    def record(self, step: int, name: str, value: float) -> None:
        """Adds a point to a series. Steps of a series must not decrease.

        Raises:
            InvalidArgumentError: `step` is less than the last one of this series.
        """
        collected = self._series.setdefault(name, _Collected())
        if collected.last is not None and step < collected.last[0]:
            raise InvalidArgumentError(
                f"series {name!r}: found step {step} after step {collected.last[0]}; record "
                "steps in order"
            )
        collected.offer(step, float(value), self._max_points)

    def observe_ids(self, feature: str, ids: npt.NDArray[np.int64]) -> None:
        """Counts ids of a feature, in any shape. Does nothing after the first `max_ids` ids."""
        num_seen = self._num_ids.setdefault(feature, 0)
        room = self._max_ids - num_seen
        if room <= 0:
            return
        kept = np.array(ids, np.int64).reshape(-1)[:room]
        self._ids.setdefault(feature, []).append(kept)
        self._num_ids[feature] = num_seen + len(kept)

    @property
    def series(self) -> Mapping[str, Points]:
        """Name → series, in the order of their first points."""
        return {name: collected.with_last() for name, collected in self._series.items()}

    def id_counts(self) -> Mapping[str, npt.NDArray[np.int64]]:
        """Returns feature → numbers of occurrences of its distinct ids, descending."""
        return {
            feature: np.sort(np.unique(np.concatenate(parts), return_counts=True)[1])[::-1]
            for feature, parts in self._ids.items()
        }


class RecordingProgress:
    """A `Progress` that records all calls and forwards them to another one.

    Args:
        inner: receives all calls.
        recorder: records them.
    """

    def __init__(self, inner: Progress, recorder: RunRecorder) -> None:
        self._inner, self._recorder = inner, recorder

    def on_start(self, total_steps: int | None) -> None:
        self._inner.on_start(total_steps)

    def on_step(self, step: int, loss: float, samples: int) -> None:
        self._recorder.record(step, "loss", loss)
        self._inner.on_step(step, loss, samples)

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None:
        for name, value in metrics.items():
            self._recorder.record(step, name if part == "test" else f"{part}/{name}", value)
        self._inner.on_metrics(step, metrics, part)

    def on_message(self, message: str) -> None:
        self._inner.on_message(message)

    def on_snapshot(self, step: int, url: str) -> None:
        self._inner.on_snapshot(step, url)

    def on_end(self) -> None:
        self._inner.on_end()
