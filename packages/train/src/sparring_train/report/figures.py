"""Draws the figures of a report as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring_train.report.canvas import (
    COLORS,
    GREY,
    INK,
    PALE,
    Figure,
    legend_beside,
    limit_to_bulk,
    make_figure,
)
from sparring_train.report.run_data import MEMORY, SAMPLES, SECONDS, WINDOW, Baseline, Points
from sparring_train.report.time_figures import Speed, memory_axis, speed
from sparring_train.report.words import format_metric_name

__all__ = ["draw_figures", "draw_runs"]

_MAX_RANKS_DRAWN = 300
_ROWS, _VALIDATION = "rows/", "validation/"


def draw_figures(
    series: Mapping[str, Points],
    id_counts: Mapping[str, npt.NDArray[np.int64]],
    best: Mapping[str, float],
    baselines: Sequence[Baseline] = (),
) -> list[Figure]:
    """Draws loss, metrics, rows and ids, if there are data.

    Args:
        series: name → points; see `RunData`.
        id_counts: feature → counts of its distinct ids, descending.
        best: metric → best possible value.
        baselines: predictions without a model, for comparison.

    Raises:
        PluginError: matplotlib is not installed.
    """
    rows = {
        name.removeprefix(_ROWS): points
        for name, points in series.items()
        if name.startswith(_ROWS)
    }
    metrics = dict.fromkeys(name.removeprefix(_VALIDATION) for name in series if _is_metric(name))
    figures = []
    # A figure over a single step would be empty.
    has_loss = "loss" in series and len(series["loss"].steps) > 1
    if has_loss:
        held_out = _held_out(series, "log_loss")
        figures.append(_loss(series["loss"], held_out, best.get("log_loss")))
    for name in metrics:
        held_out = _held_out(series, name)
        # The log loss is in the loss figure. A single point is shown as a number only.
        is_shown = name == "log_loss" and has_loss
        if not is_shown and any(len(each.steps) > 1 for each in held_out.values()):
            known = {each.name: each.metrics[name] for each in baselines if name in each.metrics}
            figures.append(_metric(name, held_out, best.get(name), known))
    if any(len(points.steps) > 1 for points in rows.values()):
        figures.append(_rows(rows))
    if id_counts:
        figures.append(_popularity(id_counts))
    return figures


def _is_metric(series: str) -> bool:
    return series not in ("loss", SAMPLES, MEMORY) and not series.startswith(
        (_ROWS, SECONDS, WINDOW)
    )


def _held_out(series: Mapping[str, Points], metric: str) -> dict[str, Points]:
    """Returns part of the data → its series of a metric."""
    names = {"validation": f"{_VALIDATION}{metric}", "test": metric}
    return {part: series[name] for part, name in names.items() if name in series}


def _loss(loss: Points, held_out: Mapping[str, Points], best: float | None) -> Figure:
    shown = [value for each in (loss, *held_out.values()) for value in each.values]
    shown += [best] if best else []

    def draw(axes: Any) -> None:
        smooth = _smoothed(loss.values)
        axes.plot(
            loss.steps, loss.values, color="#a5b1bd", linewidth=0.8, label="training, each step"
        )
        axes.plot(loss.steps, smooth, color=COLORS[0], linewidth=1.8, label="training, smoothed")
        for colour, (part, points) in enumerate(held_out.items(), 1):
            axes.plot(points.steps, points.values, **_marked(colour), label=f"{part} log loss")
        if held_out and best is not None:
            axes.axhline(best, **_dashed(), label=f"best possible {best:.4f}")
        limit_to_bulk(axes, shown)
        axes.set_ylabel("mean loss per sample" + (" (nats)" if held_out else ""))
        axes.legend(loc="best")

    caption = "Loss of each training step"
    if held_out:
        caption += f", and log loss on the {' and '.join(held_out)} samples"
    caption += "."
    return make_figure("Loss over steps", caption, draw)


def _metric(
    name: str, held_out: Mapping[str, Points], best: float | None, baselines: Mapping[str, float]
) -> Figure:
    shown = format_metric_name(name)

    def draw(axes: Any) -> None:
        for colour, (part, points) in enumerate(held_out.items()):
            axes.plot(points.steps, points.values, **_marked(colour), label=f"{part} {shown}")
            last = points.values[-1]
            axes.annotate(
                f"{last:.4f}",
                (points.steps[-1], last),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                color=COLORS[colour],
            )
        if best is not None:
            axes.axhline(best, **_dashed(), label=f"best possible {best:.4f}")
        for colour, (baseline, value) in enumerate(baselines.items(), len(held_out)):
            label = f"predicting {_clipped(baseline)} {value:.4f}"
            style = _dashed() | {"color": COLORS[colour % len(COLORS)]}
            axes.axhline(value, **style, label=label)
        axes.margins(x=0.12, y=0.15)
        axes.set_ylabel(shown)
        axes.legend(loc="best")

    caption = f"{shown} on the {' and '.join(held_out)} samples"
    caption += ", and the best possible value." if best is not None else "."
    return make_figure(f"{shown[0].upper()}{shown[1:]} over steps", caption, draw)


def _rows(rows: Mapping[str, Points]) -> Figure:
    by_size = sorted(rows, key=lambda table: -rows[table].values[-1])
    named = by_size[: len(COLORS)]
    others = by_size[len(named) :]

    def draw(axes: Any) -> None:
        if len(rows) > 1:
            total = _total(list(rows.values()))
            axes.plot(
                total.steps,
                total.values,
                color=INK,
                linewidth=2.2,
                label=f"all {len(rows)} tables",
            )
        for table, colour in zip(named, COLORS, strict=False):
            axes.plot(rows[table].steps, rows[table].values, color=colour, label=_clipped(table))
        for number, table in enumerate(others):
            label = f"{len(others)} smaller tables" if number == 0 else None
            axes.plot(rows[table].steps, rows[table].values, **_in_background(label))
        if any(points.values[-1] > 0 for points in rows.values()):
            axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylabel("rows")
        legend_beside(axes)

    caption = (
        "Rows of each table. Tables have no declared size: a row is created when an id is trained on "
        "for the first time."
    )
    return make_figure("Rows per table over steps", caption, draw)


def _popularity(id_counts: Mapping[str, npt.NDArray[np.int64]]) -> Figure:
    by_size = sorted(id_counts, key=lambda feature: -len(id_counts[feature]))
    # Selects features evenly over all numbers of ids.
    spread = np.linspace(0, len(by_size) - 1, min(len(COLORS), len(by_size))).round()
    named = [by_size[int(at)] for at in spread]
    others = [feature for feature in by_size if feature not in named]
    most = max(int(counts.sum()) for counts in id_counts.values())

    def draw(axes: Any) -> None:
        for feature, colour in zip(named, COLORS, strict=False):
            label = f"{_clipped(feature)}: {len(id_counts[feature]):,} ids"
            axes.plot(*_rank_and_share(id_counts[feature]), color=colour, label=label)
        for number, feature in enumerate(others):
            shared = f"{len(others)} other features" if number == 0 else None
            axes.plot(*_rank_and_share(id_counts[feature]), **_in_background(shared))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("rank of the id by frequency")
        axes.set_ylabel("share of all ids (%)")
        legend_beside(axes)

    caption = (
        f"Frequency distribution of ids, from the first {most:,} ids of a feature. A steep straight line "
        "is a power law: a few ids are very frequent, and most are rare."
    )
    return make_figure("Skew of id frequencies", caption, draw)


def draw_runs(runs: Sequence[tuple[str, Mapping[str, Points]]]) -> list[Figure]:
    """Draws the curves of several runs in the same axes: loss, metrics, rows of all tables, speed and
    memory.

    Args:
        runs: label and series of each run.

    Raises:
        PluginError: matplotlib is not installed.
    """
    figures = []
    # Each run has the same color in all figures.
    colors = {run: COLORS[number % len(COLORS)] for number, (run, _) in enumerate(runs)}
    curves = [
        (run, Points(steps=series["loss"].steps, values=_smoothed(series["loss"].values)))
        for run, series in runs
        if "loss" in series
    ]
    if curves:
        caption = "Loss of each training step, smoothed."
        figures.append(
            _together("Loss over steps", caption, "mean loss per sample", curves, colors)
        )
    for name in dict.fromkeys(name for _, series in runs for name in series if _is_metric(name)):
        curves = [(run, series[name]) for run, series in runs if name in series]
        if all(len(points.steps) < 2 for _, points in curves):
            continue
        part = "validation" if name.startswith(_VALIDATION) else "test"
        shown = format_metric_name(name.removeprefix(_VALIDATION))
        caption = f"{shown} on the {part} samples."
        title = f"{shown[0].upper()}{shown[1:]} over steps"
        figures.append(_together(title, caption, f"{part} {shown}", curves, colors, marker="o"))
    curves = []
    for run, series in runs:
        parts = [points for name, points in series.items() if name.startswith(_ROWS)]
        if parts:
            curves.append((run, _total(parts)))
    if curves:
        caption = "Rows of all tables together."
        figures.append(_together("Rows over steps", caption, "rows", curves, colors))
    speeds = [(run, found) for run, series in runs if (found := speed(series)) is not None]
    if speeds:
        figures.append(_speeds(speeds, colors))
    curves = [(run, series[MEMORY]) for run, series in runs if MEMORY in series]
    if curves:
        unit, scale = memory_axis([value for _, points in curves for value in points.values])
        scaled = [
            (run, Points(steps=each.steps, values=[value / scale for value in each.values]))
            for run, each in curves
        ]
        caption = "Resident memory of the first rank's process."
        figures.append(_together("Memory", caption, f"resident memory ({unit})", scaled, colors))
    return figures


def _speeds(speeds: Sequence[tuple[str, Speed]], colors: Mapping[str, str]) -> Figure:
    def draw(axes: Any) -> None:
        for run, found in speeds:
            found.draw(axes, colors[run], run)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylabel("samples per second")
        legend_beside(axes)

    caption = "Training samples per second of all ranks, without evaluations."
    return make_figure("Speed", caption, draw)


def _together(
    title: str,
    caption: str,
    label: str,
    curves: Sequence[tuple[str, Points]],
    colors: Mapping[str, str],
    *,
    marker: str = "",
) -> Figure:
    def draw(axes: Any) -> None:
        for number, (run, points) in enumerate(curves):
            # Later lines are thinner, so that equal curves are visible.
            width = max(1.2, 3.2 - number)
            axes.plot(
                points.steps,
                points.values,
                color=colors[run],
                linewidth=width,
                label=run,
                marker=marker or ("o" if len(points.steps) == 1 else ""),
                markersize=4,
            )
        if label.startswith("mean loss"):
            limit_to_bulk(axes, [value for _, points in curves for value in points.values])
        if label == "rows" or label.startswith("resident"):
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter("{x:,g}")
        axes.set_ylabel(label)
        legend_beside(axes)

    return make_figure(title, caption, draw)


def _marked(colour: int) -> dict[str, Any]:
    return {"color": COLORS[colour], "linewidth": 1.8, "marker": "o", "markersize": 4}


def _dashed() -> dict[str, Any]:
    return {"color": GREY, "linewidth": 1.3, "linestyle": (0, (5, 3))}


def _in_background(label: str | None) -> dict[str, Any]:
    return {"color": PALE, "linewidth": 0.9, "label": label, "zorder": 1}


def _smoothed(values: Sequence[float]) -> list[float]:
    """Returns an exponential moving average over about a twentieth of the points."""
    forget = 1 / max(1.0, len(values) / 20)
    mean, weight, smooth = 0.0, 0.0, []
    for value in values:
        mean, weight = mean + forget * (value - mean), weight + forget * (1 - weight)
        smooth.append(mean / weight)
    return smooth


def _total(parts: Sequence[Points]) -> Points:
    """Returns the sum of series, using the latest value of each at every step."""
    steps = sorted({step for part in parts for step in part.steps})
    total = np.zeros(len(steps))
    for part in parts:
        newest = np.searchsorted(part.steps, steps, side="right") - 1
        total += np.where(newest < 0, 0.0, np.array(part.values)[np.maximum(newest, 0)])
    return Points(steps=steps, values=total.tolist())


def _rank_and_share(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns ranks from 1, evenly spaced on a logarithmic axis, and their shares in percent."""
    spread = np.geomspace(1, len(counts), _MAX_RANKS_DRAWN).round().astype(np.int64)
    ranks = np.unique(spread)
    return ranks, 100.0 * counts[ranks - 1] / counts.sum()


def _clipped(name: str) -> str:
    # A leading underscore would hide a line from the legend, and $ starts mathematics.
    clipped = name if len(name) <= 24 else name[:23] + "…"
    return clipped.replace("$", r"\$").removeprefix("_") or "_"
