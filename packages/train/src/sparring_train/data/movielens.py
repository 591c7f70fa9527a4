"""MovieLens ``ratings.csv``: one rating a line, ids as they stand in the file."""

from __future__ import annotations

import math
from os import PathLike
from pathlib import Path
from typing import IO

import numpy as np

from sparring.errors import DataError, InvalidArgumentError
from sparring_train.data.batches import RatingBatch, concatenate
from sparring_train.data.fields import Decoded, decode_decimals, decode_integers
from sparring_train.data.lines import LineFormat, TextBlock, malformed, open_file, read_blocks

__all__ = ["read_ratings"]

_REQUIRED = ("userId", "movieId", "rating")
_KNOWN = (*_REQUIRED, "timestamp")
_LONGEST_HEADER = 1 << 16
_WHOLE = "a whole number that fits into 64 bits"


def read_ratings(
    path: str | PathLike[str], *, lowest_rating: float = 0.0, highest_rating: float = 5.0
) -> RatingBatch:
    """All ratings of a file, in its order.

    The first line names the columns ``userId``, ``movieId``, ``rating`` and, if there is one,
    ``timestamp``, in any order, with commas between them. Ids are whole numbers and stay as
    they are; timestamps are checked and dropped. A file whose name ends in ``.gz`` is unpacked.

    Args:
        path: the file.
        lowest_rating: a rating below it is refused.
        highest_rating: a rating above it is refused.

    Raises:
        DataError: the file is missing, empty or no ``ratings.csv``, or a line is malformed;
            with `path`, `row` (from 1, the header being row 1) and `column` as attributes.
    """
    if not (math.isfinite(lowest_rating) and lowest_rating < highest_rating < math.inf):
        raise InvalidArgumentError(
            f"lowest_rating must be below highest_rating and both finite, found {lowest_rating} "
            f"and {highest_rating}"
        )
    path = Path(path)
    with open_file(path) as file:
        line_format = LineFormat(_read_header(file, path), b",")
        parts = [
            _decode(block, line_format.columns, lowest_rating, highest_rating)
            for block in read_blocks(file, path, line_format, first_row=2)
        ]
    if not parts:
        raise DataError(
            f"{path}: found a header and no ratings, expected at least one line after it",
            path=str(path),
        )
    return concatenate(parts)


def _read_header(file: IO[bytes], path: Path) -> tuple[str, ...]:
    expected = "the header " + ",".join(_KNOWN)
    line = file.readline(_LONGEST_HEADER)
    if not line:
        raise DataError(f"{path}: is empty, expected {expected} and ratings", path=str(path))
    try:
        # Spreadsheets put a byte order mark before the first name.
        names = tuple(line.decode("utf-8-sig").rstrip("\r\n").split(","))
    except UnicodeDecodeError as error:
        expected += " in UTF-8"
        raise malformed(path, 1, None, found=line[:80], expected=expected) from error
    for name in _REQUIRED:
        if name not in names:
            raise malformed(path, 1, name, found=line.rstrip(b"\r\n"), expected=expected)
    for at, name in enumerate(names):
        if name not in _KNOWN or name in names[:at]:
            raise malformed(path, 1, name, found=line.rstrip(b"\r\n"), expected=expected)
    return names


def _decode(
    block: TextBlock, columns: tuple[str, ...], lowest_rating: float, highest_rating: float
) -> RatingBatch:
    decoded: dict[str, Decoded] = {}
    for at, name in enumerate(columns):
        column = block.fields[:, at]
        if name == "rating":
            numbers = decode_decimals(column)
            is_valid = (numbers.values >= lowest_rating) & (numbers.values <= highest_rating)
            decoded[name] = Decoded(numbers.values, numbers.is_valid & is_valid)
        else:
            decoded[name] = decode_integers(column)
    is_wrong = ~np.logical_and.reduce([decoded[name].is_valid for name in columns])
    if is_wrong.any():
        line = int(np.argmax(is_wrong))
        at = next(i for i, name in enumerate(columns) if not decoded[name].is_valid[line])
        rating = f"a rating from {lowest_rating:g} to {highest_rating:g}"
        raise block.refusal(line, at, columns[at], rating if columns[at] == "rating" else _WHOLE)
    return RatingBatch(
        users=decoded["userId"].values,
        items=decoded["movieId"].values,
        ratings=decoded["rating"].values.astype(np.float32),
    )
