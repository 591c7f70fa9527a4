"""`python -m benchmarks.internet_plots [--anchors FILE] [--output PNG]`: plots the plan for 10¹¹ ids, and
prints the table of docs/explanation/internet-scale.md.

Everything except the anchors is simulated and marked so. Anchors are the output of
`benchmarks.internet_anchor --output`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.internet_anchor import PLAN
from sparring_plan.planning.inputs import read_inputs
from sparring_plan.simulation.sheet import SheetRow, simulate_sheet

__all__ = ["draw", "table_of"]

RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
BLUE, RED, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#7b8794"


def draw(
    rows: Sequence[SheetRow],
    capacity: dict[str, int],
    anchors: Sequence[dict[str, Any]],
    path: Path,
) -> None:
    """Draws the plots: step, samples per second and price, memory, and anchors if there are any.

    Args:
        rows: rows of the sheet.
        capacity: kind of memory → bytes per rank.
        anchors: measured anchors.
        path: path of the image.
    """
    from matplotlib.figure import Figure

    found = [(row, row.step) for row in rows if row.step is not None]
    ranks = [row.ranks for row, _ in found]
    picture = Figure(figsize=(11, 7.5), layout="constrained")
    step, speed, memory, last = picture.subplots(2, 2).ravel()
    step.plot(ranks, [each.seconds * 1e3 for _, each in found], "o-", color=BLUE)
    step.set(title="Step, simulated", ylabel="ms")
    speed.plot(ranks, [row.samples_per_second for row, _ in found], "o-", color=BLUE)
    speed.set(title="Samples per second, simulated", ylabel="samples/s")
    for (kind, room), colour in zip(sorted(capacity.items()), (RED, GREEN), strict=False):
        held = [(row.memory_bytes or {}).get(kind) or float("nan") for row, _ in found]
        memory.plot(ranks, [each / 2**30 for each in held], "o-", color=colour, label=kind)
        memory.axhline(room / 2**30, color=colour, linestyle="--", linewidth=1)
    memory.set(title="Bytes of the fullest rank, simulated; dashed: capacity", ylabel="GiB")
    memory.legend(frameon=False)
    for axes in (step, speed, memory):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(ranks, [f"{each:,}" for each in ranks])
        axes.set_xlabel("ranks")
    if anchors:
        _draw_anchors(last, anchors)
    else:
        _draw_price(last, found)
    for axes in (step, speed, memory, last):
        axes.grid(color="#e4e7eb", linewidth=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110, metadata={"Software": None})


def _draw_anchors(axes: Any, anchors: Sequence[dict[str, Any]]) -> None:
    ids = [each["num_ids"] for each in anchors]
    measured = [median(each["measured_seconds"]) * 1e3 for each in anchors]
    spread = [
        [
            middle - min(each["measured_seconds"]) * 1e3,
            max(each["measured_seconds"]) * 1e3 - middle,
        ]
        for each, middle in zip(anchors, measured, strict=True)
    ]
    axes.errorbar(
        ids, measured, yerr=list(zip(*spread, strict=True)), fmt="o", color=RED, label="measured"
    )
    predicted = [each["predicted_seconds"] * 1e3 for each in anchors]
    axes.plot(ids, predicted, "o", color=BLUE, fillstyle="none", label="predicted")
    axes.set(
        title="Step of one rank on this machine, each size with its own costs",
        xlabel="ids",
        ylabel="ms",
        xscale="log",
    )
    axes.set_ylim(0, max(measured + predicted) * 1.3)
    axes.legend(frameon=False, loc="upper left")


def _draw_price(axes: Any, found: Sequence[tuple[SheetRow, Any]]) -> None:
    ranks = [row.ranks for row, _ in found]
    axes.plot(ranks, [row.price_per_billion_samples for row, _ in found], "o-", color=GREY)
    axes.set(title="Price of 10⁹ samples, simulated", xlabel="ranks", xscale="log", yscale="log")


def table_of(rows: Sequence[SheetRow]) -> str:
    """Returns the sheet as a Markdown table."""
    lines = [
        "| ranks | storage | step | samples/s | bound by | GiB in memory, on flash | hits in memory | "
        "far MB | messages | price per hour | price of 10⁹ samples | memory full |",
        "|---:|---|---:|---:|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        if row.step is None or row.memory_bytes is None:
            lines.append(f"| {row.ranks:,} | no plan fits |")
            continue
        host, disk = (row.memory_bytes.get(kind, 0) / 2**30 for kind in ("host", "disk"))
        hits = next(iter((row.hit_rates or {}).values()), None)
        full = (row.memory_full or "").partition(",")[0].partition(":")[0]
        cells = [
            f"{row.ranks:,}", ", ".join(row.storages), f"{row.step.seconds * 1e3:.0f} ms",
            f"{row.samples_per_second:,.0f}", row.step.bound_by, f"{host:.0f}, {disk:.0f}",
            "all" if hits is None else f"{hits[0]:.1%}", f"{row.step.far_bytes / 1e6:.1f}",
            f"{row.step.num_messages:,}", f"{row.price_per_hour:,.0f}",
            f"{row.price_per_billion_samples:.2f}", full,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Draws the plots and prints the table for the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.internet_plots")
    parser.add_argument("--anchors", type=Path, nargs="*", default=[])
    parser.add_argument("--output", type=Path, default=Path("docs/explanation/internet-scale.png"))
    given = parser.parse_args(arguments)
    inputs, calibration = read_inputs(PLAN)
    rows = simulate_sheet(inputs, calibration, RANKS)
    anchors = [each for path in given.anchors for each in json.loads(path.read_text())]
    draw(rows, dict(inputs.topology.memory), anchors, given.output)
    print(table_of(rows))
    print(f"written: {given.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
