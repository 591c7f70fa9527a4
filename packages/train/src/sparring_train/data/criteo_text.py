"""Criteo click logs as text: 40 fields a line with tabs between them, plain or gzip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow

from sparring_train.data.batches import ClickBatch
from sparring_train.data.criteo_format import (
    COLUMNS,
    NUM_FEATURES,
    NUM_INTEGERS,
    OptionalNumbers,
    click_batch,
    hex_numbers,
    whole_numbers,
)
from sparring_train.data.delimited_text import (
    Column,
    TextFormat,
    is_hex_number,
    is_whole_number,
    open_file,
    read_blocks,
)

__all__ = ["read_text_rows"]

_FIRST_ID = 1 + NUM_INTEGERS


def _is_label(field: bytes) -> bool:
    return is_whole_number(field) and int(field) in (0, 1)


def _is_integer(field: bytes) -> bool:
    return not field or is_whole_number(field)


def _is_id(field: bytes) -> bool:
    return not field or is_hex_number(field)


_LABEL = pyarrow.int64(), _is_label, "a label of 0 or 1"
_INTEGER = pyarrow.int64(), _is_integer, "a whole number that fits into 64 bits, or nothing"
_ID = pyarrow.string(), _is_id, "1 to 8 hex digits, or nothing"
_FORMAT = TextFormat(
    tuple(
        Column(name, *(_LABEL if at == 0 else _INTEGER if at < _FIRST_ID else _ID))
        for at, name in enumerate(COLUMNS)
    ),
    separator=b"\t",
    alphabet=b"-0123456789abcdefABCDEF",
)


def read_text_rows(path: Path) -> Iterator[ClickBatch]:
    """All rows of one file, in batches of whatever size a block of text held.

    Raises:
        DataError: the file cannot be read, or a line is malformed: file, row (from 1), column,
            what was found and what was expected are attributes.
    """
    with open_file(path) as file:
        yield from read_blocks(file, path, _FORMAT, _decode)


def _decode(table: Any) -> ClickBatch | None:
    label, *integers = (whole_numbers(column) for column in table.columns[:_FIRST_ID])
    if label.is_missing.any() or ((label.values != 0) & (label.values != 1)).any():
        return None
    # All features at once: each call of Arrow has its price.
    texts = [chunk for column in table.columns[_FIRST_ID:] for chunk in column.chunks]
    ids = hex_numbers(pyarrow.concat_arrays(texts))
    split = zip(
        ids.values.reshape(NUM_FEATURES, -1), ids.is_missing.reshape(NUM_FEATURES, -1), strict=True
    )
    return click_batch(label, integers, [OptionalNumbers(*each) for each in split])
