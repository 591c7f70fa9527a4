"""Shows the progress of training on standard error: a bar in a terminal, otherwise lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sparring_train.run.logs import PROGRESS

__all__ = ["BarProgress", "LineProgress", "LogProgress", "format_metrics", "make_progress"]

Clock = Callable[[], float]

_LOSS_WEIGHT = 0.05
"""Weight of the last step in the displayed loss, which is smoothed because single steps are noisy."""


def make_progress(
    console: Console, log_interval_seconds: float, *, is_logged: bool = False
) -> BarProgress | LineProgress:
    """Returns a bar for terminals; otherwise one line or log message per interval."""
    if is_logged:
        return LogProgress(console, log_interval_seconds)
    if console.is_terminal and not console.is_dumb_terminal:
        return BarProgress(console)
    return LineProgress(console, log_interval_seconds)


def format_metrics(metrics: Mapping[str, float]) -> str:
    """Formats metrics like ``auc 0.7812  log_loss 0.4605``."""
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())


class _Meter:
    """Counts samples and smooths the loss."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._start = clock()
        self._num_samples = 0
        self._loss: float | None = None

    def add(self, loss: float, samples: int) -> None:
        self._num_samples += samples
        old = loss if self._loss is None else self._loss
        self._loss = old + _LOSS_WEIGHT * (loss - old)

    @property
    def loss(self) -> str:
        return "–" if self._loss is None else f"{self._loss:.4f}"

    @property
    def samples_per_second(self) -> str:
        seconds = self._clock() - self._start
        return f"{self._num_samples / seconds:,.0f}" if seconds > 0 else "–"


class BarProgress:
    """A `sparring_train.run.result.Progress` for terminals."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._meter = _Meter(clock)
        self._task = TaskID(0)
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(bar_width=None),
            TextColumn("step {task.completed:,.0f}{task.fields[of_total]}"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn("{task.fields[rate]} samples/s"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )

    def on_start(self, total_steps: int | None) -> None:
        self._meter = _Meter(self._clock)
        of_total = "" if total_steps is None else f" of {total_steps:,}"
        self._task = self._bar.add_task(
            "training", total=total_steps, of_total=of_total, loss="–", rate="–"
        )
        self._bar.start()

    def on_step(self, step: int, loss: float, samples: int) -> None:
        self._meter.add(loss, samples)
        self._bar.update(
            self._task,
            completed=step,
            loss=self._meter.loss,
            rate=self._meter.samples_per_second,
        )

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None:
        self.on_message(f"step {step:,}  {part} {format_metrics(metrics)}")

    def on_message(self, message: str) -> None:
        self._console.print(Text(message), soft_wrap=True)

    def on_snapshot(self, step: int, url: str) -> None:
        """Does nothing, because a run may save often."""

    def on_end(self) -> None:
        self._bar.stop()


class LineProgress:
    """A `sparring_train.run.result.Progress` for log files: at most one line of steps per interval."""

    def __init__(
        self, console: Console, log_interval_seconds: float, clock: Clock = time.monotonic
    ) -> None:
        self._console = console
        self._interval_seconds = log_interval_seconds
        self._clock = clock
        self._meter = _Meter(clock)
        self._next_line = 0.0
        self._of_total = ""

    def on_start(self, total_steps: int | None) -> None:
        self._meter = _Meter(self._clock)
        self._next_line = self._clock() + self._interval_seconds
        self._of_total = "" if total_steps is None else f" of {total_steps:,}"

    def on_step(self, step: int, loss: float, samples: int) -> None:
        self._meter.add(loss, samples)
        if self._clock() < self._next_line:
            return
        self._next_line = self._clock() + self._interval_seconds
        self.on_message(
            f"step {step:,}{self._of_total}  loss {self._meter.loss}  "
            f"{self._meter.samples_per_second} samples/s"
        )

    def on_metrics(self, step: int, metrics: Mapping[str, float], part: str = "test") -> None:
        self.on_message(f"step {step:,}  {part} {format_metrics(metrics)}")

    def on_message(self, message: str) -> None:
        self._console.print(Text(message), soft_wrap=True)

    def on_snapshot(self, step: int, url: str) -> None:
        """Does nothing, because a run may save often."""

    def on_end(self) -> None:
        """Does nothing, because each line is already complete."""


class LogProgress(LineProgress):
    """Like `LineProgress`, in the format of the run's logs."""

    def on_message(self, message: str) -> None:
        PROGRESS.info("%s", message)
