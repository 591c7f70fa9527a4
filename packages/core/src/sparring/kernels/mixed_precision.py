"""Mixed precision: 16-bit rows are converted to float32 for computations, and rounded afterwards.

Float32 and float64 rows are returned unchanged, without a copy.
"""

from __future__ import annotations

from typing import Any

from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import DeviceArray, Rounding
from sparring.contracts.tables.table import TableConfig

__all__ = ["to_computing_rows", "to_stored_rows"]


def to_computing_rows(kernels: KernelSet, table: TableConfig, rows: DeviceArray) -> DeviceArray:
    """Converts stored rows to the computing dtype, with the state directly after the embedding.

    Args:
        kernels: kernel set of the device of the rows.
        table: the table.
        rows: ``(n, width)`` of the table's dtype.

    Returns:
        ``(n, dim + state_width)`` of the computing dtype; `rows` itself if it has this dtype.
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
    """Converts rows of `to_computing_rows` to stored rows; 16-bit embeddings are rounded stochastically.

    Args:
        kernels: kernel set of the device of the rows.
        table: the table.
        rows: ``(n, dim + state_width)`` of the computing dtype.
        rounding: the keys of the rows, and the seed of the table.

    Returns:
        ``(n, width)`` of the table's dtype; `rows` itself if no rounding is needed.
    """
    if not table.is_16_bit:
        return rows
    arrays = kernels.arrays
    # Set to zero, so that equal rows have equal bytes in the gap.
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
