"""Writes the parts of a job for a command, with a progress bar."""

from __future__ import annotations

from typing import Annotated

import typer

from sparring_cli import print_json, print_note, progress_bar
from sparring_train.recommend.part_files import PartFolder
from sparring_train.recommend.part_jobs import (
    PartJob,
    PartsResult,
    compute_parts,
    count_parts,
    select_parts,
)

__all__ = ["PartsOption", "write_parts"]

PartsOption = Annotated[
    str | None,
    typer.Option(
        metavar="I/N|BEGIN:END",
        help="Compute only some parts of --output: those of worker I of N, counted from 0, or a range. "
        "Default: all.",
    ),
]


def write_parts(
    job: PartJob,
    output: PartFolder,
    unit: str,
    parts: str | None,
    *,
    as_json: bool,
    recall: float | None = None,
) -> PartsResult:
    """Computes parts with a progress bar, and prints what was done."""
    selected = select_parts(count_parts(job), parts)
    rows = [min(job.part_rows, job.num_rows - part * job.part_rows) for part in selected]
    with progress_bar(f"writing {output.url}", unit, sum(rows), as_json=as_json) as advance:
        result = compute_parts(job, output, selected, on_part=advance)
    if as_json:
        told = {
            "output": output.url,
            unit: sum(rows),
            "parts": len(selected),
            "computed": result.num_computed,
            "is_complete": result.is_complete,
        }
        print_json(told if recall is None else {**told, "recall": recall})
    else:
        if recall is not None:
            print_note(f"recall {recall:.4f} of the exact results for a sample of users")
        kept = f", {result.num_kept:,} existed" if result.num_kept else ""
        rest = "" if result.is_complete else "; other parts are missing"
        print_note(f"{output.url}: {result.num_computed:,} parts computed{kept}{rest}")
    return result
