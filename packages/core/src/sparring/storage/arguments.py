"""Checks of what users pass to a storage. Each returns the array that a twin may rely on.

An integer array of another width or sign is converted where every value fits; floats are
refused, because an id that was rounded is another id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError

if TYPE_CHECKING:
    from sparring.storage.contract import Columns, Keys, Rows, Scores
    from sparring.table import TableConfig

__all__ = ["check_columns", "check_keys", "check_out", "check_rows", "check_scores"]

_INT64_MAX = np.iinfo(np.int64).max


def check_keys(keys: npt.ArrayLike, table: str, *, unique: bool) -> Keys:
    """Returns ``(n,)`` C-contiguous int64; refuses what cannot be that exactly."""
    array = np.asarray(keys)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.ndim != 1:
        raise InvalidArgumentError(
            f"keys of table {table!r} must have one dimension, found shape {array.shape}; "
            "flatten them first",
            table=table,
            shape=array.shape,
        )
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"keys of table {table!r} must be int64, found dtype {array.dtype}; convert them, "
            "and make sure that no fraction is lost",
            table=table,
            dtype=str(array.dtype),
        )
    if array.dtype == np.uint64 and array.size and int(array.max()) > _INT64_MAX:
        raise InvalidArgumentError(
            f"keys of table {table!r}: {int(array.max())} does not fit int64; view the array as "
            "int64 if the bits are what counts",
            table=table,
        )
    array = np.ascontiguousarray(array, dtype=np.int64)
    if unique and len(array) > 1:
        ordered = np.sort(array)
        repeats = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(repeats):
            raise InvalidArgumentError(
                f"keys of table {table!r} must be unique within one call, found {int(repeats[0])} "
                "more than once; deduplicate first (sparring.kernels.dedup)",
                table=table,
                key=int(repeats[0]),
            )
    return array


def check_rows(rows: npt.ArrayLike, count: int, table: TableConfig) -> Rows:
    """Returns ``(count, width)`` C-contiguous rows of the table's dtype."""
    array = np.asarray(rows)
    expected = (count, table.width)
    if array.shape != expected:
        raise InvalidArgumentError(
            f"rows of table {table.name!r} must have shape {expected} (keys, width), found "
            f"{array.shape}",
            table=table.name,
            expected=expected,
            shape=array.shape,
        )
    if array.dtype != table.numpy_dtype:
        raise InvalidArgumentError(
            f"rows of table {table.name!r} must be {table.numpy_dtype}, found {array.dtype}; "
            "convert them",
            table=table.name,
            dtype=str(array.dtype),
        )
    return np.ascontiguousarray(array)


def check_scores(scores: npt.ArrayLike, count: int, table: str) -> Scores:
    """Returns ``(count,)`` C-contiguous uint64."""
    array = np.asarray(scores)
    if array.shape != (count,):
        raise InvalidArgumentError(
            f"scores for table {table!r} must have shape ({count},), found {array.shape}",
            table=table,
            shape=array.shape,
        )
    is_whole = array.dtype.kind in "iu"
    if array.size and (not is_whole or array.min() < 0):
        raise InvalidArgumentError(
            f"scores for table {table!r} must be whole numbers from 0 to 2**64-1, found "
            + (f"{array.min()}" if is_whole else f"dtype {array.dtype}"),
            table=table,
            dtype=str(array.dtype),
        )
    return np.ascontiguousarray(array, dtype=np.uint64)


def check_columns(columns: Columns | tuple[int, int] | None, table: TableConfig) -> Columns:
    """Returns the range asked for, or the whole row."""
    from sparring.storage.contract import Columns

    if columns is None:
        return Columns(0, table.width)
    span = Columns(*columns)
    if not 0 <= span.begin < span.end <= table.width:
        raise InvalidArgumentError(
            f"columns {tuple(span)} of table {table.name!r}: must be a non-empty range within "
            f"(0, {table.width})",
            table=table.name,
            columns=tuple(span),
        )
    return span


def check_out(out: npt.NDArray[Any], shape: tuple[int, int], table: TableConfig) -> None:
    """Refuses an output array that a twin could not fill in place."""
    if out.shape != shape or out.dtype != table.numpy_dtype or not out.flags.c_contiguous:
        raise InvalidArgumentError(
            f"out for table {table.name!r} must be a C-contiguous {shape} array of "
            f"{table.numpy_dtype}, found shape {out.shape}, dtype {out.dtype}, "
            f"C-contiguous {out.flags.c_contiguous}",
            table=table.name,
            shape=out.shape,
        )
