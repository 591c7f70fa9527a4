"""The report about a run: one static HTML file that contains its data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from os import PathLike

import numpy as np
import numpy.typing as npt

from sparring_train.report.elements import (
    facts,
    figure_elements,
    section,
    table,
    tiles,
    write_page,
)
from sparring_train.report.figures import draw_figures
from sparring_train.report.run_data import NEW_IDS, RunData, render_run_data
from sparring_train.report.step_times import PARTS, final_seconds
from sparring_train.report.time_figures import (
    calibration_figure,
    samples_per_second,
    time_figures,
    window_figures,
)
from sparring_train.report.words import environment, format_metric_name

__all__ = ["write_report"]

_MAX_ROWS_UNFOLDED = 10


def write_report(
    path: str | PathLike[str],
    data: RunData,
    id_counts: Mapping[str, npt.NDArray[np.int64]] | None = None,
    *,
    config_text: str = "",
    title: str = "sparring: report on a training run",
) -> None:
    """Writes the report about a finished run. Missing folders are created.

    The file is written atomically; an existing one is replaced.

    Args:
        path: the HTML file.
        data: data to show; `read_report` reads it.
        id_counts: feature → numbers of occurrences of its ids; see `RunRecorder.id_counts`.
        config_text: the configuration as text.
        title: the heading.

    Raises:
        DataError: the file cannot be written.
        PluginError: matplotlib is not installed.
    """
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(_lead(data))}</p>',
        _tiles(data),
        figure_elements(
            draw_figures(data.series, id_counts or {}, data.best, data.baselines)
            + list(filter(None, [calibration_figure(data.calibration)]))
            + window_figures(data.series)
            + time_figures(data.series)
        ),
        _metrics(data),
        _slices(data),
        _times(data),
        _rows(data),
        _tiers(data),
        section("Environment", facts(environment(data))),
        section("Configuration", f"<pre>{escape(config_text)}</pre>") if config_text else "",
        render_run_data(data),
    ]
    write_page(path, title, sections)


def _lead(data: RunData) -> str:
    num_steps = data.steps - data.resumed_steps
    steps = "1 step" if num_steps == 1 else f"{num_steps:,} steps"
    taken = f"{steps} in {data.seconds:,.1f} seconds"
    before = f", after {data.resumed_steps:,}" if data.resumed_steps else ""
    started = environment(data).get("started (UTC)")
    where = f" on {data.host.name}" if data.host is not None else ""
    return f"{taken}{before}" + (f", from {started} UTC{where}." if started else ".")


def _tiles(data: RunData) -> str:
    found = []
    for name, value in data.metrics.items():
        best = data.best.get(name)
        remark = "on the test samples" if best is None else f"best possible {best:.4f}"
        found.append((f"{value:.4f}", f"test {format_metric_name(name)}, {remark}"))
    if data.rows:
        tables = "1 table" if len(data.rows) == 1 else f"{len(data.rows)} tables"
        found.append((f"{sum(data.rows.values()):,}", f"rows in {tables}"))
    if data.steps_per_second is not None:
        found.append((f"{data.steps_per_second:,.1f}", "steps per second, including evaluation"))
    if (rate := samples_per_second(data.series)) is not None:
        found.append((f"{rate:,.0f}", "samples per second, without evaluation"))
    found += [(f"{n:,}", name.replace("_", " ")) for name, n in data.skipped.items() if n]
    return tiles(found)


def _metrics(data: RunData) -> str:
    if not data.metrics:
        return ""
    columns: dict[str, Callable[[str], str]] = {
        "Reached on the test samples": lambda name: f"{data.metrics[name]:.4f}"
    }
    if data.validation:
        on_validation = f"On the validation samples, step {data.best_step:,}"
        columns[on_validation] = lambda name: _metric(data.validation, name)
    if data.best:
        columns["Best reachable"] = lambda name: _metric(data.best, name, "unknown")
        columns["Difference"] = lambda name: (
            f"{data.metrics[name] - data.best[name]:+.4f}" if name in data.best else ""
        )
    for each in data.baselines:
        columns[f"Predicting {each.name}"] = partial(_metric, each.metrics)
    lines = [
        (format_metric_name(name), *(cell(name) for cell in columns.values()))
        for name in data.metrics
    ]
    why = data.undefined_metrics
    remark = f"<p>Undefined: {escape(why)}.</p>" if why else ""
    if not data.best:
        remark += "<p>The best value that a model can reach on these data is unknown.</p>"
    return section("Metrics", table(("Metric", *columns), lines) + remark)


def _metric(metrics: Mapping[str, float], name: str, otherwise: str = "") -> str:
    return f"{metrics[name]:.4f}" if name in metrics else otherwise


def _slices(data: RunData) -> str:
    title = "Metrics of new, rare and frequent ids"
    if not data.slices:
        why = data.slices_absence
        return section(title, f"<p>{escape(why)}</p>") if why else ""
    names = list(data.slices[0].metrics)
    head = (
        "Feature",
        "Test samples",
        "Id met in training",
        "Samples",
        *map(format_metric_name, names),
    )
    lines = [
        (
            each.feature,
            each.name,
            each.met,
            f"{each.num_samples:,}",
            *(f"{each.metrics[name]:.4f}" if name in each.metrics else "" for name in names),
        )
        for each in data.slices
    ]
    sampled = {each.feature: each.one_in for each in data.slices if each.one_in > 1}
    remarks = "".join(
        f"<p>{escape(feature)} has very many ids: one in {one_in:,} was counted, and samples with other "
        "ids are left out.</p>"
        for feature, one_in in sampled.items()
    )
    known = dict.fromkeys(each.feature for each in data.slices)
    with_new = {each.feature for each in data.slices if each.name == NEW_IDS}
    without = [feature for feature in known if feature not in with_new]
    if without:
        remarks += f"<p>No test sample has a new id of {escape(', '.join(without))}.</p>"
    if data.slices[0].metrics.keys() & data.best.keys():
        remarks += (
            "<p>The best value that can be reached differs between slices, and is unknown.</p>"
        )
    return section(title, table(head, lines, num_texts=3) + remarks)


def _times(data: RunData) -> str:
    seconds = final_seconds(data.series)
    if not seconds or not data.steps:
        return ""
    total = sum(seconds.values())
    lines = [
        (PARTS[part], f"{each:,.2f}", f"{each / total:.1%}", f"{each / data.steps * 1e3:,.2f}")
        for part, each in sorted(seconds.items(), key=lambda each: -each[1])
    ]
    remark = "Times of the first rank. Work on other threads, such as prefetching and writing snapshots, "
    remark += "is counted only while training waits for it."
    head = ("Part", "Seconds", "Share", "ms per step")
    lines.append(("all parts", f"{total:,.2f}", "", f"{total / data.steps * 1e3:,.2f}"))
    return section("Time", table(head, lines) + f"<p>{remark}</p>")


def _rows(data: RunData) -> str:
    if not data.rows:
        return ""
    total = sum(data.rows.values())
    lines = [
        (name, f"{count:,}", _share(count, total))
        for name, count in sorted(data.rows.items(), key=lambda each: -each[1])
    ]
    if len(lines) > 1:
        lines.append(("all tables", f"{total:,}", ""))
    folded = f"All {len(data.rows)} tables" if len(data.rows) > _MAX_ROWS_UNFOLDED else ""
    return section("Rows", table(("Table", "Rows at the end", "Share"), lines, folded=folded))


def _tiers(data: RunData) -> str:
    names = [each for tiers in data.tiers.values() for tier in tiers for each in tier]
    names = [name for name in dict.fromkeys(names) if name != "backend"]
    lines = [
        (
            f"{name}, tier {place}: {tier['backend']}",
            *(_number(tier.get(each, 0)) for each in names),
        )
        for name, tiers in data.tiers.items()
        for place, tier in enumerate(tiers, 1)
    ]
    head = ("Table", *map(format_metric_name, names))
    return section("Tiers", table(head, lines)) if lines else ""


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _share(count: int, total: int) -> str:
    if not total:
        return ""
    share = f"{count / total:.1%}"
    return "below 0.1%" if count and share == "0.0%" else share
