"""The trackers of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparring.adapter import Coordinator
from sparring.errors import ConfigError, PluginError, SparringError
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.training import TrackerConfig
from sparring_train.live.windows import WindowResult
from sparring_train.registered_kinds import find_tracker
from sparring_train.run.result import Progress, TrainResult
from sparring_train.run.same_run import absolute_paths
from sparring_train.trackers.background import BackgroundTracker
from sparring_train.trackers.contract import TrackerRequest

if TYPE_CHECKING:
    from sparring import PluginManager, StepContainer

__all__ = ["RunTrackers", "open_trackers"]

_CLOSE_SECONDS = 30.0


class RunTrackers:
    """A `Progress` that also sends metrics to trackers.

    The loss is averaged over the steps since the last values, which are sent every
    `training.log_interval_seconds`.

    Args:
        inner: receives all calls.
        trackers: the open trackers.
        every_seconds: minimum time between two values of the loss.
    """

    def __init__(
        self, inner: Progress, trackers: list[BackgroundTracker], every_seconds: float
    ) -> None:
        self._inner, self._trackers = inner, trackers
        self._every_seconds = every_seconds
        self._reported: set[str] = set()
        self._last = 0
        self._clear()

    @property
    def num_failures(self) -> int:
        """Number of calls to trackers that failed."""
        return sum(each.num_failures for each in self._trackers)

    def on_start(self, total_steps: int | None) -> None:
        self._inner.on_start(total_steps)

    def on_step(self, step: int, loss: float, samples: int) -> None:
        self._last = step
        self._losses += loss
        self._num_steps += 1
        self._num_samples += samples
        if time.monotonic() - self._begin >= self._every_seconds:
            self._send_loss()
        self._inner.on_step(step, loss, samples)

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None:
        self._log(step, {f"{part}/{name}": value for name, value in metrics.items()})
        self._inner.on_metrics(step, metrics, part)

    def on_window(self, result: WindowResult) -> None:
        """Sends the metrics of a window of a stream, and of its slices."""
        values = {f"window/{name}": value for name, value in result.metrics.items()}
        for each in result.slices:
            name = f"window/{each.dimension}={each.value}"
            values |= {f"{name}/{metric}": value for metric, value in each.metrics.items()}
        self._log(result.step, values)

    def on_message(self, message: str) -> None:
        self._inner.on_message(message)

    def on_snapshot(self, step: int, url: str) -> None:
        self._inner.on_snapshot(step, url)

    def on_end(self) -> None:
        self._inner.on_end()

    def end(self, result: TrainResult) -> None:
        """Sends the last values of a run and its report."""
        self._send_loss()
        rows = {f"rows/{table}": float(count) for table, count in result.rows.items()}
        last = {f"final/{name}": value for name, value in result.metrics.items()}
        self._log(result.steps, {**rows, **last, "final/seconds": result.seconds})
        if path := result.extra.get("report_path"):
            for each in self._trackers:
                each.call(partial(each.tracker.log_file, Path(path)))

    def close(self, *, succeeded: bool) -> None:
        """Ends the runs in all trackers."""
        for each in self._trackers:
            each.close(_CLOSE_SECONDS, succeeded=succeeded)
        self._report_failures()
        for each in self._trackers:
            if each.num_failures:
                self._inner.on_message(
                    f"tracker {each.kind}: {each.num_failures} calls failed; their values are missing "
                    "there"
                )

    def _clear(self) -> None:
        self._losses = 0.0
        self._num_steps = self._num_samples = 0
        self._begin = time.monotonic()

    def _send_loss(self) -> None:
        if self._num_steps:
            seconds = max(time.monotonic() - self._begin, 1e-9)
            loss, speed = self._losses / self._num_steps, self._num_samples / seconds
            self._log(self._last, {"loss": loss, "samples_per_second": speed})
        self._clear()

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        finite = {name: float(each) for name, each in metrics.items() if math.isfinite(each)}
        if finite:
            for each in self._trackers:
                each.call(partial(each.tracker.log_metrics, step, finite))
        self._report_failures()

    def _report_failures(self) -> None:
        for each in self._trackers:
            if each.first_error is not None and each.kind not in self._reported:
                self._reported.add(each.kind)
                self._inner.on_message(
                    f"warning: tracker {each.kind} failed: {_first_line(each.first_error)}; training "
                    "continues, and further failures are only counted"
                )


@contextmanager
def open_trackers(
    config: RunConfig, container: StepContainer, manager: PluginManager, progress: Progress
) -> Iterator[RunTrackers]:
    """Opens the configured trackers on the first rank. All ranks enter the block together.

    Raises:
        PluginError: a tracker does not exist, or its package is not installed.
        ConfigError: a tracker cannot be opened.
    """
    opened: list[BackgroundTracker] = []
    refusal: SparringError | None = None
    if container.collective.rank == 0:
        try:
            for section in config.training.trackers:
                opened.append(_open(section, config, manager))
        except SparringError as error:
            refusal = error
    trackers = RunTrackers(progress, opened, config.training.log_interval_seconds)
    succeeded = False
    try:
        if config.training.trackers:
            Coordinator(container.collective, "trackers of this run").agree(refusal)
        yield trackers
        succeeded = True
    finally:
        trackers.close(succeeded=succeeded)


def _open(section: TrackerConfig, config: RunConfig, manager: PluginManager) -> BackgroundTracker:
    kind = find_tracker(section.kind, manager)
    if kind.package is not None and find_spec(kind.package) is None:
        raise PluginError(
            f"training.trackers: {section.kind} needs {kind.package}, which is not installed; run: pip "
            f"install 'sparring-train[{section.kind}]', or remove it from training.trackers"
        )
    values: dict[str, Any] = absolute_paths(config).model_dump(mode="json")
    request = TrackerRequest(section.url, section.project, section.name, values)
    try:
        return BackgroundTracker(section.kind, kind.open(request))
    except SparringError:
        raise
    except Exception as error:
        where = "" if section.url is None else f" at {section.url}"
        raise ConfigError(
            f"training.trackers: opening {section.kind}{where} failed: {_first_line(error)}; correct "
            "url, start the server, or remove it from training.trackers",
            setting="training.trackers",
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
