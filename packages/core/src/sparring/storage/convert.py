"""Converts rows with the state of one optimizer to rows with the state of another."""

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
from sparring.kernels.mixed_precision import write_state

__all__ = ["format_conversion_command", "copy_embeddings"]


def format_conversion_command(
    backend: str, options: Mapping[str, Any], found: TableConfig, asked: TableConfig
) -> str:
    """Returns the command that copies the rows of `found` into a storage for rows of `asked`.

    The command does not change the old rows: it appends ``-converted`` to options that contain a path.
    Without such an option, the command contains a placeholder for the target.

    Args:
        backend: Name of the storage backend of both storages.
        options: Options of the storage with the old rows.
        found: Table of the old rows, with their state.
        asked: Table of the new rows, with their state.
    """
    words = ["sparring", "convert", backend, found.name, "--dim", str(found.dim)]
    if found.dtype != "float32":
        words += ["--dtype", found.dtype]
    words += ["--from", _format_state(found), "--to", _format_state(asked)]
    written = {
        name: f"{value}-converted" if _is_path(value) else value for name, value in options.items()
    }
    for name, value in options.items():
        words += ["--from-option", f"{name}={value}"]
    for name, value in written.items():
        words += ["--to-option", f"{name}={value}"]
    command = shlex.join(words)
    return command if written != dict(options) else f"{command} --to-option PLACE=ELSEWHERE"


def _is_path(value: object) -> bool:
    return isinstance(value, PurePath) or (
        isinstance(value, str) and "/" in value and "://" not in value
    )


def _format_state(table: TableConfig) -> str:
    """Returns the name of the state for ``sparring convert``: the method's name if it is built in, else
    its width."""
    from sparring.updates.builtin import BUILTIN_METHODS

    if table.state_method in BUILTIN_METHODS:
        return table.state_method
    return str(table.state_width) if table.state_width else "none"


def copy_embeddings(source: Storage, target: Storage, state: npt.NDArray[Any]) -> int:
    """Writes the embedding of each row of `source` to `target`, followed by `state`.

    Copies scores if `target` accepts them. First copies the notes of `source` that record which ranks'
    rows it contains and whether a load was interrupted.

    Args:
        source: Storage to read, with any state.
        target: Storage to write, with the same dim and dtype; it should be empty.
        state: ``(state_width of target,)`` in its computing dtype, the state for every row.

    Returns:
        The number of rows written.

    Raises:
        InvalidArgumentError: The tables differ in dim or dtype.
    """
    asked, found = target.table, source.table
    if (asked.dim, asked.dtype) != (found.dim, found.dtype):
        raise InvalidArgumentError(
            f"table {asked.name!r}: the target has dim {asked.dim} and dtype {asked.dtype}, but the "
            f"source has dim {found.dim} and dtype {found.dtype}; declare the target with the dim and "
            "dtype of the source",
            table=asked.name,
        )
    for name in (LOAD_NOTE, PART_NOTE):
        if (text := read_note(source, name)) is not None:
            write_note(target, name, text)
    takes_scores = target.capabilities.scores == "given"
    count = 0
    for chunk in source.scan(columns=Columns(0, found.embedding_width)):
        if not len(chunk):
            continue
        # Zeros, because a row may have padding before its state.
        rows = np.zeros((len(chunk), asked.width), asked.numpy_dtype)
        asked.embeddings(rows)[...] = chunk.rows
        write_state(asked, rows, state)
        target.upsert(chunk.keys, rows, chunk.scores if takes_scores else None)
        count += len(chunk)
    return count
