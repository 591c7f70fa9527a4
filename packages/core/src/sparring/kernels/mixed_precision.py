"""Mixed precision: narrow rows are converted to float32 for computations, and rounded afterwards.

Float32 and float64 rows are returned unchanged, without a copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import _native
from sparring.contracts.device.kernel_set import KernelSet
from sparring.contracts.device.kernels import DeviceArray, Rounding
from sparring.contracts.tables.table import TableConfig
from sparring.kernels import functions

__all__ = [
    "read_embeddings",
    "read_state",
    "to_computing_rows",
    "to_stored_rows",
    "write_embeddings",
    "write_state",
]

_Array = npt.NDArray[Any]


def read_embeddings(table: TableConfig, rows: _Array) -> _Array:
    """Returns the embeddings of stored rows in the computing dtype.

    Args:
        table: the table.
        rows: ``(n, width)`` of the table's dtype, or only the first `embedding_width` columns.

    Returns:
        ``(n, dim)``; a view of `rows` if they have the computing dtype.

    Examples:
        >>> import numpy as np
        >>> from sparring import TableConfig
        >>> from sparring.contracts import read_embeddings, write_embeddings
        >>> table = TableConfig("item", dim=4, dtype="int8")
        >>> rows = np.zeros((1, table.width), table.numpy_dtype)
        >>> write_embeddings(table, rows, np.float32([[0, 1, 127, -127]]))
        >>> read_embeddings(table, rows).tolist()
        [[0.0, 1.0, 127.0, -127.0]]
    """
    stored = table.embeddings(rows)
    return functions.decode(stored) if table.is_narrow else stored


def write_embeddings(table: TableConfig, rows: _Array, embeddings: _Array) -> None:
    """Stores embeddings in rows; narrow dtypes are rounded to nearest.

    Args:
        table: the table.
        rows: ``(n, width)`` of the table's dtype, C-contiguous; changed in place.
        embeddings: ``(n, dim)``
    """
    if table.is_narrow:
        functions.encode(np.asarray(embeddings, table.computing_dtype), table.embeddings(rows))
    else:
        table.embeddings(rows)[...] = embeddings


def read_state(table: TableConfig, rows: _Array) -> _Array:
    """Returns the optimizer state of stored rows in the computing dtype.

    Args:
        table: the table.
        rows: ``(n, width)`` of the table's dtype, C-contiguous.

    Returns:
        ``(n, state_width)``; a view of `rows` unless the dtype is int8.
    """
    if table.dtype != "int8":
        return table.state(rows)
    return _native.decode_states(rows, table.dim, table.state_width)


def write_state(table: TableConfig, rows: _Array, state: _Array) -> None:
    """Stores optimizer state in rows; int8 rows are rounded to nearest.

    Args:
        table: the table.
        rows: ``(n, width)`` of the table's dtype, C-contiguous; changed in place.
        state: ``(n, state_width)`` or ``(state_width,)``
    """
    if table.dtype != "int8":
        table.state(rows)[...] = state
        return
    shape = (len(rows), table.state_width)
    states = np.ascontiguousarray(np.broadcast_to(state, shape), table.computing_dtype)
    _native.encode_states(states, rows, table.dim)


def to_computing_rows(kernels: KernelSet, table: TableConfig, rows: DeviceArray) -> DeviceArray:
    """Converts stored rows to the computing dtype, with the state directly after the embedding.

    Args:
        kernels: kernel set of the device of the rows.
        table: the table.
        rows: ``(n, width)`` of the table's dtype.

    Returns:
        ``(n, dim + state_width)`` of the computing dtype; `rows` itself if it has this dtype.
    """
    if not table.is_narrow:
        return rows
    shape = (len(rows), table.dim + table.state_width)
    computing = kernels.arrays.empty(shape, table.computing_dtype.name)
    computing[:, : table.dim] = kernels.decode(rows[:, : table.embedding_width])
    if table.dtype == "int8":
        computing[:, table.dim :] = read_state(table, rows)
    elif table.state_width:
        computing[:, table.dim :] = _state_of(kernels, table, rows)
    return computing


def to_stored_rows(
    kernels: KernelSet, table: TableConfig, rows: DeviceArray, rounding: Rounding
) -> DeviceArray:
    """Converts rows of `to_computing_rows` to stored rows; narrow rows are rounded stochastically.

    Args:
        kernels: kernel set of the device of the rows.
        table: the table.
        rows: ``(n, dim + state_width)`` of the computing dtype.
        rounding: the keys of the rows, and the seed of the table.

    Returns:
        ``(n, width)`` of the table's dtype; `rows` itself if no rounding is needed.
    """
    if not table.is_narrow:
        return rows
    arrays = kernels.arrays
    # Set to zero, so that equal rows have equal bytes in the gap.
    stored: Any = arrays.empty((len(rows), table.width), table.dtype)
    stored[:] = 0
    embeddings: Any = arrays.empty((len(rows), table.dim), table.computing_dtype.name)
    embeddings[:] = rows[:, : table.dim]
    kernels.encode(embeddings, stored[:, : table.embedding_width], rounding)
    if table.dtype == "int8":
        states = np.ascontiguousarray(rows[:, table.dim :])
        keys = np.ascontiguousarray(rounding.keys)
        _native.encode_states(states, stored, table.dim, keys, rounding.seed, rounding.step)
    elif table.state_width:
        _state_of(kernels, table, stored)[:] = rows[:, table.dim :]
    return stored


def _state_of(kernels: KernelSet, table: TableConfig, rows: DeviceArray) -> DeviceArray:
    # Elements of a 16-bit table have two bytes.
    return kernels.arrays.view(rows[:, table.state_begin // 2 :], table.computing_dtype.name)
