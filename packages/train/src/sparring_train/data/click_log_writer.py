"""Writes click logs in Criteo format: as text with tabs, or as Parquet."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
from pyarrow import parquet

from sparring_train.data.click_log import ClickLog
from sparring_train.data.criteo_format import COLUMNS, NUM_FEATURES, NUM_INTEGERS

__all__ = ["text_of", "whole_file", "write_parquet", "write_tsv"]

Characters = npt.NDArray[np.uint8]

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_SHIFTS = np.arange(28, -1, -4, dtype=np.int64)
_TAB, _NEWLINE = ord("\t"), ord("\n")


def write_tsv(path: str | PathLike[str], chunks: Iterable[ClickLog]) -> None:
    """Writes one line a row: label, 13 integers, 26 ids of 8 hex digits; nothing where missing.

    The file appears when it is whole; one of that name is replaced.

    Raises:
        OSError: it cannot be written.
    """
    with whole_file(path) as temporary, temporary.open("wb") as file:
        for chunk in chunks:
            file.write(text_of(chunk))


def write_parquet(path: str | PathLike[str], chunks: Iterable[ClickLog]) -> None:
    """Writes the same columns, ids as hex text; each chunk is a row group of its own.

    The file appears when it is whole; one of that name is replaced.

    Raises:
        OSError: it cannot be written.
    """
    types = [pyarrow.int8()] + [pyarrow.int64()] * NUM_INTEGERS + [pyarrow.string()] * NUM_FEATURES
    schema = pyarrow.schema(list(zip(COLUMNS, types, strict=True)))
    with (
        whole_file(path) as temporary,
        parquet.ParquetWriter(temporary, schema) as writer,
    ):
        for chunk in chunks:
            writer.write_table(pyarrow.table(_arrow_columns(chunk), schema=schema))


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


def text_of(log: ClickLog) -> bytes:
    """The rows as lines of text."""
    # A row is built with each field at its greatest width, and what is 0 is then left out.
    fields = [_digits(log.labels.astype(np.int64)[:, None], np.zeros((len(log), 1), np.bool_))]
    fields.append(_digits(log.integers, log.is_missing_integer))
    fields.append(_hex_digits(log.ids, log.is_missing_id))
    text = np.concatenate([each.reshape(len(log), -1) for each in fields], axis=1)
    text[:, -1] = _NEWLINE
    return bytes(text[text != 0])


def _digits(numbers: npt.NDArray[np.int64], is_missing: npt.NDArray[np.bool_]) -> Characters:
    """``(n, columns, width)``: decimal digits and a tab, 0 where there is no digit."""
    size = np.abs(numbers)
    num_digits = len(str(int(size.max(initial=0))))
    powers = 10 ** np.arange(num_digits - 1, -1, -1, dtype=np.int64)
    rest = size[..., None] // powers
    digits = (rest % 10 + ord("0")).astype(np.uint8)
    digits[..., :-1] *= rest[..., :-1] > 0
    sign = np.where(numbers < 0, ord("-"), 0).astype(np.uint8)[..., None]
    text = np.concatenate([sign, digits, np.full_like(sign, _TAB)], axis=-1)
    text[..., :-1] *= ~is_missing[..., None]
    return text


def _hex_digits(ids: npt.NDArray[np.int64], is_missing: npt.NDArray[np.bool_]) -> Characters:
    digits = _HEX[(ids[..., None] >> _SHIFTS) & 15] * ~is_missing[..., None]
    tabs = np.full((*ids.shape, 1), _TAB, np.uint8)
    return np.concatenate([digits, tabs], axis=-1)


def _arrow_columns(log: ClickLog) -> list[Any]:
    integers = zip(log.integers.T, log.is_missing_integer.T, strict=True)
    text = _hex_digits(log.ids, log.is_missing_id)[..., :-1]
    ids = np.ascontiguousarray(text.transpose(1, 0, 2)).view("S8")[..., 0].astype("U8")
    return [
        pyarrow.array(log.labels.astype(np.int8)),
        *(pyarrow.array(numbers, mask=is_missing) for numbers, is_missing in integers),
        *(
            pyarrow.array(text, mask=missing)
            for text, missing in zip(ids, log.is_missing_id.T, strict=True)
        ),
    ]
