"""Sample of the rows of CSV files; determines delimiter, decimal separator and missing values."""

from __future__ import annotations

import csv as python_csv
import io
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc

from sparring.errors import DataError
from sparring_train.config.sections.table import TableData
from sparring_train.data.table.csv_rows import (
    BrokenRows,
    CsvRows,
    delimiter_by_name,
    read_header,
    translate_csv_errors,
)
from sparring_train.data.table.csv_values import (
    NO_NUMBER,
    Decimal,
    is_number,
    with_points,
    without_utc,
)
from sparring_train.data.table.files import TableFile
from sparring_train.data.table.sample import (
    ReadingOptions,
    Sample,
    SampledFile,
    check_names,
    count_sample_rows_per_file,
    find_missing_columns,
    make_no_header_error,
)

__all__ = ["sample_csv"]

_DELIMITERS = (",", ";", "\t", "|")
_BEGINNING_BYTES = 1 << 16
_ALL_BLOCKS_BYTES = 64 << 20
"""Total size of the first blocks of all files. The first block of each file is always read."""
_MIN_BLOCK_BYTES = 1 << 18
_MAX_BLOCK_BYTES = 8 << 20
_MOSTLY = 0.95
"""Minimum share of the texts in a column that have its kind; the others are errors."""
_MISSING = (
    "NA", "N/A", "n/a", "#N/A", "<NA>", "NULL", "null", "(null)", "None", "NaN", "nan", "\\N", "?", "-",
    "--",
)  # fmt: skip
_INTEGER = r"^[+-]?[0-9]{1,20}(\.0+)?$"
_NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?(Z|[+-]00:?00)?)?$"
_DECIMAL_COMMA = r"^\s*[+-]?[0-9]{1,3}(\.?[0-9]{3})*,[0-9]+\s*$"
_POINT = r"^\s*[+-]?[0-9]*\.[0-9]+\s*$"

Bools = npt.NDArray[np.bool_]


def sample_csv(path: str, files: Sequence[TableFile], options: ReadingOptions) -> Sample:
    """Reads the first rows of each CSV file.

    Raises:
        DataError: a file cannot be read or has no header, or files have different delimiters.
    """
    delimiter = options.delimiter or _find_delimiter(files)
    headers = [read_header(file, delimiter) for file in files]
    for file, names in zip(files, headers, strict=True):
        check_names(file, names)
    unusable = find_missing_columns(files, headers)
    names = [name for name in headers[0] if name and name not in unusable]
    is_default = all(delimiter == delimiter_by_name(file) for file in files)
    section = TableData.model_construct(
        kind="table",
        path=path,
        categorical=tuple(names),
        types=dict.fromkeys(names, "string"),
        delimiter=delimiter,
        missing_values=options.missing_values or (),
        bad_rows="skip",
    )
    parts = [_part(file, section, names, len(files)) for file in files]
    rows = [each.num_rows for each in parts]
    sample = Sample(
        {},
        sum(rows),
        round(sum(each.all_rows for each in parts)),
        all(each.is_whole for each in parts),
    )
    # The numbers of rows after a bad row are unknown.
    sample.parts = [
        SampledFile(each.file.name, each.num_rows, None if each.num_broken else 2) for each in parts
    ]
    sample.unusable = unusable
    if any("" in header for header in headers):
        sample.unsure.append("a column has no name: it is left out")
    sample.delimiter = None if is_default else delimiter
    sample.num_broken = sum(each.num_broken for each in parts)
    sample.first_broken = next((each.first_broken for each in parts if each.first_broken), None)
    texts = {
        name: _Texts([chunk for part in parts for chunk in part.texts[name]]) for name in names
    }
    _check_header(files[0], texts)
    if options.missing_values is not None:
        sample.missing_values = options.missing_values
    else:
        sample.missing_values = _missing_values(texts, sample)
    for each in texts.values():
        each.leave_out(sample.missing_values)
    sample.decimal, others = _find_decimal(texts, options.decimal)
    for name in others:
        sign = "," if sample.decimal == "." else "."
        sample.unusable[name] = (
            f"its numbers have the decimal separator {sign!r}, but data.decimal is {sample.decimal!r} "
            "for all columns; write all numbers with it"
        )
        del texts[name]
    for name, each in texts.items():
        values, wrong = each.typed(sample.decimal)
        sample.values[name], sample.texts[name] = values, each.array()
        if wrong is not None:
            sample.wrong[name] = wrong
    return sample


@dataclass(slots=True)
class _Part:
    file: TableFile
    texts: dict[str, list[Any]]
    """Column → chunks of strings."""
    num_rows: int
    all_rows: float
    """Estimated number of rows of the file."""
    is_whole: bool
    num_broken: int
    first_broken: str | None


