"""Writes the report: one static HTML file, without scripts, that loads nothing."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from html import escape
from importlib import resources
from os import PathLike
from pathlib import Path

from sparring.errors import DataError
from sparring_train.report.figures import Figure, draw_figures
from sparring_train.report.recorder import RunRecorder
from sparring_train.result import TrainResult

__all__ = ["write_report"]

_MOST_ROWS_UNFOLDED = 10


def write_report(
    path: str | PathLike[str],
    recorder: RunRecorder,
    result: TrainResult,
    *,
    config_text: str = "",
    environment: Mapping[str, str] | None = None,
    title: str = "sparring: report on a training run",
) -> None:
    """Writes the report on a finished run; folders that are missing are made.

    The file appears when it is whole; one of that name is replaced.

    Args:
        path: the HTML file.
        recorder: what the run showed of itself.
        result: what came out. ``best_<metric>`` in its `extra` is shown next to that metric.
        config_text: the configuration as text, shown as it is.
        environment: facts of the machine and versions, shown as a table.
        title: the heading.

    Raises:
        DataError: the file cannot be written.
        PluginError: matplotlib is not installed.
    """
    best = {
        name: float(result.extra[f"best_{name}"])
        for name in result.metrics
        if isinstance(result.extra.get(f"best_{name}"), (int, float))
    }
    figures = draw_figures(recorder.series, recorder.id_counts(), best)
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{_pace(result)}</p>',
        _tiles(result, best),
        _figures(figures),
        _metrics(result, best),
        _rows(result),
        _tiers(result),
        _section("Configuration", _text(config_text)) if config_text else "",
        _section("Environment", _table(environment)) if environment else "",
    ]
    style = resources.files("sparring_train.report").joinpath("style.css").read_text("utf-8")
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )
    _write_whole(Path(path), page)


def _pace(result: TrainResult) -> str:
    taken = f"{result.steps - result.resumed_steps:,} steps in {result.seconds:,.1f} seconds"
    return f"{taken}, after {result.resumed_steps:,}." if result.resumed_steps else f"{taken}."


def _tiles(result: TrainResult, best: Mapping[str, float]) -> str:
    tiles = []
    for name, value in result.metrics.items():
        remark = f"best reachable {best[name]:.4f}" if name in best else "on the test samples"
        tiles.append((f"{value:.4f}", f"test {_shown(name)}, {remark}"))
    if result.rows:
        tables = "1 table" if len(result.rows) == 1 else f"{len(result.rows)} tables"
        tiles.append((f"{sum(result.rows.values()):,}", f"rows in {tables}"))
    if result.steps_per_second is not None:
        tiles.append((f"{result.steps_per_second:,.1f}", "steps each second, evaluation included"))
    cells = (
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(remark)}</span></div>'
        for value, remark in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _figures(figures: list[Figure]) -> str:
    if not figures:
        return ""
    # As images the drawings keep their names to themselves: ids of one never meet another's.
    shown = (
        f"<figure><h3>{escape(figure.title)}</h3><figcaption>{escape(figure.caption)}</figcaption>"
        f'<img alt="{escape(figure.title)}" '
        f'src="data:image/svg+xml;base64,{base64.b64encode(figure.svg).decode()}"></figure>'
        for figure in figures
    )
    return "<h2>Figures</h2>" + "\n".join(shown)


def _metrics(result: TrainResult, best: Mapping[str, float]) -> str:
    head = '<tr><th>Metric on the test samples</th><th class="number">Reached</th>'
    head += '<th class="number">Best reachable</th><th class="number">Difference</th></tr>'
    lines = [
        _line(
            _shown(name),
            f"{value:.4f}",
            f"{best[name]:.4f}" if name in best else "not known",
            f"{value - best[name]:+.4f}" if name in best else "",
        )
        for name, value in result.metrics.items()
    ]
    return _section("Metrics", f"<table>{head}{''.join(lines)}</table>") if lines else ""


def _rows(result: TrainResult) -> str:
    if not result.rows:
        return ""
    total = sum(result.rows.values())
    head = '<tr><th>Table</th><th class="number">Rows at the end</th>'
    head += '<th class="number">Share</th></tr>'
    lines = [
        _line(name, f"{count:,}", _share(count, total))
        for name, count in sorted(result.rows.items(), key=lambda each: -each[1])
    ]
    if len(lines) > 1:
        lines.append(_line("all tables", f"{total:,}", ""))
    table = f"<table>{head}{''.join(lines)}</table>"
    if len(result.rows) > _MOST_ROWS_UNFOLDED:
        table = f"<details><summary>All {len(result.rows)} tables</summary>{table}</details>"
    return _section("Rows", table)


def _tiers(result: TrainResult) -> str:
    names = [each for tiers in result.tiers.values() for tier in tiers for each in tier]
    names = [name for name in dict.fromkeys(names) if name != "backend"]
    lines = [
        _line(
            f"{table}, tier {place}: {tier['backend']}",
            *(_number(tier.get(name, 0)) for name in names),
        )
        for table, tiers in result.tiers.items()
        for place, tier in enumerate(tiers, 1)
    ]
    if not lines:
        return ""
    cells = "".join(f'<th class="number">{escape(_shown(name))}</th>' for name in names)
    return _section("Tiers", f"<table><tr><th>Table</th>{cells}</tr>{''.join(lines)}</table>")


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _share(count: int, total: int) -> str:
    if not total:
        return ""
    share = f"{count / total:.1%}"
    return "below 0.1%" if count and share == "0.0%" else share


def _line(name: str, *numbers: str) -> str:
    cells = "".join(f'<td class="number">{escape(number)}</td>' for number in numbers)
    return f"<tr><td>{escape(name)}</td>{cells}</tr>"


def _table(facts: Mapping[str, str]) -> str:
    lines = (
        f"<tr><th>{escape(str(name))}</th><td>{escape(str(value))}</td></tr>"
        for name, value in facts.items()
    )
    return f"<table>{''.join(lines)}</table>"


def _text(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def _section(title: str, content: str) -> str:
    return f'<h2>{escape(title)}</h2><div class="box">{content}</div>'


def _shown(name: str) -> str:
    return name.upper() if name in ("auc", "rmse") else name.replace("_", " ")


def _write_whole(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(text, "utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{path}: the report cannot be written: {error}", path=str(path)) from error
