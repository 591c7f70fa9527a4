"""Writes the report of a run: JSON, a page in Markdown, and its timeline."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from soak.processes import Sample
from soak.verdicts import Resources

_AFTER_SECONDS = 30.0

__all__ = ["FaultRecord", "Result", "write_report"]


@dataclass(slots=True)
class FaultRecord:
    """A fault of a run.

    Args:
        seconds: time since the begin of the run.
        kind: kind of the fault.
        detail: what happened.
        end_seconds: time at which it ended.
    """

    seconds: float
    kind: str
    detail: str = ""
    end_seconds: float = 0.0


@dataclass(slots=True)
class Result:
    """Everything that a run measured.

    Args:
        plan: what the run did.
        seconds: duration of the run, until all events were trained.
        faults: its faults, in their order.
        findings: a line for each violated promise.
        counts: what was compared.
        resources: resources of each process.
        samples: samples of all processes.
        progress: time, trained step and served step.
    """

    plan: Mapping[str, Any]
    seconds: float = 0.0
    faults: list[FaultRecord] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    resources: Mapping[str, Resources] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    progress: list[tuple[float, int, int]] = field(default_factory=list)

    def fault_before(self, seconds: float) -> str:
        """Returns the fault before a time, for findings."""
        before = [each for each in self.faults if each.seconds <= seconds]
        if not before:
            return f"at {seconds:.0f} s, before the first fault"
        last = before[-1]
        return (
            f"at {seconds:.0f} s, {seconds - last.seconds:.0f} s after {last.kind} ({last.detail})"
        )

    def pause_seconds(self, fault: FaultRecord, at: int) -> float | None:
        """Returns the longest time without a step that had not been trained (1) or served (2) before,
        from a fault until 30 s after its end; None if there was no such step."""
        end = max(fault.seconds, fault.end_seconds) + _AFTER_SECONDS
        last, highest = 0.0, -1
        longest: float | None = None
        for each in self.progress:
            if each[at] <= highest:
                continue
            if each[0] >= fault.seconds and last <= end:
                longest = max(longest or 0.0, each[0] - max(last, fault.seconds - 1))
            last, highest = each[0], each[at]
        return longest


def write_report(result: Result, output: Path) -> Path:
    """Returns the path of the page."""
    content = {
        "plan": result.plan,
        "seconds": round(result.seconds),
        "findings": result.findings,
        "counts": result.counts,
        "faults": [
            {
                **asdict(each),
                "training_pause_seconds": result.pause_seconds(each, 1),
                "serving_pause_seconds": result.pause_seconds(each, 2),
            }
            for each in result.faults
        ],
        "resources": {name: asdict(each) for name, each in result.resources.items()},
    }
    (output / "report.json").write_text(json.dumps(content, indent=1))
    with (output / "samples.jsonl").open("w") as file:
        file.writelines(json.dumps(asdict(each)) + "\n" for each in result.samples)
    _draw(result, output / "timeline.png")
    page = output / "report.md"
    page.write_text("\n".join(_lines(result)) + "\n")
    return page


def _lines(result: Result) -> list[str]:
    verdict = f"{len(result.findings)} findings" if result.findings else "no findings"
    lines = [
        "# Soak",
        "",
        f"{result.seconds / 60:.1f} minutes, {len(result.faults)} faults, {verdict}.",
    ]
    lines += ["", *(f"- {each}" for each in result.findings), "", "![Timeline](timeline.png)", ""]
    lines += ["| compared | count |", "|---|---|"]
    lines += [f"| {what} | {count:,} |" for what, count in sorted(result.counts.items())]
    lines += ["", "| time | fault | detail | longest pause of training | of new versions |"]
    lines += ["|---|---|---|---|---|"]
    for each in result.faults:
        pauses = [_seconds(result.pause_seconds(each, at)) for at in (1, 2)]
        lines.append(
            f"| {each.seconds:.0f} s | {each.kind} | {each.detail} | {' | '.join(pauses)} |"
        )
    lines += [
        "",
        "The growth per 1,000 steps is that of the heap, which is allocated and not freed, and that of "
        "the anonymous memory, which contains what malloc keeps. The limit applies to the heap.",
        "",
        "| process | starts | largest memory | heap | memory | steps | descriptors | threads |",
    ]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, found in result.resources.items():
        slopes = [
            "" if slope is None else f"{slope:+.3%}"
            for slope in (found.slope, found.anonymous_slope)
        ]
        pairs = [
            "" if pair is None else f"{pair[0]} → {pair[1]}"
            for pair in (found.descriptors, found.threads)
        ]
        memory = f"{found.largest_bytes / 2**20:.0f} MiB"
        cells = [name, str(found.num_lives), memory, *slopes, f"{found.num_steps:,}", *pairs]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def _draw(result: Result, path: Path) -> None:
    import matplotlib  # type: ignore[import-not-found,unused-ignore]

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (memory, heap, rate, stale) = pyplot.subplots(4, 1, figsize=(14, 15), sharex=True)
    lives: dict[str, list[Sample]] = defaultdict(list)
    for each in result.samples:
        lives[each.name].append(each)
    for name, samples in sorted(lives.items()):
        x = [each.seconds for each in samples]
        memory.plot(x, [each.anonymous_bytes / 2**20 for each in samples], label=name, linewidth=1)
        used = [None if each.heap_bytes is None else each.heap_bytes / 2**20 for each in samples]
        heap.plot(x, used, linewidth=1)
    memory.set_ylabel("anonymous memory, MiB")
    heap.set_ylabel("heap, MiB")
    if lives:
        memory.legend(fontsize=6, ncols=2, loc="upper left", bbox_to_anchor=(1, 1))
    if len(result.progress) > 10:
        times, trained, served = (
            np.array(each, np.float64) for each in zip(*result.progress, strict=True)
        )
        seconds = times[5:] - times[:-5]
        rate.plot(times[5:], np.maximum(0, trained[5:] - trained[:-5]) / seconds, linewidth=1)
        per_second = float(result.plan["steps_per_second"])
        stale.plot(times, np.maximum(0, trained - served) / per_second, linewidth=1)
    rate.set_ylabel("steps per second")
    stale.set_ylabel("served version is behind the training, s of events")
    stale.set_xlabel("seconds")
    for axes in (memory, heap, rate, stale):
        for fault in result.faults:
            axes.axvline(fault.seconds, color="tab:red", linewidth=0.5)
    for fault in result.faults:
        stale.annotate(
            fault.kind, (fault.seconds, 0), xytext=(0, -28), textcoords="offset points",
            rotation=60, fontsize=6, ha="right", va="top", xycoords=("data", "axes fraction"),
        )  # fmt: skip
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)
