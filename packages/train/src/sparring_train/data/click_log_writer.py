"""Writes click logs in Criteo format: as text with tabs, or as Parquet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import csv, parquet

from sparring_train.data.click_log import ClickLog
from sparring_train.data.criteo_format import COLUMNS, NUM_FEATURES, NUM_INTEGERS

__all__ = ["whole_file", "write_parquet", "write_tsv"]

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_SHIFTS = np.arange(28, -1, -4, dtype=np.int64)
_TYPES = [pyarrow.int8()] + [pyarrow.int64()] * NUM_INTEGERS + [pyarrow.string()] * NUM_FEATURES
_SCHEMA = pyarrow.schema(list(zip(COLUMNS, _TYPES, strict=True)))


def write_tsv(path: str | PathLike[str], chunks: Iterable[ClickLog]) -> None:
    """Writes one line a row: label, 13 integers, 26 ids of 8 hex digits; nothing where missing.

    The file appears when it is whole; one of that name is replaced.

    Raises:
        OSError: it cannot be written.
    """
    options = csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with (
        whole_file(path) as temporary,
        csv.CSVWriter(temporary, _SCHEMA, write_options=options) as writer,
    ):
        for chunk in chunks:
            writer.write_table(_table(chunk))


def write_parquet(path: str | PathLike[str], chunks: Iterable[ClickLog]) -> None:
    """Writes the same columns, ids as hex text; each chunk is a row group of its own.

    The file appears when it is whole; one of that name is replaced.

    Raises:
        OSError: it cannot be written.
    """
    with whole_file(path) as temporary, parquet.ParquetWriter(temporary, _SCHEMA) as writer:
        for chunk in chunks:
            writer.write_table(_table(chunk))


@contextmanager
def whole_file(path: str | PathLike[str]) -> Iterator[Path]:
    """A temporary path next to `path`, renamed to it if all goes well and removed otherwise."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _table(log: ClickLog) -> Any:
    integers = zip(log.integers.T, log.is_missing_integer.T, strict=True)
    digits = np.ascontiguousarray(_HEX[(log.ids.T[..., None] >> _SHIFTS) & 15])
    texts = digits.view("S8")[..., 0].astype("U8")
    ids = zip(texts, log.is_missing_id.T, strict=True)
    columns = [
        pyarrow.array(log.labels.astype(np.int8)),
        *(pyarrow.array(values, mask=is_missing) for values, is_missing in [*integers, *ids]),
    ]
    return pyarrow.table(columns, schema=_SCHEMA)
