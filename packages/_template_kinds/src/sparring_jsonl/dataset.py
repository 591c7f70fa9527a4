"""Examples from lines of JSON."""

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
"""Lines that are made into arrays at once."""
_LABELS = (0, 1)
_LARGEST = float(np.finfo(np.float32).max)


class JsonLinesDataset:
    """All examples of one file, in memory; each epoch has an order of its own.

    Batches are whole: every rank has all of them, and trains on its part of each.

    Raises:
        DataError: the file cannot be read, a line is wrong, or there are too few to split.
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
        """Batches of an epoch, the last of them smaller."""
        return -(-len(self._train) // self._batch_size)

    def batches(self, epoch: int) -> Iterator[ColumnBatch]:
        """All training examples once."""
        order = np.random.default_rng([self._seed, epoch]).permutation(len(self._train))
        for begin in range(0, len(order), self._batch_size):
            yield self._train.take(order[begin : begin + self._batch_size])

    def test_batches(self) -> Iterator[ColumnBatch]:
        """All test examples once."""
        for begin in range(0, len(self._test), _BLOCK):
            yield self._test.take(slice(begin, begin + _BLOCK))

    def validation_batches(self) -> Iterator[ColumnBatch]:
        """Returns nothing: this kind keeps no examples for validation."""
        return iter(())

    def extra(self) -> Mapping[str, Any]:
        """No further results."""
        return {}


def read_examples(section: JsonLinesData, path: str) -> Iterator[ColumnBatch]:
    """Examples of another file in its order, for predictions: labels are not read.

    Raises:
        DataError: the file cannot be read, or a line is wrong.
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
    """Values of one line, in the order of `keys`, each as its column has it."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: is no JSON: {error}; mend or remove the line") from None
    if not isinstance(found, dict):
        raise DataError(f"{where}: found {found!r:.60}, expected an object; mend the line")
    values = []
    for key in keys:
        value = found.get(key)
        if key in section.ids:
            expected, is_good = "a string or a whole number of 64 bits", _is_id(value)
        elif key in section.numbers:
            expected, is_good = "a finite number", _is_number(value)
        else:
            expected, is_good = "0 or 1, false or true", _is_number(value) and value in _LABELS
        if not is_good:
            raise DataError(
                f"{where}, key {key!r}: found {value!r:.60}, expected {expected}; mend or remove the "
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
    """Whole numbers as they are, strings by sparring's hash."""
    texts = [place for place, value in enumerate(values) if isinstance(value, str)]
    ids = np.array([0 if isinstance(each, str) else each for each in values], np.int64)
    ids[texts] = hash_strings([values[place] for place in texts])
    return ids