def _part(file: TableFile, section: TableData, names: list[str], num_files: int) -> _Part:
    """Reads the first rows of one file."""
    count = count_sample_rows_per_file(num_files)
    block_bytes = max(min(_ALL_BLOCKS_BYTES // num_files, _MAX_BLOCK_BYTES), _MIN_BLOCK_BYTES)
    reader = CsvRows([file], section, names)
    broken = BrokenRows()
    texts: dict[str, list[Any]] = {name: [] for name in names}
    num_rows = num_blocks = 0
    is_whole = True
    for block in reader.blocks(file, names, block_bytes, broken):
        if num_rows >= count:
            is_whole = False
            break
        num_blocks += 1
        num_rows += block.num_rows
        for name in names:
            texts[name].append(block.column(name))
    all_rows = float(num_rows)
    if not is_whole:
        all_rows = max(all_rows, num_rows / (num_blocks * block_bytes) * _unpacked_bytes(file))
    # Without the last part of the message, because the configuration skips bad rows.
    first = None
    if broken.count:
        first = str(reader.broken_row(file, broken.first)).rpartition("; fix")[0]
    return _Part(file, texts, num_rows, all_rows, is_whole, broken.count, first)


def _unpacked_bytes(file: TableFile) -> float:
    """Returns an estimate of the uncompressed size of a file."""
    size = float(file.system.size(file.path) or 0)
    if not file.path.endswith(".gz"):
        return size
    with translate_csv_errors(file), file.system.open(file.path, "rb") as stream:
        packed = stream.read(_MIN_BLOCK_BYTES)
        unpacked = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(packed)
    return size * len(unpacked) / max(len(packed), 1)


def _find_delimiter(files: Sequence[TableFile]) -> str:
    """Returns the separator of values, which must be the same in all files.

    Raises:
        DataError: files have different separators.
    """
    found = [_likely_delimiter(file) for file in files]
    other = next((at for at, each in enumerate(found) if each != found[0]), None)
    if other is not None:
        raise DataError(
            f"{files[other].name}: found {found[other]!r} between values, but {found[0]!r} in "
            f"{files[0].name}; write all files with one delimiter",
            path=files[other].name,
        )
    return found[0]


def _likely_delimiter(file: TableFile) -> str:
    """Returns the delimiter with which most of the first rows have as many fields as the header."""
    by_name = delimiter_by_name(file)
    with translate_csv_errors(file), file.open() as stream:
        beginning = stream.read(_BEGINNING_BYTES)
    text = beginning.decode("utf-8-sig", "replace")
    if len(beginning) == _BEGINNING_BYTES:
        text = text[: text.rfind("\n") + 1] or text
    found: dict[str, tuple[bool, bool, int]] = {}
    for delimiter in _DELIMITERS:
        try:
            rows = [
                each for each in python_csv.reader(io.StringIO(text), delimiter=delimiter) if each
            ]
        except python_csv.Error:
            continue
        num_fields = len(rows[0]) if rows else 0
        alike = sum(len(each) == num_fields for each in rows)
        if num_fields > 1:
            is_even = alike >= 0.8 * len(rows)
            found[delimiter] = (is_even, delimiter == by_name, num_fields)
    return max(found, key=lambda each: found[each]) if found else by_name


class _Texts:
    """Texts of one column, as a dictionary of distinct texts."""

    def __init__(self, chunks: list[Any]) -> None:
        whole = pyarrow.chunked_array(chunks, pyarrow.string())
        encoded = pyarrow.concat_arrays(
            whole.dictionary_encode().unify_dictionaries().chunks
            or [pyarrow.array([], pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))]
        )
        self.words = encoded.dictionary
        self._places = encoded.indices
        places = self._places.drop_null().to_numpy(zero_copy_only=False)
        self._counts = np.bincount(places, minlength=len(self.words))

    def leave_out(self, missing: Sequence[str]) -> None:
        """Replaces texts that mean a missing value by null."""
        is_missing = pc.is_in(self.words, pyarrow.array(missing, pyarrow.string()))
        self.words = pc.if_else(is_missing, None, self.words)

    def array(self) -> Any:
        return self.words.take(self._places)

    def share(self, chosen: Bools, of: Bools) -> float:
        """Returns the share of the rows with a text in `chosen` among those with a text in `of`."""
        total = int(self._counts[of].sum())
        return float(self._counts[chosen & of].sum() / total) if total else 0.0

    def matches(self, pattern: str, words: Any = None) -> Bools:
        found = pc.match_substring_regex(self.words if words is None else words, pattern)
        flags: Bools = found.fill_null(False).to_numpy(zero_copy_only=False)
        return flags

    def given(self, without: Any = NO_NUMBER) -> Bools:
        """Returns a mask of the texts that are neither null nor mean a missing number."""
        is_given = pc.and_(self.words.is_valid(), pc.invert(pc.is_in(self.words, without)))
        flags: Bools = is_given.to_numpy(zero_copy_only=False)
        return flags

    def typed(self, decimal: Decimal) -> tuple[Any, Bools | None]:
        """Converts texts to the kind that most of them have; also returns a mask of the other rows."""
        given, words = self.given(), self.words
        if not given.any():
            return self.array(), None
        with_point = with_points(words) if decimal == "," else words
        lower = pc.utf8_lower(words)
        is_boolean = pc.is_in(lower, pyarrow.array(["true", "false"])).to_numpy(False)
        is_integer = self.matches(
            _INTEGER,
            pc.replace_substring_regex(words, ",(0+)$", r".\1") if decimal == "," else words,
        )
        for kind, chosen, source in (
            ("bool", is_boolean, lower),
            ("integer", is_integer, pc.replace_substring_regex(words, r"[.,]0+$", "")),
            ("number", self.matches(_NUMBER, with_point), with_point),
            ("time", self.matches(_TIME), without_utc(words)),
        ):
            if self.share(chosen, given) < _MOSTLY:
                continue
            if (
                values := _cast(pc.if_else(pyarrow.array(chosen & given), source, None), kind)
            ) is None:
                continue
            is_wrong = given & ~chosen
            wrong = None
            if is_wrong.any():
                places = self._places.fill_null(0).to_numpy(zero_copy_only=False)
                valid = self._places.is_valid().to_numpy(zero_copy_only=False)
                wrong = is_wrong[places] & valid
            return values.take(self._places), wrong
        return self.array(), None


def _cast(texts: Any, kind: str) -> Any:
    targets = {
        "bool": (pyarrow.bool_(),),
        "integer": (pyarrow.int64(), pyarrow.uint64()),
        "number": (pyarrow.float64(),),
        "time": (pyarrow.timestamp("us"),),
    }[kind]
    for target in targets:
        try:
            return texts.cast(target)
        except pyarrow.ArrowInvalid:
            continue
    return None


def _missing_values(texts: Mapping[str, _Texts], sample: Sample) -> tuple[str, ...]:
    """Returns the texts that mean a missing value, except those that are always recognized."""
    chosen: dict[str, None] = {}
    tokens = pyarrow.array(_MISSING)
    known = set(NO_NUMBER.to_pylist())
    for name, each in texts.items():
        found = each.words.filter(pc.is_in(each.words, tokens)).to_pylist()
        if not found:
            continue
        rest = each.given(pyarrow.concat_arrays([tokens, NO_NUMBER]))
        is_number = each.matches(_NUMBER) | each.matches(_DECIMAL_COMMA)
        if each.share(is_number, rest) >= _MOSTLY:
            chosen.update(dict.fromkeys(word for word in found if word not in known))
        elif rest.any():
            chosen.update(dict.fromkeys(found))
            listed = ", ".join(map(repr, found))
            sample.unsure.append(
                f"{name}: {listed} is read as a missing value; remove it from missing_values if it is "
                "an id"
            )
    return tuple(chosen)


def _find_decimal(texts: Mapping[str, _Texts], chosen: Decimal | None) -> tuple[Decimal, list[str]]:
    """Returns the decimal separator of most columns, and the columns that have the other one."""
    with_sign: dict[Decimal, list[str]] = {".": [], ",": []}
    patterns: tuple[tuple[Decimal, str, str], ...] = (
        (",", _DECIMAL_COMMA, _INTEGER),
        (".", _POINT, _NUMBER),
    )
    for name, each in texts.items():
        given = each.given()
        for sign, pattern, others in patterns:
            has_sign = each.matches(pattern)
            if has_sign.any() and each.share(has_sign | each.matches(others), given) >= _MOSTLY:
                with_sign[sign].append(name)
                break
    if chosen is None:
        chosen = "," if len(with_sign[","]) > len(with_sign["."]) else "."
    return chosen, with_sign["." if chosen == "," else ","]


def _check_header(file: TableFile, texts: Mapping[str, _Texts]) -> None:
    """Raises `DataError` if the first row contains values instead of names."""
    numbers = [name for name in texts if is_number(name, ",")]
    others = [name for name in texts if name not in numbers]
    if not numbers:
        return
    is_value = [pc.any(pc.equal(texts[name].words, name)).as_py() for name in others]
    if not others or any(is_value):
        raise make_no_header_error(file, [*texts])
