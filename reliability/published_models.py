"""Compares a published model with a snapshot of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import sparring_packed
from sparring import Snapshot, scan_rows

__all__ = ["check_published"]


def check_published(folder: Path, snapshot: Snapshot) -> None:
    """Raises AssertionError if the newest version in a folder of serving snapshots has other rows or
    parameters than a snapshot."""
    with sparring_packed.open(folder, verify="all") as served:
        assert served.version.step == snapshot.step, f"published {served.version}"
        for table in snapshot.tables:
            for chunk in scan_rows(snapshot, table):
                rows = chunk.rows[:, : snapshot.tables[table].dim]
                assert (served.lookup(table, chunk.keys) == rows).all(), f"other rows of {table}"
        arrays, _ = sparring_packed.decode_parameters(served.read_model("parameters").content)
    assert arrays, "no parameters were published"
    saved = snapshot.state("torch").arrays.values()
    for name, array in arrays.items():
        assert any(np.array_equal(array, each) for each in saved), f"other parameter {name}"
