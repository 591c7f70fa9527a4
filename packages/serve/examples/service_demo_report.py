"""The report of `service_demo.py`: pushes, lookups, versions and events over time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
from demo_page import BLUE, GREEN, RED, svg_of, write_page

if TYPE_CHECKING:
    from service_demo import Lookup, Seen, Step

__all__ = ["write_report"]

_BIN_SECONDS = 0.5


def write_report(path: Path, seen: Seen) -> str:
    """Writes the page; returns its figures as text."""
    introduction = (
        f"{len(seen.steps)} trainers without ranks ({', '.join(seen.steps)}) pushed gradients to a table "
        "in two shards. It was saved and published; a shard was killed, started again with the snapshot "
        "and replayed the pushes since then from its log. "
    )
    if seen.lookups:
        introduction += (
            "Meanwhile a client asked an inference server for rows of another table, which a training "
            "of its own wrote to Redis; the server's cache followed the change notes. "
        )
    if seen.reads:
        introduction += (
            "A program in C++ answered from the published versions, newer ones as they came. "
        )
    introduction += (
        f"All ran on one machine with {os.cpu_count()} cores, and took time from each other. "
    )
    return write_page(
        path,
        "A table that learns in a service",
        introduction + " ".join(seen.left_out),
        _figure(seen) + _timeline(seen),
        _facts(seen),
        [text for _, text in seen.lookup_errors],
    )


def _begin(seen: Seen) -> float:
    """When the first of trainers and clients was answered."""
    firsts = [each[0].at for each in (*seen.steps.values(), seen.lookups) if each]
    return min(firsts)


def _timeline(seen: Seen) -> str:
    begin = _begin(seen)
    rows = "".join(
        f"<tr><td>{number}</td><td>{each.at - begin:.2f} s</td>"
        f'<td style="text-align:left">{escape(each.text)}</td></tr>'
        for number, each in enumerate(seen.events.values(), 1)
    )
    return f"<h2>Timeline</h2><table>{rows}</table><h2>Figures</h2>"


def _facts(seen: Seen) -> list[tuple[str, str]]:
    killed, saved_step = seen.events["killed"].at, seen.saved[0][1]
    answering = seen.events["restarted"].at
    facts = [(f"pushes of {name}", f"{len(steps):,}") for name, steps in seen.steps.items()]
    facts += [
        (f"loss of {name}, first and last 10 steps", f"{_loss(steps[:10])}, {_loss(steps[-10:])}")
        for name, steps in seen.steps.items()
    ]
    all_steps = [each for steps in seen.steps.values() for each in steps]
    facts += [
        ("step of a trainer, median", f"{median(each.seconds for each in all_steps) * 1e3:.1f} ms"),
        ("step of a trainer, longest", f"{max(each.seconds for each in all_steps):.2f} s"),
        ("shard was away", f"{answering - killed:.2f} s"),
        (
            "pushes since the save that the shard replayed",
            f"{seen.restarted_step - saved_step:,}",
        ),
        ("rows of the last snapshot", f"{seen.num_rows:,}"),
    ]
    if seen.lookups:
        facts += _facts_of_lookups(seen.lookups, len(seen.lookup_errors), killed, answering)
    if seen.reads:
        facts.append(("answers of the program in C++", f"{len(seen.reads):,}"))
    givers = "service, files, C++" if seen.reads else "service, files"
    return [*facts, (f"last rows compared, bit by bit: {givers}", f"{seen.num_compared:,}")]


def _facts_of_lookups(
    lookups: Sequence[Lookup], num_errors: int, killed: float, answering: float
) -> list[tuple[str, str]]:
    milliseconds = [each.seconds * 1e3 for each in lookups]
    away = [each.seconds * 1e3 for each in lookups if killed <= each.at <= answering]
    facts = [
        ("lookups of the inference server", f"{len(lookups):,}"),
        ("lookups that failed", f"{num_errors:,}"),
        ("latency of a lookup, median", f"{median(milliseconds):.1f} ms"),
        ("latency of a lookup, 99 %", f"{np.percentile(milliseconds, 99):.1f} ms"),
    ]
    if away:
        facts.append(("lookups while the shard was away", f"{len(away):,}"))
        facts.append(("their latency, median", f"{median(away):.1f} ms"))
    facts.append(
        ("age of cached rows, median", f"{median(each.age_seconds for each in lookups):.2f} s")
    )
    return facts


def _loss(steps: Sequence[Step]) -> str:
    return f"{np.mean([each.loss for each in steps]):.3f}"


def _figure(seen: Seen) -> str:
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    begin = _begin(seen)
    end = max(each.at for each in seen.events.values()) - begin + 2 * _BIN_SECONDS
    num_parts = 4 if seen.lookups else 3
    picture = Figure(figsize=(9, 2.75 * num_parts), layout="constrained")
    rates, losses, versions, *others = picture.subplots(num_parts, 1, sharex=True)
    colours = dict(zip(seen.steps, (BLUE, GREEN, RED), strict=False))
    bins = np.arange(0, end + _BIN_SECONDS, _BIN_SECONDS)
    for name, steps in seen.steps.items():
        at = np.array([each.at - begin for each in steps])
        counts, _ = np.histogram(at, bins)
        rates.stairs(counts / _BIN_SECONDS, bins, color=colours[name], label=name)
        loss = [each.loss for each in steps]
        losses.plot(at, loss, ".", color=colours[name], markersize=3, alpha=0.6, label=name)
    rates.set(ylabel="pushes / s", ylim=0)
    rates.set_title("Pushes by trainer; numbers are those of the timeline below", pad=38)
    rates.legend(loc="lower left", ncols=3)
    losses.set(ylabel="loss", yscale="log", title="Loss of a batch, by trainer")
    losses.yaxis.set_major_formatter(ScalarFormatter())
    losses.yaxis.set_minor_formatter(NullFormatter())
    losses.legend(loc="upper right", ncols=3, markerscale=4)

    for name, told, colour in (
        ("saved", seen.saved, RED),
        ("published", seen.published, GREEN),
        ("answers of the program in C++", seen.reads, BLUE),
    ):
        if told:
            at = [when - begin for when, _ in told]
            marker = "." if told is seen.reads else "o"
            versions.plot(
                at, [step for _, step in told], marker, color=colour, label=name,
                markersize=3 if told is seen.reads else 8,
            )  # fmt: skip
    newest = max(step for _, step in (*seen.saved, *seen.published))
    versions.set(ylabel="step", title="Versions", ylim=(0, 1.4 * newest))
    versions.legend(loc="upper left", ncols=3)

    for axes in others:
        at = [each.at - begin for each in seen.lookups]
        milliseconds = [each.seconds * 1e3 for each in seen.lookups]
        axes.plot(at, milliseconds, ".", color=BLUE, markersize=2, alpha=0.5)
        for when, _ in seen.lookup_errors:
            axes.axvline(when - begin, color="black", linewidth=0.5)
        axes.set(
            ylabel="milliseconds", yscale="log",
            title="Latency of a lookup from the inference server; a black line is an error",
        )  # fmt: skip
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())

    every = (rates, losses, versions, *others)
    for number, event in enumerate(seen.events.values(), 1):
        # Neighbours are written at three heights.
        rates.annotate(
            f"{number}", (event.at - begin, 1), (0, 3 + 10 * (number % 3)), ("data", "axes fraction"),
            "offset points", ha="center", fontsize=9,
        )  # fmt: skip
        for axes in every:
            axes.axvline(event.at - begin, color="#7b8794", linewidth=0.8, linestyle="--")
    for axes in every:
        axes.grid(color="#e4e7eb")
    every[-1].set(xlabel="seconds since the first answer", xlim=(0, end))
    return svg_of(picture)
