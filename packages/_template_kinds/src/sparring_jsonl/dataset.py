"""Reads examples from lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import hash_strings
from sparring.errors import DataError
from sparring_jsonl.sections import JsonLinesData
from sparring_train import Column, ColumnBatch, OpenRequest, Schema

__all__ = ["JsonLinesDataset", "read_examples"]

_BLOCK = 8192
"""Number of lines that are converted to arrays at a time."""
_LABELS = (0, 1)
_LARGEST = float(np.finfo(np.float32).max)


class JsonLinesDataset:
    """A data set that keeps all examples of one file in memory. Each epoch has a different order.

    Every rank reads all batches in full and trains on its part of each.

    Raises:
        DataError: the file cannot be read, a line is invalid, or there are too few lines to split.
    """

    label_range = None

    def __init__(self, section: JsonLinesData, request: OpenRequest) -> None:
        self.schema: Schema = section.columns
        self._seed, self._batch_size = request.seed % 2**64, section.batch_size
        blocks = list(_read(section, section.path, has_labels=True))
        count = sum(map(len, blocks))
        num_test = round(section.test_fraction * count)
        if not 0 < num_test < count:
            raise DataError(
                f"{section.path}: found {count} examples, too few to keep data.test_fraction="
                f"{section.test_fraction} for the test; give more",
                path=section.path,
            )
        order = np.random.default_rng(self._seed).permutation(count)
        examples = ColumnBatch.joined(blocks)
        self._test, self._train = examples.take(order[:num_test]), examples.take(order[num_test:])

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of batches per epoch. The last batch may be smaller."""
        return -(-len(self._train) // self._batch_size)

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        """Yields all training examples once."""
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._train))
        for begin in range(0, len(order), self._batch_size):
            yield self._train.take(order[begin : begin + self._batch_size])

    def test_batches(self) -> Iterator[ColumnBatch]:
        """Yields all test examples once."""
        for begin in range(0, len(self._test), _BLOCK):
            yield self._test.take(slice(begin, begin + _BLOCK))

    def validation_batches(self) -> Iterator[ColumnBatch]:
        """Yields nothing, because this kind of data has no validation examples."""
        return iter(())

    def extra(self) -> Mapping[str, Any]:
        """Returns no additional results."""
        return {}


def read_examples(section: JsonLinesData, path: str) -> Iterator[ColumnBatch]:
    """Yields the examples of a file in order and without labels, for predictions.

    Raises:
        DataError: the file cannot be read, or a line is invalid.
    """
    return _read(section, path, has_labels=False)


def _read(section: JsonLinesData, path: str, *, has_labels: bool) -> Iterator[ColumnBatch]:
    keys = (*section.ids, *section.numbers, *([section.label] if has_labels else []))
    rows: list[list[Any]] = []
    try:
        with Path(path).open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    rows.append(_values(section, line, keys, f"{path}, line {number}"))
                if len(rows) == _BLOCK:
                    yield _columns(section, rows)
                    rows = []
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}; check the path", path=path) from error
    if rows:
        yield _columns(section, rows)


def _values(section: JsonLinesData, line: str, keys: tuple[str, ...], where: str) -> list[Any]:
    """Returns the values of one line in the order of `keys`."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: cannot parse as JSON: {error}; fix or remove the line") from None
    if not isinstance(found, dict):
        raise DataError(f"{where}: found {found!r:.60}, expected an object; fix or remove the line")
    values = []
    for key in keys:
        value = found.get(key)
        if key in section.ids:
            expected, is_good = "a string or a 64-bit integer", _is_id(value)
        elif key in section.numbers:
            expected, is_good = "a finite number", _is_number(value)
        else:
            expected, is_good = "0 or 1, false or true", _is_number(value) and value in _LABELS
        if not is_good:
            raise DataError(
                f"{where}, key {key!r}: found {value!r:.60}, expected {expected}; fix or remove the "
                "line",
                column=key,
                found=value,
                expected=expected,
            )
        values.append(value)
    return values


def _is_id(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and abs(value) <= _LARGEST


def _columns(section: JsonLinesData, rows: list[list[Any]]) -> ColumnBatch:
    by_key = list(zip(*rows, strict=True))
    num_ids, num_numbers = len(section.ids), len(section.numbers)
    ids = dict(zip(section.ids, map(_ids, by_key), strict=False))
    numbers = np.array(by_key[num_ids : num_ids + num_numbers], np.float32)
    labels = by_key[num_ids + num_numbers :]
    return ColumnBatch(
        {name: Column(each) for name, each in ids.items()},
        np.ascontiguousarray(numbers.reshape(num_numbers, len(rows)).T),
        np.array(labels[0], np.float32) if labels else None,
    )


def _ids(values: tuple[Any, ...]) -> npt.NDArray[np.int64]:
    """Converts ids to int64: integers are kept, strings are hashed by `sparring.hash_strings`."""
    texts = [place for place, value in enumerate(values) if isinstance(value, str)]
    ids = np.array([0 if isinstance(each, str) else each for each in values], np.int64)
    ids[texts] = hash_strings([values[place] for place in texts])
    return ids
