"""The report of `serving_demo.py`: staleness and latency over time, in one HTML file without scripts."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from demo_page import BLUE, GREEN, RED, svg_of, write_page

if TYPE_CHECKING:
    from serving_demo import Seen

__all__ = ["write_report"]


def write_report(path: Path, seen: Seen) -> str:
    """Writes the page; returns its figures as text."""
    return write_page(
        path,
        "Serving while training",
        "A model trained and saved snapshots; each was published, as a delta where one was due, "
        "and taken by two servers, a shard each, while a client went on asking both. All of them ran on "
        f"one machine with {os.cpu_count()} cores: latency has the time that training took from the "
        "servers.",
        _figure(seen),
        _facts(seen),
        [text for _, text in seen.errors],
    )


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
        ("saved by training", seen.saved, RED),
        ("published", [each[:2] for each in seen.published], GREEN),
    ):
        steps.step(
            [*(when - begin for when, _ in events), end], [*(step for _, step in events), events[-1][1]],
            where="post", color=colour, label=name,
        )  # fmt: skip
    steps.step(
        at, [each.step for each in seen.pulls], where="post", color=BLUE, label="in the answers"
    )
    steps.set(ylabel="step of training", title="Versions")
    steps.legend(loc="upper left")
    ages.plot(at, [each.age_seconds for each in seen.pulls], color=BLUE)
    ages.set(
        ylabel="seconds", title="Staleness: time since the answer's version was published", ylim=0
    )
    latency.plot(at, milliseconds, ".", color=BLUE, markersize=2, alpha=0.4, label="a pull")
    seconds = at.astype(int)
    for share, name, colour in ((50, "median of a second", GREEN), (99, "99 %", RED)):
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
    return svg_of(picture)
