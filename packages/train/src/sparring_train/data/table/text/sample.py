"""Sample of the rows of text files; determines how numbers, times and missing values are written."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc

from sparring_train.config.sections.table import TableData
from sparring_train.data.table.files import TableFile
from sparring_train.data.table.sample import (
    Sample,
    SampledFile,
    check_names,
    count_sample_rows_per_file,
    find_missing_columns,
)
from sparring_train.data.table.text.dialect import Dialect, find_dialect
from sparring_train.data.table.text.encoding import TYPED_NAME, translate_csv_errors
from sparring_train.data.table.text.forms import POSITION, get_form
from sparring_train.data.table.text.rows import BrokenRows, CsvRows
from sparring_train.data.table.text.values import NO_NUMBER, TextStyle

__all__ = ["sample_csv"]

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
_INTEGER = r"^[+-]?[0-9]+(\.0+)?$"
_NUMBER = r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*$"
_WRITTEN_AS_FLOAT = r"^[+-]?[0-9]+[.,]0{1,2}$"
"""Integers as pandas writes them in columns with missing values, whatever the decimal sign."""
_LEADING_ZERO = r"^[+-]?0[0-9]+$"
_DATE = r"^\s*([0-9]{4}[./-][0-9]{1,2}[./-][0-9]{1,2}|[0-9]{1,2}[./-][0-9]{1,2}[./-][0-9]{4})"
_CLOCK = r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?( ?[AaPp][Mm])?"
_TIME = rf"{_DATE}([ T]+{_CLOCK}(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)?)?\s*$"
_DAY_FIRST = r"^\s*([0-9]{1,2})[./-]([0-9]{1,2})[./-][0-9]{4}"
_SIGNS = ("$", "€", "£", "¥", "₹", "%", "USD", "EUR")
_STYLES = (
    TextStyle(".", None), TextStyle(".", ","), TextStyle(",", None), TextStyle(".", "'"),
    TextStyle(".", " "), TextStyle(",", " "),
)  # fmt: skip
"""Ways to write numbers, the preferred one first."""

Bools = npt.NDArray[np.bool_]


def sample_csv(path: str, files: Sequence[TableFile], given: TableData) -> Sample:
    """Reads the first rows of each text file.

    Args:
        path: path of the files.
        files: the files.
        given: section with the keys that the user has set.

    Raises:
        DataError: a file cannot be read or has no header, or files are written in different ways.
    """
    dialect = find_dialect(files, given)
    keys = dialect.keys
    if given.column_names is not None:
        keys["column_names"] = given.column_names
    section = TableData.model_construct(
        **{"kind": "table", "path": path, "categorical": (), "bad_rows": "skip", **keys},
        missing_values=given.missing_values,
    )
    if dialect.header_doubt is not None:
        # Names are asked for. Until then, the first row may contain equal values.
        numbers = range(1, len(dialect.first_rows[0]) + 1)
        numbered = tuple(f"column_{number}" for number in numbers)
        section = section.model_copy(update={"column_names": numbered})
    headers = [CsvRows([file], section, ()).names(file) for file in files]
    for file, names in zip(files, headers, strict=True):
        check_names(file, names)
    is_json = get_form(files[0], section) == "json"
    if is_json:  # an object without a key has no value
        headers = [[*dict.fromkeys(name for names in headers for name in names)]] * len(files)
    unusable = find_missing_columns(files, headers)
    names = [name for name in headers[0] if name and name not in unusable]
    if keys.get("form") == "lines":
        names.remove(POSITION)
    section = section.model_copy(
        update={"categorical": tuple(names), "types": dict.fromkeys(names, "string")}
    )
    parts = [_part(file, section, names, len(files)) for file in files]
    rows = [each.num_rows for each in parts]
    sample = Sample(
        {},
        sum(rows),
        round(sum(each.all_rows for each in parts)),
        all(each.is_whole for each in parts),
    )
    first_row = 1 + section.skip_lines + (section.column_names is None and not is_json)
    # The numbers of rows after a bad row are unknown.
    sample.parts = [
        SampledFile(each.file.name, each.num_rows, None if each.num_broken else first_row)
        for each in parts
    ]
    sample.unusable, sample.keys, sample.header_doubt = unusable, keys, dialect.header_doubt
    sample.unsure += dialect.remarks
    _describe_names(sample, dialect, given, headers)
    sample.num_broken = sum(each.num_broken for each in parts)
    sample.first_broken = next((each.first_broken for each in parts if each.first_broken), None)
    texts = {
        name: _Texts([chunk for part in parts for chunk in part.texts[name]]) for name in names
    }
    if "missing_values" in given.model_fields_set:
        missing = given.missing_values
    else:
        missing = _missing_values(texts, sample)
    if missing:
        keys["missing_values"] = missing
    for each in texts.values():
        each.leave_out(missing)
    style = _find_style(texts, given, sample)
    for name, each in texts.items():
        values, wrong = each.typed(style)
        sample.values[name], sample.texts[name] = values, each.array()
        if wrong is not None:
            sample.wrong[name] = wrong
    return sample


def _describe_names(
    sample: Sample, dialect: Dialect, given: TableData, headers: Sequence[Sequence[str]]
) -> None:
    """Adds the types in the header, and a column without a name, to the sample."""
    if dialect.first_rows and given.column_names is None:
        marks = [TYPED_NAME.fullmatch(each.strip()) for each in dialect.first_rows[0]]
        if all(marks):
            sample.typed = {each[1]: each[2] for each in marks if each}
    if any("" in header for header in headers):
        sample.unsure.append("a column has no name: it is left out")
        sample.unnamed = headers[0].index("") if "" in headers[0] else None


def _find_style(texts: Mapping[str, _Texts], given: TableData, sample: Sample) -> TextStyle:
    """Returns how numbers and times are written, and adds it to the keys of the sample."""
    keys, is_set = sample.keys, given.model_fields_set
    styles = [
        style
        for style in _STYLES
        if ("decimal" not in is_set or style.decimal == given.decimal)
        and ("thousands" not in is_set or style.thousands == given.thousands)
    ] or [TextStyle(given.decimal, given.thousands)]
    signs = given.number_signs if "number_signs" in is_set else _SIGNS
    shares = {
        name: [
            each.share(each.numbers(replace(style, number_signs=signs)), each.given())
            for style in styles
        ]
        for name, each in texts.items()
    }
    numeric = [name for name, found in shares.items() if max(found) >= _MOSTLY]
    totals = [sum(shares[name][place] for name in numeric) for place in range(len(styles))]
    style = styles[totals.index(max(totals))]
    for name in numeric:
        if shares[name][styles.index(style)] < _MOSTLY:
            groups = "" if style.thousands is None else f" and {style.thousands!r} in thousands"
            sample.unlike[name] = (
                f"its numbers are not written as in other columns, with the decimal sign "
                f"{style.decimal!r}{groups}; leave it out, or write all alike"
            )
    found = [sign for sign in signs if any(texts[name].contains(sign) for name in numeric)]
    style = replace(
        style, number_signs=tuple(found), date_order=_find_date_order(texts, given, sample)
    )
    default = TextStyle()
    for key in ("decimal", "thousands", "number_signs", "date_order"):
        if getattr(style, key) != getattr(default, key):
            keys[key] = getattr(style, key)
    if style.thousands is not None:
        sample.unsure.append(
            f"{style.thousands!r} between three digits is a separator of thousands"
        )
    if found:
        sample.unsure.append(f"{', '.join(found)} next to numbers is ignored; 12.5% is 12.5")
    return style


def _find_date_order(
    texts: Mapping[str, _Texts], given: TableData, sample: Sample
) -> Literal["ymd", "dmy", "mdy"]:
    if "date_order" in given.model_fields_set:
        return given.date_order
    found: dict[Literal["dmy", "mdy"], str] = {}
    unclear = None
    for name, each in texts.items():
        words = each.words.filter(pyarrow.array(each.matches(_DAY_FIRST)))
        if each.share(each.matches(_DAY_FIRST), each.given()) < _MOSTLY:
            continue
        parts = pc.extract_regex(
            words,
            _DAY_FIRST.replace("([0-9]{1,2})", "(?P<a>[0-9]{1,2})", 1).replace(
                "([0-9]{1,2})", "(?P<b>[0-9]{1,2})", 1
            ),
        )
        first, second = (
            pc.max(pc.struct_field(parts, at).cast(pyarrow.int64())).as_py() for at in (0, 1)
        )
        if first > 12 or "." in words[0].as_py()[:6]:
            found.setdefault("dmy", name)
        elif second > 12:
            found.setdefault("mdy", name)
        else:
            unclear = name
    if len(found) > 1:
        other = found["mdy"]
        sample.unusable[other] = (
            f"its dates begin with the month, but dates of {found['dmy']} with the day"
        )
    if found:
        return next(iter(found))
    if unclear is not None:
        sample.date_doubt = f"dates of {unclear} could begin with the day or with the month"
        return "dmy"
    return "ymd"


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

    def contains(self, text: str) -> bool:
        return bool(pc.any(pc.match_substring(self.words, text)).as_py())

    def numbers(self, style: TextStyle) -> Bools:
        """Returns a mask of the texts that are numbers."""
        return self.matches(_NUMBER, style.plain_numbers(self.words)) | self.matches(
            _WRITTEN_AS_FLOAT
        )

    def typed(self, style: TextStyle) -> tuple[Any, Bools | None]:
        """Converts texts to the kind that most of them have; also returns a mask of the other rows."""
        given, words = self.given(), self.words
        if not given.any():
            return self.array(), None
        plain, lower = style.plain_numbers(words), pc.utf8_lower(words)
        is_boolean = pc.is_in(lower, pyarrow.array(["true", "false"])).to_numpy(False)
        is_float = self.matches(_WRITTEN_AS_FLOAT)
        is_number, is_integer = (
            self.matches(each, plain) | is_float for each in (_NUMBER, _INTEGER)
        )
        if self.share(is_number, given) > self.share(is_integer, given):
            is_integer &= False
        if (self.matches(_LEADING_ZERO) & given).any() and self.share(is_integer, given) >= _MOSTLY:
            return self.array(), None
        for kind, chosen, source in (
            ("bool", is_boolean, lower),
            (
                "integer",
                is_integer,
                pc.if_else(
                    pyarrow.array(is_float),
                    pc.replace_substring_regex(words, r"[.,]0+$", ""),
                    pc.replace_substring_regex(plain, r"\.0+$", ""),
                ),
            ),
            ("number", is_number, plain),
            ("time", self.matches(_TIME), words),
        ):
            if self.share(chosen, given) < _MOSTLY:
                continue
            values = _cast(pc.if_else(pyarrow.array(chosen & given), source, None), kind, style)
            if values is None:
                if kind == "integer":  # beyond 64 bits
                    return self.array(), None
                continue
            is_wrong = given & ~chosen
            wrong = None
            if is_wrong.any():
                places = self._places.fill_null(0).to_numpy(zero_copy_only=False)
                valid = self._places.is_valid().to_numpy(zero_copy_only=False)
                wrong = is_wrong[places] & valid
            return values.take(self._places), wrong
        return self.array(), None


def _cast(texts: Any, kind: str, style: TextStyle) -> Any:
    if kind == "time":
        try:
            return style.cast_times(texts)
        except pyarrow.ArrowInvalid:
            return None
    targets = {
        "bool": (pyarrow.bool_(),),
        "integer": (pyarrow.int64(), pyarrow.uint64()),
        "number": (pyarrow.float64(),),
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
        is_number = each.matches(_NUMBER) | each.numbers(replace(_STYLES[2], number_signs=_SIGNS))
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
