"""Summaries of the tables of a snapshot: rows, bytes and norms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sparring import Snapshot, TableConfig, TableDescription, scan_rows
from sparring.contracts import Rows, read_embeddings

__all__ = ["TableSummary", "summarize"]


@dataclass(frozen=True, slots=True)
class TableSummary:
    """Summary of a table of a snapshot, over its chain.

    Args:
        table: Description of the table.
        num_rows: Number of distinct keys that are not erased.
        num_files: Number of files in the chain.
        size_bytes: Size of these files.
        norm_min: Minimum Euclidean norm of an embedding; None without rows.
        norm_mean: Mean norm.
        norm_max: Maximum norm.
        num_non_finite: Number of embeddings with NaN or infinity, which the norms exclude.
    """

    table: TableDescription
    num_rows: int
    num_files: int
    size_bytes: int
    norm_min: float | None
    norm_mean: float | None
    norm_max: float | None
    num_non_finite: int


def summarize(snapshot: Snapshot, table: str) -> TableSummary:
    """Reads all rows of a table, in bounded memory.

    Raises:
        UnknownTableError: The table does not exist.
        SnapshotDamagedError: A file is damaged.
        SnapshotIOError: The file system failed.
    """
    described = snapshot.tables[table]
    config = described.config
    files = [entry for each in snapshot.chain for entry in each.files(table)]
    num_rows = num_finite = 0
    least, most, total = np.inf, 0.0, 0.0
    for chunk in scan_rows(snapshot, table):
        norms = _norms(config, chunk.rows)
        finite = norms[np.isfinite(norms)]
        num_rows += len(chunk)
        num_finite += len(finite)
        if len(finite):
            least, most = min(least, float(finite.min())), max(most, float(finite.max()))
            total += float(finite.sum())
    has_norms = num_finite > 0
    return TableSummary(
        table=described,
        num_rows=num_rows,
        num_files=len(files),
        size_bytes=sum(entry.size_bytes for entry in files),
        norm_min=least if has_norms else None,
        norm_mean=total / num_finite if has_norms else None,
        norm_max=most if has_norms else None,
        num_non_finite=num_rows - num_finite,
    )


def _norms(config: TableConfig, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    # Use float64, because squares of float32 could overflow.
    wide = read_embeddings(config, rows).astype(np.float64)
    squares: np.ndarray[tuple[int], np.dtype[np.float64]] = np.einsum("ij,ij->i", wide, wide)
    norms: np.ndarray[tuple[int], np.dtype[np.float64]] = np.sqrt(squares)
    return norms
