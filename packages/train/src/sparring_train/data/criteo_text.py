"""Criteo click logs as text: 40 fields a line with tabs between them, plain or gzip."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sparring_train.data.batches import ClickBatch
from sparring_train.data.criteo_format import COLUMNS, MISSING_IDS, NUM_INTEGERS, transform_integers
from sparring_train.data.fields import decode_hex, decode_integers
from sparring_train.data.lines import LineFormat, TextBlock, open_file, read_blocks

__all__ = ["count_text_rows", "read_text_rows"]

_FORMAT = LineFormat(COLUMNS, b"\t")
_FIRST_ID = 1 + NUM_INTEGERS
_COUNT_BYTES = 1 << 20


def read_text_rows(path: Path) -> Iterator[ClickBatch]:
    """All rows of one file, in batches of whatever size a block of text held.

    Raises:
        DataError: the file cannot be read, or a line is malformed: file, row (from 1), column,
            what was found and what was expected are attributes.
    """
    with open_file(path) as file:
        for block in read_blocks(file, path, _FORMAT):
            yield _decode(block)


def count_text_rows(path: Path) -> int:
    """Lines of one file; a last line need not end in a newline."""
    num_lines, last = 0, b"\n"
    with open_file(path) as file:
        while data := file.read(_COUNT_BYTES):
            num_lines += data.count(b"\n")
            last = data[-1:]
    return num_lines + (last != b"\n")


def _decode(block: TextBlock) -> ClickBatch:
    fields = block.fields
    is_missing = fields.is_empty
    labels = decode_integers(fields[:, 0])
    integers = decode_integers(fields[:, 1:_FIRST_ID])
    ids = decode_hex(fields[:, _FIRST_ID:])
    is_valid = is_missing.copy()
    is_valid[:, 0] = labels.is_valid & ((labels.values == 0) | (labels.values == 1))
    is_valid[:, 1:_FIRST_ID] |= integers.is_valid
    is_valid[:, _FIRST_ID:] |= ids.is_valid
    if not is_valid.all():
        line, column = np.unravel_index(int(np.argmin(is_valid)), is_valid.shape)
        raise block.refusal(int(line), int(column), COLUMNS[column], _expected(int(column)))
    return ClickBatch(
        dense=transform_integers(integers.values, is_missing[:, 1:_FIRST_ID]),
        ids=np.where(is_missing[:, _FIRST_ID:], MISSING_IDS, ids.values),
        labels=labels.values.astype(np.float32),
    )


def _expected(column: int) -> str:
    if column == 0:
        return "a label of 0 or 1"
    if column < _FIRST_ID:
        return "a whole number that fits into 64 bits, or nothing"
    return "1 to 8 hex digits, or nothing"
