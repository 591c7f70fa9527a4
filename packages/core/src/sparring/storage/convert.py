"""Conversion of rows with one optimizer's state to rows with another's."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.storage.optional import LOAD_NOTE, PART_NOTE
from sparring.contracts.storage.results import Columns
from sparring.contracts.storage.storage import Storage, read_note, write_note
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError

__all__ = ["format_conversion_command", "copy_embeddings"]


def format_conversion_command(
    backend: str, options: Mapping[str, Any], found: TableConfig, asked: TableConfig
) -> str:
    """The command that copies the rows of `found` into a storage for rows of `asked`.

    It leaves the old rows: options that hold a path get ``-converted`` at their end. Where
    there is none, the place to write to is left for the reader to fill in.
    """
    words = ["sparring", "convert", backend, found.name, "--dim", str(found.dim)]
    if found.dtype != "float32":
        words += ["--dtype", found.dtype]
    words += ["--from", _format_state(found), "--to", _format_state(asked)]
    written = {
        name: f"{value}-converted" if _is_path(value) else value for name, value in options.items()
    }
    for name, value in options.items():
        words += ["--option", f"{name}={value}"]
    for name, value in written.items():
        words += ["--into", f"{name}={value}"]
    command = shlex.join(words)
    return command if written != dict(options) else f"{command} --into PLACE=ELSEWHERE"


def _is_path(value: object) -> bool:
    return isinstance(value, PurePath) or (
        isinstance(value, str) and "/" in value and "://" not in value
    )


def _format_state(table: TableConfig) -> str:
    """The name of the state in ``sparring convert``: sparring's own methods by their names."""
    from sparring.updates.builtin import BUILTIN_METHODS

    if table.state_method in BUILTIN_METHODS:
        return table.state_method
    return str(table.state_width) if table.state_width else "none"


def copy_embeddings(source: Storage, target: Storage, state: npt.NDArray[Any]) -> int:
    """Writes the embedding of each row of `source` to `target`, with `state` behind it.

    Scores are copied if `target` takes them. The notes of `source` are copied first: which ranks' rows
    they are, and that a load of them was cut short.

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
    for name in (LOAD_NOTE, PART_NOTE):
        if (text := read_note(source, name)) is not None:
            write_note(target, name, text)
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
