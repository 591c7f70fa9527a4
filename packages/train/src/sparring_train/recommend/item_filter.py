"""Selects items by their attributes in Parquet files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc

from sparring.errors import InvalidArgumentError
from sparring_train.config.run import RunConfig
from sparring_train.recommend.row_blocks import RowBlocks

__all__ = ["read_items"]

_CONDITION = re.compile(r"\s*([^<>=!]+?)\s*(<=|>=|!=|==?|<|>)\s*(.*?)\s*")
_COMPARISONS = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_BLOCK_ROWS = 1 << 16


def read_items(
    config: RunConfig, path: str, item: str, conditions: Sequence[str]
) -> npt.NDArray[np.int64]:
    """Returns the keys of the items in files that fulfil all conditions, sorted.

    Args:
        config: configuration of the run.
        path: Parquet files with a column of items and columns of attributes.
        item: the feature of items.
        conditions: ``COLUMN=VALUE``, or with ``!=``, ``<``, ``<=``, ``>`` or ``>=``. A row whose
            attribute is null fulfils no condition.

    Raises:
        DataError: a file cannot be read, or a column is missing.
        InvalidArgumentError: a condition is invalid.
    """
    parsed = [_parse(each) for each in conditions]
    rows = RowBlocks(config, path, [item], others=[name for name, _, _ in parsed])
    found = [np.empty(0, np.int64)]
    for begin in range(0, len(rows), _BLOCK_ROWS):
        batch, arrays = rows.read(begin, min(begin + _BLOCK_ROWS, len(rows)))
        column = batch.ids[item]
        is_wanted = np.ones(len(batch), np.bool_)
        for name, comparison, text in parsed:
            is_wanted &= _holds(arrays[name], name, comparison, text)
        found.append(column.take(is_wanted).ids)
    return np.unique(np.concatenate(found))


def _parse(condition: str) -> tuple[str, str, str]:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        raise InvalidArgumentError(
            f"--where: found {condition!r}, expected COLUMN=VALUE, or !=, <, <=, > or >= instead of =; "
            "correct it"
        )
    return match[1], match[2], match[3]


def _holds(array: Any, name: str, comparison: str, text: str) -> npt.NDArray[np.bool_]:
    try:
        value = pyarrow.scalar(text).cast(array.type)
        compared = _COMPARISONS[comparison](array, value)
    except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
        raise InvalidArgumentError(
            f"--where: comparing column {name!r} of type {array.type} with {text!r} failed: {error}; "
            "give a value of the column's type"
        ) from None
    holds: npt.NDArray[np.bool_] = compared.fill_null(False).to_numpy(zero_copy_only=False)
    return holds
