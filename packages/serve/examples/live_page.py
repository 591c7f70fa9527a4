"""Checks what `live_demo.py` has recorded, and writes a page with figures over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from live_client import Replies
from live_events import DRIFT, POISON

from sparring_train.report.canvas import COLORS, GREY, PALE, Figure, legend_beside, make_figure
from sparring_train.report.elements import figure_elements, section, table, tiles, write_page

MAX_P50_SECONDS, MAX_P99_SECONDS, MAX_RETURN_SECONDS, MAX_RECOVERY_SECONDS = 2.0, 4.0, 10.0, 30.0
MAX_EXCESS = 0.06
"""Maximum excess of the log loss over the best possible one, at the end."""
NEVER = float("inf")


@dataclass(frozen=True)
class ServerState:
    """What a server replied. All times are seconds after the begin."""

    seconds: float
    step: int | None
    """Step of the version that it serves; None if it did not reply."""
    is_closed: bool


@dataclass(frozen=True)
class GateState:
    """State of the gate since a time."""

    seconds: float
    is_closed: bool
    reason: str
    pin: str


@dataclass
class Recording:
    """Everything that happened in the demo."""

    marks: list[tuple[float, str]] = field(default_factory=list)
    received: Replies = field(default_factory=Replies)
    servers: tuple[list[ServerState], list[ServerState]] = field(default_factory=lambda: ([], []))
    gate: list[GateState] = field(default_factory=list)
    event_times: dict[int, float] = field(default_factory=dict)
    """Step → time of the newest event that was trained until then."""
    windows: dict[float, Mapping[str, Any]] = field(default_factory=dict)
    """End of a window → its metrics, measured by the trainer."""
    trainer_killed: float = NEVER

    @property
    def closed(self) -> float:
        """When the gate was first closed."""
        return next((each.seconds for each in self.gate if each.is_closed), NEVER)

    @property
    def opened(self) -> float:
        """When the gate was opened again."""
        later = [each for each in self.gate if each.seconds > self.closed and not each.is_closed]
        return later[0].seconds if later else NEVER

    @property
    def pinned_step(self) -> int | None:
        """Step of the version to which servers returned."""
        pins = [each.pin for each in self.gate if each.is_closed and each.pin]
        return int(pins[0].split("-")[1]) if pins else None

    def first_reply(self, newer_than: float) -> float:
        """Returns when the first reply contained events that are newer than a time."""
        times = (
            each.seconds
            for each in self.received.replies
            if self.event_times[each.step] > newer_than
        )
        return next(times, NEVER)

    @property
    def recovered(self) -> float:
        """When the first version of the resumed trainer was served."""
        return self.first_reply(self.trainer_killed)

    @property
    def renewed(self) -> float:
        """When the first version after the opening of the gate was served."""
        return self.first_reply(self.opened - MAX_P99_SECONDS)

    def ages(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the times of replies, and the ages of the newest events in their versions."""
        replies = self.received.replies
        seconds = np.array([each.seconds for each in replies])
        return seconds, seconds - [self.event_times[each.step] for each in replies]


@dataclass(frozen=True)
class Check:
    what: str
    found: str
    expected: str
    is_met: bool


