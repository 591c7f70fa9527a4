"""Mixed precision: 16-bit rows, computed with as float32, and rounded back.

Float32 and float64 rows are computed with as they are: nothing here copies them.
"""

from __future__ import annotations

from typing import Any

from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import DeviceArray, Rounding
from sparring.contracts.tables.table import TableConfig

__all__ = ["to_computing_rows", "to_stored_rows"]


def to_computing_rows(kernels: KernelSet, table: TableConfig, rows: DeviceArray) -> DeviceArray:
    """Embedding and state next to each other, without a gap.

    Args:
        kernels: of the device of the rows.
        rows: ``(n, width)`` of the table's dtype.

    Returns:
        ``(n, dim + state_width)`` of the computing dtype: `rows` itself where that is theirs.
    """
    if not table.is_16_bit:
        return rows
    shape = (len(rows), table.dim + table.state_width)
    computing = kernels.arrays.empty(shape, table.computing_dtype.name)
    computing[:, : table.dim] = kernels.decode(rows[:, : table.dim])
    if table.state_width:
        computing[:, table.dim :] = _state_of(kernels, table, rows)
    return computing


def to_stored_rows(
    kernels: KernelSet, table: TableConfig, rows: DeviceArray, rounding: Rounding
) -> DeviceArray:
    """Rows of `to_computing_rows` for a storage: embeddings rounded stochastically.

    Args:
        kernels: of the device of the rows.
        rows: ``(n, dim + state_width)`` of the computing dtype.
        rounding: of the table, for the keys of the rows.

    Returns:
        ``(n, width)`` of the table's dtype: `rows` itself where nothing is to be rounded.
    """
    if not table.is_16_bit:
        return rows
    arrays = kernels.arrays
    # Zeros, so that the gap of equal rows is equal.
    stored: Any = arrays.empty((len(rows), table.width), table.dtype)
    stored[:] = 0
    embeddings: Any = arrays.empty((len(rows), table.dim), table.computing_dtype.name)
    embeddings[:] = rows[:, : table.dim]
    kernels.encode(embeddings, stored[:, : table.dim], rounding)
    if table.state_width:
        _state_of(kernels, table, stored)[:] = rows[:, table.dim :]
    return stored


def _state_of(kernels: KernelSet, table: TableConfig, rows: DeviceArray) -> DeviceArray:
    # Elements of a 16-bit table have two bytes.
    return kernels.arrays.view(rows[:, table.state_begin // 2 :], table.computing_dtype.name)
