"""The file of the events of a join that wait for the watermark, beside the files of its store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow

from sparring.errors import DataError
from sparring_train.data.join.joiner import Event

__all__ = ["take_waiting", "write_waiting"]

_FILE = "waiting.arrow"
_SCHEMA = pyarrow.schema(
    {
        "time": pyarrow.float64(),
        "is_action": pyarrow.bool_(),
        "key": pyarrow.binary(),
        "row": pyarrow.large_binary(),
        "label": pyarrow.float64(),
        "partition": pyarrow.int64(),
        "step": pyarrow.int64(),
    }
)
"""Fields of `Event`."""


def write_waiting(folder: Path, events: Sequence[Event]) -> None:
    """Writes events to a folder."""
    columns = [list(each) for each in zip(*events, strict=True)] or [[]] * len(_SCHEMA)
    table = pyarrow.table(columns, schema=_SCHEMA)
    with pyarrow.ipc.new_file(folder / _FILE, table.schema) as file:
        file.write_table(table)


def take_waiting(folder: Path) -> list[Event]:
    """Returns the events of a folder, and removes their file.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = folder / _FILE
    try:
        with pyarrow.ipc.open_file(path) as file:
            columns = file.read_all().select(_SCHEMA.names).to_pydict()
    except (OSError, KeyError, pyarrow.ArrowException) as error:
        raise DataError(
            f"reading the open impressions failed: {path}: {error}; resume from an earlier snapshot",
            path=str(path),
        ) from error
    path.unlink()
    return [Event(*each) for each in zip(*columns.values(), strict=True)]