def check_recording(recording: Recording) -> list[Check]:
    """Returns the results of all checks."""
    received = recording.received
    seconds, ages = recording.ages()
    is_normal = np.ones(len(seconds), bool)
    for begin, end in _pauses(recording):
        is_normal &= (seconds < begin) | (seconds > end)
    p50, p99 = np.percentile(ages[is_normal], [50, 99])
    recovery = recording.recovered - recording.trainer_killed
    closing = recording.closed - POISON[0]
    returned = max(_returned(recording, each) for each in recording.servers) - POISON[0]
    pinned = recording.event_times.get(recording.pinned_step or -1, NEVER)
    outages = [_outages(each) for each in recording.servers]
    last = [each for each in received.replies if each.seconds > recording.renewed + 5]
    excess = float(np.mean([each.log_loss - each.best for each in last])) if last else NEVER
    drifted = [each for each in received.replies if DRIFT[1] < each.seconds < POISON[0]]
    gain = float(np.mean([each.before_drift - each.log_loss for each in drifted] or [0]))
    return [
        _at_most("freshness, p50", p50, MAX_P50_SECONDS),
        _at_most("freshness, p99, without pauses of the trainer and the gate", p99, MAX_P99_SECONDS),
        _at_most("versions of the resumed trainer are served after", recovery, MAX_RECOVERY_SECONDS),
        Check(
            "log loss after the drift, relative to a model that is not trained further",
            f"{-gain:+.3f}", "below 0", gain > 0,
        ),
        _at_most("gate closed after the first inverted label", closing, MAX_RETURN_SECONDS),
        _at_most("last good version served by both servers", returned, MAX_RETURN_SECONDS),
        Check(
            "newest event of that version", f"{pinned - POISON[0]:+.1f} s",
            "before the first inverted label", pinned < POISON[0],
        ),
        Check(
            "gate open again", f"after {recording.opened - POISON[1]:.1f} s of correct labels",
            "before the end", recording.opened < NEVER,
        ),
        Check(
            "excess of the log loss over the best possible, at the end", f"{excess:.3f}",
            f"at most {MAX_EXCESS}", excess <= MAX_EXCESS,
        ),
        Check(
            "servers are killed, and reply again",
            ", ".join(f"after {end - begin:.1f} s" for each in outages for begin, end in each),
            "both", all(len(each) == 1 and each[0][1] < NEVER for each in outages),
        ),
        _none("errors of the client", len(received.errors), received.errors),
        _none("replies of mixed versions", received.num_mixed, ()),
    ]  # fmt: skip


def _at_most(what: str, value: float, limit: float) -> Check:
    return Check(what, f"{value:.1f} s", f"at most {limit:g} s", bool(0 <= value <= limit))


def _none(what: str, count: int, shown: list[str] | tuple[()]) -> Check:
    return Check(what, "; ".join([str(count), *shown[:3]]), "0", count == 0)


def _pauses(recording: Recording) -> list[tuple[float, float]]:
    return [
        (recording.trainer_killed, recording.recovered),
        (min(recording.closed, recording.renewed), recording.renewed),
    ]


def _returned(recording: Recording, states: list[ServerState]) -> float:
    """Returns when a server first served the pinned version after the gate was closed."""
    times = (
        each.seconds
        for each in states
        if each.seconds > recording.closed and each.step == recording.pinned_step
    )
    return next(times, NEVER)


def _outages(states: list[ServerState]) -> list[tuple[float, float]]:
    """Returns begin and end of the times in which a server did not reply."""
    found: list[tuple[float, float]] = []
    for before, each in pairwise(states):
        if before.step is not None and each.step is None:
            found.append((each.seconds, NEVER))
        elif found and before.step is None and each.step is not None:
            found[-1] = (found[-1][0], each.seconds)
    return found


# -- the page -----------------------------------------------------------------------------------


def write_live_page(path: str, recording: Recording, checks: list[Check]) -> None:
    """Writes the page."""
    shown = {each.what: each.found for each in checks}
    names = list(shown)
    page = [
        "<h1>From an event to a served answer</h1>",
        '<p class="lead">A model is trained from a stream, and two servers serve a new version every '
        "second. Times are seconds after both servers replied for the first time.</p>",
        tiles(
            [
                (shown[names[0]], "age of the newest event in a reply, median"),
                (shown[names[4]], "until the gate was closed after the first inverted label"),
                (shown[names[5]], "until both servers served the last good version"),
                (f"{len(recording.received.replies):,}", "replies, with rows and parameters"),
            ]
        ),
        section(
            "Checks",
            table(
                ("check", "found", "expected", "result"),
                [
                    (each.what, each.found, each.expected, "met" if each.is_met else "not met")
                    for each in checks
                ],
                num_texts=4,
            ),
        ),
        figure_elements(
            [_freshness(recording), _losses(recording), _aucs(recording), _steps(recording)]
        ),
        section(
            "Timeline",
            table(
                ("second", "event"),
                [(f"{at:.1f}", what) for at, what in sorted(recording.marks)],
                num_texts=2,
            ),
        ),
    ]
    write_page(path, "From an event to a served answer", page)


