"""Progress of training: a bar on a terminal, few lines elsewhere."""

from __future__ import annotations

import io

from rich.console import Console

from sparring_train.cli.progress import BarProgress, LineProgress, make_progress
from sparring_train.run.result import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def console(*, is_terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=120, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def train(progress: Progress, clock: Clock, num_steps: int, step_seconds: float) -> None:
    for step in range(1, num_steps + 1):
        clock.now += step_seconds
        progress.on_step(step, 0.5, samples=10)


def test_a_log_gets_one_line_in_each_interval() -> None:
    out, clock = console(is_terminal=False), Clock()
    progress = LineProgress(out, log_interval_seconds=5.0, clock=clock)
    progress.on_start(100)
    train(progress, clock, num_steps=100, step_seconds=0.25)
    progress.on_end()
    lines = written(out).splitlines()
    assert len(lines) == 5
    assert lines[0] == "step 20 of 100  loss 0.5000  40 samples/s"


def test_a_log_gets_no_escape_codes_and_no_broken_lines() -> None:
    out = console(is_terminal=False)
    progress = LineProgress(out, log_interval_seconds=5.0)
    progress.on_message("[red]a path/with [brackets]" + " and more" * 30)
    assert written(out) == "[red]a path/with [brackets]" + " and more" * 30 + "\n"


def test_metrics_are_shown_with_their_step() -> None:
    for is_terminal in (False, True):
        out = console(is_terminal=is_terminal)
        progress = make_progress(out, 5.0)
        progress.on_start(None)
        progress.on_metrics(1234, {"auc": 0.78125, "log_loss": 0.5})
        progress.on_end()
        assert "step 1,234  test auc 0.7812  log_loss 0.5000" in written(out)


def test_a_terminal_gets_a_bar_that_names_the_step() -> None:
    out, clock = console(is_terminal=True), Clock()
    progress = BarProgress(out, clock)
    progress.on_start(40)
    train(progress, clock, num_steps=40, step_seconds=0.5)
    progress.on_end()
    assert "step 40 of 40" in written(out)
    assert "loss 0.5000" in written(out)
    assert "20 samples/s" in written(out)


def test_the_kind_of_progress_follows_the_terminal() -> None:
    assert isinstance(make_progress(console(is_terminal=True), 5.0), BarProgress)
    assert isinstance(make_progress(console(is_terminal=False), 5.0), LineProgress)


def test_the_shown_loss_is_smoothed() -> None:
    out, clock = console(is_terminal=False), Clock()
    progress = LineProgress(out, log_interval_seconds=1.0, clock=clock)
    progress.on_start(None)
    progress.on_step(1, 1.0, samples=1)
    clock.now += 1.0
    progress.on_step(2, 3.0, samples=1)
    assert written(out) == "step 2  loss 1.1000  2 samples/s\n"


def test_an_end_without_a_start_is_not_an_error() -> None:
    for is_terminal in (False, True):
        make_progress(console(is_terminal=is_terminal), 5.0).on_end()
