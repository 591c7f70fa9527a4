"""From rows with one optimizer's state to rows with another's."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError
from sparring.storage.contract import Columns, Storage

__all__ = ["copy_embeddings"]


def copy_embeddings(source: Storage, target: Storage, state: npt.NDArray[Any]) -> int:
    """Writes the embedding of each row of `source` to `target`, with `state` behind it.

    Scores go along where `target` takes them.

    Args:
        source: of any state.
        target: of the same dim and dtype; it should be empty.
        state: ``(state_width of target,)`` of its computing dtype: the state of every row.

    Returns:
        How many rows were written.

    Raises:
        InvalidArgumentError: the tables differ in more than their state.
    """
    asked, found = target.table, source.table
    if (asked.dim, asked.dtype) != (found.dim, found.dtype):
        raise InvalidArgumentError(
            f"table {asked.name!r}: rows of dim {asked.dim} and {asked.dtype} were asked for, the "
            f"source has dim {found.dim} and {found.dtype}",
            table=asked.name,
        )
    takes_scores = target.capabilities.scores == "given"
    count = 0
    for chunk in source.scan(columns=Columns(0, found.dim)):
        if not len(chunk):
            continue
        # Zeros, because a row may have a gap before its state.
        rows = np.zeros((len(chunk), asked.width), asked.numpy_dtype)
        asked.embeddings(rows)[...] = chunk.rows
        asked.state(rows)[...] = state
        target.upsert(chunk.keys, rows, chunk.scores if takes_scores else None)
        count += len(chunk)
    return count
