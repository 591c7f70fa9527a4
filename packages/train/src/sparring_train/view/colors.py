"""Values of a file by which the map is colored, such as the genres of films."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import hash_strings
from sparring.errors import DataError
from sparring_train.view.numbers import Floats

__all__ = ["Colors", "read_colors"]

_MAX_GROUPS = 8
"""Number of groups with a color of their own; less frequent ones share one."""
_OTHER = "other"


@dataclass(frozen=True, slots=True)
class Colors:
    """A column of a file.

    Args:
        name: Name of the column.
        keys: ``(n,)`` int64, sorted.
        values: ``(n,)`` float64: numbers, or indices of `groups`.
        groups: Texts of the groups; empty for numbers.
    """

    name: str
    keys: npt.NDArray[np.int64]
    values: Floats
    groups: tuple[str, ...]

    def of(self, keys: npt.NDArray[np.int64]) -> Floats:
        """Returns the values of keys; NaN for keys that the file lacks."""
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        values: Floats = np.where(self.keys[at] == keys, self.values[at], np.nan)
        return values


def read_colors(path: Path, column: str) -> Colors:
    """Reads a column of a Parquet or CSV file, whose first column contains the ids.

    Raises:
        DataError: The file cannot be read, or the columns are missing or have no suitable type.
    """
    import pyarrow
    from pyarrow import csv, parquet, types

    try:
        table: Any = (
            csv.read_csv(path) if path.suffix.lower() == ".csv" else parquet.read_table(path)
        )
    except (OSError, pyarrow.ArrowException) as error:
        fix = "pass the path of a CSV or Parquet file"
        raise _error(path, f"reading it as CSV or Parquet failed: {error}; {fix}") from error
    names = table.column_names
    if names.count(column) != 1 or names[0] == column:
        listed = ", ".join(names[1:]) or "nothing"
        raise _error(path, f"found --color-by {column}, expected a column after the ids: {listed}")
    table = table.select([names[0], column]).drop_null()
    if not table.num_rows:
        raise _error(path, "it has no row with an id and a value; use another file or column")
    ids, values = (each.combine_chunks() for each in table.columns)
    if types.is_integer(ids.type):
        keys = ids.cast(pyarrow.int64(), safe=False).to_numpy()
    elif types.is_string(ids.type) or types.is_large_string(ids.type):
        keys = hash_strings(ids)
    else:
        raise _error(path, f"its ids have the type {ids.type}; write whole numbers or strings")
    groups: tuple[str, ...] = ()
    if types.is_integer(values.type) or types.is_floating(values.type):
        numbers = values.cast(pyarrow.float64(), safe=False).to_numpy()
    else:
        numbers, groups = _group(values.cast(pyarrow.string()))
    keys, first = np.unique(keys, return_index=True)
    return Colors(column, keys, numbers[first], groups)


def _group(values: Any) -> tuple[Floats, tuple[str, ...]]:
    """Returns the index of each text in the groups, which begin with the most frequent text."""
    encoded = values.dictionary_encode()
    texts, places = encoded.dictionary.to_pylist(), encoded.indices.to_numpy()
    order = np.argsort(-np.bincount(places, minlength=len(texts)), kind="stable")
    rank = np.empty(len(texts))
    rank[order] = np.arange(len(texts))
    if len(texts) <= _MAX_GROUPS:
        return rank[places], tuple(texts[each] for each in order)
    own = _MAX_GROUPS - 1
    groups = (*(texts[each] for each in order[:own]), _OTHER)
    return np.minimum(rank, own)[places], groups


def _error(path: Path, problem: str) -> DataError:
    return DataError(f"--colors: {path}: {problem}", path=str(path))
