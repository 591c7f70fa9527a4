"""The report of `serving_demo.py`: staleness and latency over time, in one HTML file without scripts."""

from __future__ import annotations

import io
import os
from html import escape
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from serving_demo import Seen

__all__ = ["write_report"]

# Okabe and Ito's colours, which stay apart for colour-blind readers.
_BLUE, _RED, _GREEN = "#0072B2", "#D55E00", "#009E73"
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1f2933}table{border-collapse:collapse}td,th{padding:.25rem 1rem .25rem 0;text-align:left}"
    "td:last-child{text-align:right}svg{width:100%;height:auto}"
)


def write_report(path: Path, seen: Seen) -> str:
    """Writes the page; returns its figures as text."""
    facts = _facts(seen)
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in facts
    )
    errors = "".join(f"<li>{escape(text)}</li>" for _, text in seen.errors[:20])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>sparring: serving while training</title><style>{_STYLE}</style></head><body>"
        "<h1>Serving while training</h1>"
        "<p>A model trained and saved snapshots; each was published, as a delta where one was due, "
        "and taken by two servers, a shard each, while a client went on asking both. All of them ran on "
        f"one machine with {os.cpu_count()} cores: latency has the time that training took from the "
        "servers.</p>"
        f"{_figure(seen)}<table>{rows}</table>"
        f"{'<h2>Errors</h2><ul>' + errors + '</ul>' if errors else ''}</body></html>\n",
        "utf-8",
    )
    return "\n".join(f"{name:<58}{value:>18}" for name, value in facts)


def _facts(seen: Seen) -> list[tuple[str, str]]:
    pulls = seen.pulls
    milliseconds = [each.seconds * 1e3 for each in pulls]
    delays = _delays(seen)
    deltas = sum(is_delta for _, _, is_delta in seen.published)
    num_ids = sum(each.num_ids for each in pulls)
    return [
        ("snapshots saved by training", f"{len(seen.saved)}"),
        ("published: full, deltas", f"{len(seen.published) - deltas}, {deltas}"),
        ("versions that the client was answered from", f"{len({each.step for each in pulls})}"),
        ("pulls, of both shards", f"{len(pulls):,}"),
        ("pulls that failed", f"{len(seen.errors):,}"),
        ("pulls of more than one version", f"{sum(each.num_versions != 1 for each in pulls):,}"),
        (
            "ids without a row",
            f"{num_ids - sum(each.num_found for each in pulls):,} of {num_ids:,}",
        ),
        ("pulls of an earlier version than the one before", f"{_backwards(seen):,}"),
        ("rows compared with the files, bit by bit", f"{seen.num_compared:,}"),
        ("latency, median", f"{median(milliseconds):.1f} ms"),
        ("latency, 99 %", f"{np.percentile(milliseconds, 99):.1f} ms"),
        ("from a saved snapshot to the first answer, median", f"{median(delays):.2f} s"),
        ("from a saved snapshot to the first answer, longest", f"{max(delays):.2f} s"),
        ("age of rows, median", f"{median(each.age_seconds for each in pulls):.2f} s"),
        ("age of rows, oldest", f"{max(each.age_seconds for each in pulls):.2f} s"),
    ]


def _delays(seen: Seen) -> list[float]:
    """Seconds from the commit of a snapshot to the first answer with it."""
    first: dict[int, float] = {}
    for each in seen.pulls:
        first.setdefault(each.step, each.at)
    begin = seen.pulls[0].at
    return [first[step] - at for at, step in seen.saved if step in first and at > begin] or [
        float("nan")
    ]


def _backwards(seen: Seen) -> int:
    steps = [each.step for each in seen.pulls]
    return sum(later < earlier for earlier, later in pairwise(steps))


def _figure(seen: Seen) -> str:
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    begin = seen.pulls[0].at
    at = np.array([each.at - begin for each in seen.pulls])
    milliseconds = np.array([each.seconds * 1e3 for each in seen.pulls])
    end = at[-1]
    picture = Figure(figsize=(9, 9), layout="constrained")
    steps, ages, latency = picture.subplots(3, 1, sharex=True)
    for name, events, colour in (
        ("saved by training", seen.saved, _RED),
        ("published", [each[:2] for each in seen.published], _GREEN),
    ):
        steps.step(
            [*(when - begin for when, _ in events), end], [*(step for _, step in events), events[-1][1]],
            where="post", color=colour, label=name,
        )  # fmt: skip
    steps.step(
        at, [each.step for each in seen.pulls], where="post", color=_BLUE, label="in the answers"
    )
    steps.set(ylabel="step of training", title="Versions")
    steps.legend(loc="upper left")
    ages.plot(at, [each.age_seconds for each in seen.pulls], color=_BLUE)
    ages.set(
        ylabel="seconds", title="Staleness: time since the answer's version was published", ylim=0
    )
    latency.plot(at, milliseconds, ".", color=_BLUE, markersize=2, alpha=0.4, label="a pull")
    seconds = at.astype(int)
    for share, name, colour in ((50, "median of a second", _GREEN), (99, "99 %", _RED)):
        values = [
            np.percentile(milliseconds[seconds == each], share) for each in np.unique(seconds)
        ]
        latency.step(np.unique(seconds), values, where="post", color=colour, label=name)
    for when, _ in seen.errors:
        latency.axvline(when - begin, color="black", linewidth=0.5)
    latency.set(
        ylabel="milliseconds", yscale="log", title="Latency of a pull of all tables from two shards"
    )
    latency.set(xlabel="seconds since the first answer", xlim=(0, end))
    latency.yaxis.set_major_formatter(ScalarFormatter())
    latency.legend(loc="upper right")
    # Room for the legend.
    latency.set_ylim(top=6 * milliseconds.max())
    for axes in (steps, ages, latency):
        axes.grid(color="#e4e7eb")
    file = io.StringIO()
    picture.savefig(file, format="svg")
    text = file.getvalue()
    return text[text.index("<svg") :]
