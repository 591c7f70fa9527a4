"""Ids of strings in data engines: functions on Arrow arrays, for Polars, DuckDB, Ray and Spark.

`sparring.hash_strings` has one definition, so an engine that prepares data computes the ids of the
training and of the servers. This module imports an engine only when its function is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow
from pyarrow import types

from sparring import hash_strings

if TYPE_CHECKING:
    import duckdb
    import polars

__all__ = ["hash_column", "hash_polars", "register_duckdb"]


def hash_column(strings: Any) -> pyarrow.Array:
    """Returns the ids of the strings of an Arrow column; null stays null.

    Args:
        strings: Arrow array or chunked array of strings, of dictionaries of strings, or of lists of
            strings.

    Returns:
        Arrow array of int64, or of lists of int64.

    Raises:
        InvalidArgumentError: The column contains no strings.

    Examples:
        >>> import pyarrow
        >>> from sparring_train import hash_column
        >>> hash_column(pyarrow.array(["tent", None])).to_pylist()
        [-3411233715330347278, None]
    """
    if isinstance(strings, pyarrow.ChunkedArray):
        chunks = strings.chunks or [pyarrow.array([], strings.type)]
        return pyarrow.concat_arrays([hash_column(each) for each in chunks])
    kind = strings.type
    if types.is_list(kind) or types.is_large_list(kind):
        lists = pyarrow.ListArray if types.is_list(kind) else pyarrow.LargeListArray
        # A mask requires offsets that are not a slice. A list that is null may have values, too.
        offsets = pyarrow.array(strings.offsets.to_numpy())
        mask = strings.is_null() if strings.null_count else None
        return lists.from_arrays(offsets, hash_column(strings.values), mask=mask)
    if types.is_dictionary(kind):
        return hash_column(strings.dictionary).take(strings.indices)
    if types.is_string_view(kind) or types.is_null(kind):
        strings = strings.cast(pyarrow.large_string())
    if not strings.null_count:
        return pyarrow.array(hash_strings(strings))
    ids = hash_strings(strings.fill_null(""))
    return pyarrow.array(ids, mask=strings.is_null().to_numpy(zero_copy_only=False))


def hash_polars(expression: polars.Expr) -> polars.Expr:
    """Returns the ids of an expression of Polars, which runs on whole columns.

    Args:
        expression: Expression of strings, for example ``pl.col("item")``.

    Examples:
        Adds a column::

            frame.with_columns(item_id=hash_polars(pl.col("item")))
    """
    import polars

    def hash_series(series: polars.Series) -> polars.Series:
        return polars.Series(series.name, hash_column(series.to_arrow()), polars.Int64)

    return expression.map_batches(hash_series, return_dtype=polars.Int64)


def register_duckdb(connection: duckdb.DuckDBPyConnection) -> None:
    """Adds the SQL function ``hash_strings(VARCHAR) -> BIGINT`` to a connection of DuckDB.

    Args:
        connection: Connection that gets the function.

    Examples:
        Queries ids::

            register_duckdb(connection)
            connection.sql("select hash_strings(item) from 'clicks.parquet'")
    """
    connection.create_function(
        "hash_strings",
        hash_column,
        ["VARCHAR"],
        "BIGINT",
        type="arrow",
        null_handling="special",
    )
