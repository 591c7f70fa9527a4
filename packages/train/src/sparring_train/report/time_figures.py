"""Draws where the time of a run goes, its speed, its memory, the calibration of its predictions, and
their quality over windows of event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring_train.report.canvas import COLORS, GREY, PALE, Figure, make_figure
from sparring_train.report.run_data import (
    MEMORY,
    SAMPLES,
    SECONDS,
    TOTAL,
    WINDOW,
    Calibration,
    Points,
)
from sparring_train.report.step_times import STEP_PARTS, short_name
from sparring_train.report.words import format_metric_name

__all__ = [
    "Speed",
    "calibration_figure",
    "memory_axis",
    "samples_per_second",
    "speed",
    "time_figures",
    "window_figures",
]

_MAX_BARS = 40
_PART_COLORS = {
    "data": COLORS[4],
    "lookup": COLORS[0],
    "dense": COLORS[2],
    "graph": COLORS[2],
    "exchange": COLORS[1],
    "update": COLORS[5],
    "save": COLORS[3],
    "report": GREY,
    "other": PALE,
}
_CUT_AT = 3.0
"""Bars higher than this multiple of the median are cut off."""

_MIN_SHARE = 0.002
"""Parts with a smaller share of the time are too small to be visible."""

Floats = npt.NDArray[np.float64]


def time_figures(series: Mapping[str, Points]) -> list[Figure]:
    """Draws the parts of a step, the samples per second and the memory, if they were measured."""
    figures = []
    edges = _edges(series)
    if edges is not None:
        figures.append(_steps(series, *edges))
    found = speed(series)
    if found is not None and len(found.rates) > 1:
        figures.append(_speed(found))
    if MEMORY in series and len(series[MEMORY].steps) > 1:
        figures.append(_memory(series[MEMORY]))
    return figures


def _edges(series: Mapping[str, Points]) -> tuple[Floats, Floats] | None:
    """Returns the steps at which bars begin and end, and their places in the series."""
    if SECONDS + TOTAL not in series:
        return None
    steps = np.array(series[SECONDS + TOTAL].steps, np.float64)
    places = np.unique(np.linspace(0, len(steps) - 1, _MAX_BARS + 1).round().astype(np.int64))
    # Without steps between two points, there is no time per step.
    places = places[np.concatenate(([True], np.diff(steps[places]) > 0))]
    return (steps[places], places.astype(np.float64)) if len(places) > 1 else None


def _steps(series: Mapping[str, Points], edges: Floats, places: Floats) -> Figure:
    at = places.astype(np.int64)
    num_steps = np.diff(edges)
    total = series[SECONDS + TOTAL].values[-1]
    parts = {
        part: np.diff(np.array(series[SECONDS + part].values)[at]) / num_steps * 1e3
        for part in STEP_PARTS
        if SECONDS + part in series and series[SECONDS + part].values[-1] > total * _MIN_SHARE
    }
    heights = np.sum(list(parts.values()), axis=0)
    limit = _CUT_AT * float(np.median(heights))

    def draw(axes: Any) -> None:
        base = np.zeros(len(num_steps))
        for part, milliseconds in parts.items():
            axes.bar(
                edges[:-1],
                milliseconds,
                num_steps,
                base,
                align="edge",
                color=_PART_COLORS[part],
                label=short_name(part),
            )
            base += milliseconds
        if heights.max() > limit:
            axes.set_ylim(0, limit)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylabel("ms per step")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            handles[::-1],
            labels[::-1],
            loc="upper left",
            bbox_to_anchor=(1.01, 1.0),
            borderaxespad=0,
            frameon=False,
        )

    caption = "Mean time of a step on the first rank, by part, without evaluations."
    if heights.max() > limit:
        caption += (
            f" Bars above {limit:,.3g} ms are cut off; the highest one is {heights.max():,.3g} ms."
        )
    return make_figure("Time of a step", caption, draw)


class Speed:
    """Samples per second over the steps of a run, without evaluations."""

    def __init__(self, edges: Floats, rates: Floats) -> None:
        self.steps = (edges[:-1] + edges[1:]) / 2
        self.rates = rates

    def draw(self, axes: Any, color: str, label: str = "") -> None:
        """Adds the curve to the axes."""
        marker = "o" if len(self.rates) == 1 else ""
        axes.plot(self.steps, self.rates, color=color, linewidth=1.8, marker=marker, label=label)


def speed(series: Mapping[str, Points]) -> Speed | None:
    """Returns the speed of a run; None if it was not measured."""
    edges = _edges(series)
    if edges is None or SAMPLES not in series:
        return None
    at = edges[1].astype(np.int64)
    seconds = np.array(series[SECONDS + TOTAL].values)
    if SECONDS + "evaluation" in series:
        seconds -= np.array(series[SECONDS + "evaluation"].values)
    passed = np.diff(seconds[at])
    samples = np.diff(np.array(series[SAMPLES].values)[at])
    rates = np.divide(samples, passed, out=np.full(len(passed), np.nan), where=passed > 0)
    return Speed(edges[0], rates)


def samples_per_second(series: Mapping[str, Points]) -> float | None:
    """Returns the training samples per second of the whole run, without evaluations; None if they were
    not measured."""
    if SAMPLES not in series or SECONDS + TOTAL not in series:
        return None
    ends = {name: points.values[-1] for name, points in series.items()}
    passed = ends[SECONDS + TOTAL] - ends.get(SECONDS + "evaluation", 0.0)
    return ends[SAMPLES] / passed if passed > 0 and ends[SAMPLES] else None


def _speed(found: Speed) -> Figure:
    def draw(axes: Any) -> None:
        found.draw(axes, COLORS[0])
        _from_zero(axes, "samples per second")

    caption = "Training samples per second of all ranks, without evaluations."
    return make_figure("Speed", caption, draw)


def _memory(memory: Points) -> Figure:
    def draw(axes: Any) -> None:
        unit, scale = memory_axis(memory.values)
        axes.plot(memory.steps, np.array(memory.values) / scale, color=COLORS[0], linewidth=1.8)
        _from_zero(axes, f"resident memory ({unit})")

    return make_figure("Memory", "Resident memory of the first rank's process.", draw)


def memory_axis(values: Sequence[float]) -> tuple[str, float]:
    """Returns the unit for an axis of memory, and its number of bytes."""
    return ("GiB", 2.0**30) if max(values) >= 2**30 else ("MiB", 2.0**20)


def _from_zero(axes: Any, label: str) -> None:
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_ylabel(label)


def window_figures(series: Mapping[str, Points]) -> list[Figure]:
    """Draws metrics over windows of event time, if there are at least two."""
    names = [name.removeprefix(WINDOW) for name in series if name.startswith(WINDOW)]
    return [
        _window(
            metric, {name: series[WINDOW + name] for name in names if _metric_of(name) == metric}
        )
        for metric in dict.fromkeys(map(_metric_of, names))
        if metric in names and len(series[WINDOW + metric].steps) > 1
    ]


def _metric_of(name: str) -> str:
    return name.partition("/")[0]


def _window(metric: str, curves: Mapping[str, Points]) -> Figure:
    shown = format_metric_name(metric)

    def draw(axes: Any) -> None:
        from matplotlib import dates

        untyped: Any = dates
        locator = untyped.AutoDateLocator()
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(untyped.ConciseDateFormatter(locator))
        for number, (name, points) in enumerate(curves.items()):
            times = np.array(points.steps, "datetime64[s]")
            color = COLORS[number % len(COLORS)]
            label = name.partition("/")[2] or "all events"
            axes.plot(
                times, points.values, color=color, linewidth=1.0 if number else 2.0, label=label
            )
        if metric == "calibration":
            axes.axhline(1, color=GREY, linestyle=(0, (5, 3)))
        axes.set_xlabel("event time (UTC)")
        axes.set_ylabel(shown)
        if len(curves) > 1:
            axes.legend(loc="best")

    shown_first = f"{shown[0].upper()}{shown[1:]}"
    caption = f"{shown_first} of the events in each window, predicted before they were trained."
    return make_figure(f"{shown_first} over event time", caption, draw)


def calibration_figure(groups: Sequence[Calibration]) -> Figure | None:
    """Draws predicted probabilities against observed rates; None without groups."""
    if not groups:
        return None
    counts = np.array([each.num_samples for each in groups], np.float64)
    predicted = np.array([each.predicted for each in groups])
    observed = np.array([each.observed for each in groups])
    margin = 1.96 * np.sqrt(observed * (1 - observed) / counts)
    mean, rate = (float(np.average(each, weights=counts)) for each in (predicted, observed))

    def draw(axes: Any) -> None:
        top = 1.05 * max(float(predicted.max()), float((observed + margin).max()))
        axes.plot([0, top], [0, top], color=GREY, linestyle=(0, (5, 3)), label="equal")
        axes.errorbar(
            predicted,
            observed,
            margin,
            fmt="o",
            markersize=4,
            color=COLORS[0],
            ecolor=PALE,
            label="test samples",
        )
        axes.set_xlim(0, top)
        axes.set_ylim(0, top)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(type(axes.yaxis.get_major_locator())())
            axis.set_major_formatter("{x:g}")
        axes.set_xlabel("mean prediction")
        axes.set_ylabel("observed rate")
        axes.legend(loc="upper left")

    ratio = f", which is {mean / rate:.3f} times the observed rate of {rate:.4f}" if rate else ""
    caption = (
        f"{len(groups)} groups of about equally many test samples, by ascending prediction. Vertical "
        f"lines are 95 % intervals. The mean prediction is {mean:.4f}{ratio}."
    )
    return make_figure("Calibration", caption, draw)
