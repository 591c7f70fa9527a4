"""MovieLens ``ratings.csv``: one rating a line, ids as they stand in the file."""

from __future__ import annotations

import math
import re
from functools import partial
from os import PathLike
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow

from sparring.errors import DataError, InvalidArgumentError
from sparring_train.data.batches import RatingBatch, concatenate
from sparring_train.data.delimited_text import (
    Column,
    TextFormat,
    is_whole_number,
    malformed,
    open_file,
    read_blocks,
)

__all__ = ["read_ratings"]

_REQUIRED = ("userId", "movieId", "rating")
_KNOWN = (*_REQUIRED, "timestamp")
_LONGEST_HEADER = 1 << 16
_WHOLE = pyarrow.int64(), is_whole_number, "a whole number that fits into 64 bits"
_DECIMAL = re.compile(rb"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


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
    is_rating = partial(_is_rating, lowest=lowest_rating, highest=highest_rating)
    rating = pyarrow.float64(), is_rating, f"a rating from {lowest_rating:g} to {highest_rating:g}"
    decode = partial(_decode, lowest_rating=lowest_rating, highest_rating=highest_rating)
    with open_file(path) as file:
        columns = tuple(
            Column(name, *(rating if name == "rating" else _WHOLE))
            for name in _read_header(file, path)
        )
        text_format = TextFormat(columns, separator=b",", alphabet=b"-+.0123456789eE")
        parts = list(read_blocks(file, path, text_format, decode, first_row=2))
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


def _is_rating(field: bytes, lowest: float, highest: float) -> bool:
    # float() alone would also take "1_0", " 1", "infinity" and digits of other scripts.
    return _DECIMAL.fullmatch(field) is not None and lowest <= float(field) <= highest


def _decode(table: Any, lowest_rating: float, highest_rating: float) -> RatingBatch | None:
    if any(column.null_count for column in table.columns):
        return None
    ratings = table.column("rating").to_numpy()
    if not ((ratings >= lowest_rating) & (ratings <= highest_rating)).all():
        return None
    return RatingBatch(
        users=np.array(table.column("userId")),
        items=np.array(table.column("movieId")),
        ratings=ratings.astype(np.float32),
    )
