"""A click log in Criteo format, streamed from a file or a folder in bounded memory.

Every row is a label, 13 whole numbers and 26 hex strings; any number or string may be missing.
Text files hold one row a line with tabs between the 40 fields; Parquet files hold the same
columns under names (`sparring_train.data.criteo_parquet`).

What becomes of a row
    label    0 or 1.
    integer  ``log1p(max(x, 0))`` as float32; a missing one is 0, as a zero is.
    id       the number that the hex string writes, as int64: neither hashed nor renumbered. A
             missing one of feature f (from 0) is the id ``-1 - f``, which no hex string writes
             and no other feature has, so that features may share a table.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

from sparring.errors import DataError, InvalidArgumentError
from sparring_train.data.batches import ClickBatch, check_batch_size, rebatch, take
from sparring_train.data.criteo_parquet import read_parquet_rows
from sparring_train.data.criteo_text import read_text_rows
from sparring_train.data.split import Part, check_test_fraction, uniform_of_rows

__all__ = ["SUFFIXES", "criteo_files", "read_clicks"]

SUFFIXES = (".tsv", ".txt", ".csv", ".gz", ".parquet")
"""Suffixes of the files in a folder that are read."""


def criteo_files(path: str | PathLike[str]) -> tuple[Path, ...]:
    """The files that `path` stands for, in the order in which they are read.

    A file stands for itself, whatever its name. A folder stands for the files directly in it
    whose names end in one of `SUFFIXES` and start with neither ``.`` nor ``_``, by name.

    Raises:
        DataError: there is no such file or folder, or the folder has no such file.
    """
    path = Path(path)
    if not path.is_dir():
        if not path.exists():
            raise DataError(f"{path}: no such file or folder; check the path", path=str(path))
        return (path,)
    files = sorted(
        file
        for file in path.iterdir()
        if file.suffix in SUFFIXES and file.name[0] not in "._" and file.is_file()
    )
    if not files:
        raise DataError(
            f"{path}: found no file in this folder whose name ends in one of "
            f"{', '.join(SUFFIXES)}; name a file, or a folder that holds some",
            path=str(path),
        )
    return tuple(files)


def read_clicks(
    path: str | PathLike[str],
    batch_size: int,
    *,
    part: Part | Literal["all"] = "all",
    test_fraction: float = 0.1,
    validation_fraction: float = 0.0,
    seed: int = 0,
) -> Iterator[ClickBatch]:
    """Batches of a file or folder in file order; batches run over the borders of files.

    Rows are read as they are asked for; a few megabytes are held at a time.

    Args:
        path: see `criteo_files`.
        batch_size: rows of each batch; the last one may be smaller.
        part: ``train``, ``test`` or ``validation`` keeps only the rows of that part. A row's place in
            the whole stream and the seed decide (`sparring_train.data.split.uniform_of_rows`).
        test_fraction: the share of rows in the test part, at least 0 and below 1.
        validation_fraction: the share of the other rows in the validation part, likewise.
        seed: of the split; any 64-bit number.

    Raises:
        DataError: a file is missing or malformed (with `path`, `row` and `column`), or there
            is no row at all. Files are opened while iterating, and so these are raised there.
        InvalidArgumentError: an argument is out of range.
    """
    check_batch_size(batch_size)
    check_test_fraction(test_fraction)
    check_test_fraction(validation_fraction)
    if part not in ("all", *get_args(Part)):
        names = ", ".join(repr(each) for each in ("all", *get_args(Part)))
        raise InvalidArgumentError(f"part: found {part!r}, must be one of {names}")
    rows = _read_rows(path)
    if part != "all":
        rows = _keep(rows, part, (test_fraction, validation_fraction), seed)
    return rebatch(rows, batch_size)


def _read_rows(path: str | PathLike[str]) -> Iterator[ClickBatch]:
    is_empty = True
    for file in criteo_files(path):
        read = read_parquet_rows if file.suffix == ".parquet" else read_text_rows
        for rows in read(file):
            is_empty = is_empty and not len(rows)
            yield rows
    if is_empty:
        raise DataError(f"{path}: is empty, expected rows of a click log", path=str(path))


def _keep(
    batches: Iterator[ClickBatch], part: Part, fractions: tuple[float, float], seed: int
) -> Iterator[ClickBatch]:
    test, validation = fractions
    end = test + validation * (1 - test)
    bounds = {"test": (0.0, test), "validation": (test, end), "train": (end, 1.0)}
    least, most = bounds[part]
    first_row = 0
    for batch in batches:
        uniform = uniform_of_rows(first_row, len(batch), seed=seed)
        yield take(batch, (least <= uniform) & (uniform < most))
        first_row += len(batch)