def _figure(
    title: str, caption: str, label: str, recording: Recording, draw: Callable[[Any], None]
) -> Figure:
    """Draws over time, with the events of the demo in the background."""

    def draw_all(axes: Any) -> None:
        spans = [("drift", *DRIFT, COLORS[5]), ("inverted labels", *POISON, COLORS[1])]
        for name, begin, end, color in spans:
            axes.axvspan(begin, end, color=color, alpha=0.18, linewidth=0, label=name)
        end = min(recording.opened, recording.received.replies[-1].seconds)
        if recording.closed < end:
            axes.axvspan(
                recording.closed, end, ymin=0.97, color=COLORS[3], linewidth=0, label="gate closed"
            )
        label_of_kill = "process killed"
        for at, what in recording.marks:
            if "is killed" in what:
                axes.axvline(at, color=GREY, linestyle=":", linewidth=1.2, label=label_of_kill)
                label_of_kill = "_"
        draw(axes)
        axes.set_xlabel("seconds")
        axes.set_ylabel(label)
        axes.set_xlim(0, None)
        legend_beside(axes)

    return make_figure(title, caption, draw_all)


def _freshness(recording: Recording) -> Figure:
    seconds, ages = recording.ages()

    def draw(axes: Any) -> None:
        axes.plot(seconds, ages, color=COLORS[0], linewidth=1.4, label="replies")
        axes.set_ylim(bottom=0)

    caption = (
        "Time since the newest event that the version of a reply contains. It increases while the "
        "trainer does not run, and while the gate makes servers return to the last good version."
    )
    return _figure("Freshness", caption, "seconds", recording, draw)


def _losses(recording: Recording) -> Figure:
    replies = recording.received.replies
    seconds = [each.seconds for each in replies]

    def draw(axes: Any) -> None:
        at = [each for each in recording.windows if each > 0]
        windows = [recording.windows[each]["log_loss"] for each in at]
        axes.plot(at, windows, color=COLORS[4], linewidth=1, label="windows")
        frozen = [each.before_drift for each in replies]
        axes.plot(
            seconds, frozen, color=PALE, linewidth=1.4, label="last version\nbefore the drift"
        )
        served = [each.log_loss for each in replies]
        axes.plot(seconds, served, color=COLORS[0], linewidth=1.6, label="replies")
        best = [each.best for each in replies]
        axes.plot(seconds, best, color=GREY, linestyle=(0, (5, 3)), label="best possible")
        axes.set_ylim(0.95 * min(best), 1.05 * max(windows))

    caption = (
        "Windows contain the predictions of the trainer for its events, before it trains them. Replies "
        "are compared with events that happen at the same moment, and have correct labels."
    )
    return _figure("Log loss", caption, "log loss", recording, draw)


def _aucs(recording: Recording) -> Figure:
    replies = recording.received.replies

    def draw(axes: Any) -> None:
        at = [each for each in recording.windows if each > 0]
        windows = [recording.windows[each]["auc"] for each in at]
        axes.plot(at, windows, color=COLORS[4], linewidth=1, label="windows")
        seconds, served = [each.seconds for each in replies], [each.auc for each in replies]
        axes.plot(seconds, served, color=COLORS[0], linewidth=1.4, label="replies")

    caption = (
        "The AUC of windows is low when labels are inverted, and again when they are correct, because "
        "the model has learned the inverted ones meanwhile. The gate withholds that model."
    )
    return _figure("AUC", caption, "AUC", recording, draw)


def _steps(recording: Recording) -> Figure:
    def draw(axes: Any) -> None:
        for number, states in enumerate(recording.servers):
            steps = [np.nan if each.step is None else each.step for each in states]
            axes.plot(
                [each.seconds for each in states], steps, color=COLORS[2 * number],
                linestyle=("-", "--")[number], label=f"server {number + 1}",
            )  # fmt: skip

    caption = "The training step of the version that each server serves. Gaps are restarts."
    return _figure("Served versions", caption, "step", recording, draw)
