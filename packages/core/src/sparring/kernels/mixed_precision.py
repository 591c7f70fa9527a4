"""Mixed precision: 16-bit rows, computed with as float32, and rounded back.

Float32 and float64 rows are computed with as they are: nothing here copies them.
"""

from __future__ import annotations

import numpy as np

from sparring.contracts.kernels import Rounding
from sparring.contracts.results import Rows
from sparring.contracts.table import TableConfig
from sparring.kernels import functions as kernels

__all__ = ["computing_embeddings", "computing_rows", "stored_rows"]


def computing_embeddings(table: TableConfig, embeddings: Rows) -> Rows:
    """``(n, dim)`` of the computing dtype from ``(n, dim)`` of the table's."""
    return kernels.decode(embeddings) if table.is_16_bit else embeddings


def computing_rows(table: TableConfig, rows: Rows) -> Rows:
    """Embedding and state side by side, without a gap.

    Args:
        rows: ``(n, width)`` of the table's dtype.

    Returns:
        ``(n, dim + state_width)`` of the computing dtype: `rows` itself where that is theirs.
    """
    if not table.is_16_bit:
        return rows
    computing = np.empty((len(rows), table.dim + table.state_width), table.computing_dtype)
    computing[:, : table.dim] = kernels.decode(table.embeddings(rows))
    computing[:, table.dim :] = table.state(rows)
    return computing


def stored_rows(table: TableConfig, rows: Rows, rounding: Rounding) -> Rows:
    """Rows of `computing_rows` for a storage: embeddings rounded stochastically.

    Args:
        rows: ``(n, dim + state_width)`` of the computing dtype.
        rounding: of the table, for the keys of the rows.

    Returns:
        ``(n, width)`` of the table's dtype: `rows` itself where nothing is to be rounded.
    """
    if not table.is_16_bit:
        return rows
    # Zeros, so that the gap of equal rows is equal.
    stored = np.zeros((len(rows), table.width), table.numpy_dtype)
    kernels.encode(rows[:, : table.dim], table.embeddings(stored), rounding)
    table.state(stored)[...] = rows[:, table.dim :]
    return stored
