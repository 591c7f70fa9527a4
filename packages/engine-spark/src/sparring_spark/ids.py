"""Replaces columns of strings by their ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow

from sparring.errors import InvalidArgumentError, PluginError
from sparring_train import hash_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

__all__ = ["hash_strings"]


def hash_strings(frame: DataFrame, columns: str | Sequence[str]) -> DataFrame:
    """Returns a data frame in which columns of strings contain the ids of the strings.

    Runs as a function of `DataFrame.mapInArrow`, without a Python object per string. The packages
    sparring-spark and pyarrow must be installed on the executors.

    Args:
        frame: The data.
        columns: One or several columns of strings or of arrays of strings. They become bigint, or
            arrays of bigint; null stays null.

    Raises:
        InvalidArgumentError: A column does not exist or does not contain strings.
        PluginError: pyspark is not installed.

    Examples:
        Prepares files for training::

            clicks = sparring_spark.hash_strings(spark.read.parquet("clicks"), ["user", "item"])
            clicks.write.parquet("clicks-with-ids")
    """
    try:
        from pyspark.sql import types
    except ImportError as error:
        raise PluginError(
            f"sparring-spark needs pyspark, which cannot be imported: {error}; run pip install "
            '"sparring-spark[spark]"'
        ) from error
    wanted = frozenset([columns] if isinstance(columns, str) else columns)
    unknown = [each for each in sorted(wanted) if each not in frame.columns]
    if unknown:
        raise InvalidArgumentError(
            f"hash_strings: found no column {unknown[0]!r}, expected one of {', '.join(frame.columns)}; "
            "correct the name"
        )
    fields = []
    for field in frame.schema.fields:
        kind: DataType = field.dataType
        if field.name in wanted:
            if kind == types.StringType():
                kind = types.LongType()
            elif kind == types.ArrayType(types.StringType(), getattr(kind, "containsNull", True)):
                kind = types.ArrayType(types.LongType(), kind.containsNull)
            else:
                raise InvalidArgumentError(
                    f"hash_strings: column {field.name!r} has the type {kind.simpleString()}, expected "
                    "string or array<string>; cast it, or leave it out"
                )
        fields.append(types.StructField(field.name, kind, field.nullable))

    def replace(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            names = batch.schema.names
            arrays = [
                hash_column(array) if name in wanted else array
                for name, array in zip(names, batch.columns, strict=True)
            ]
            yield pyarrow.RecordBatch.from_arrays(arrays, names=names)

    return frame.mapInArrow(replace, types.StructType(fields))
