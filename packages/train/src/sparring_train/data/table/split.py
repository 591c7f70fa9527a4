"""Split of the rows of a table into training, validation and test rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.compute as pc
from pyarrow import types

from sparring.errors import DataError
from sparring_train.config.sections.table import SplitConfig, TableData, ValidationConfig
from sparring_train.data.split import Part, seed_of_file, uniform_of_keys, uniform_of_rows
from sparring_train.data.table.decode import Decoder, RawRows, select_columns
from sparring_train.data.table.text.values import TextStyle

__all__ = ["Split", "make_split", "parse_times"]

Bools = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int64]
Read = Callable[[Sequence[str]], Iterator[RawRows]]
"""Reads some columns of all rows."""
Candidates = Callable[[Sequence[str]], Iterator[tuple[RawRows, Bools]]]
"""Reads some columns of all rows, with a mask of the candidates."""

_log = logging.getLogger(__name__)

_MAX_TIMES = 200_000_000
_MUCH_MORE = 1.5
"""A part by time that is so many times as large as its fraction is reported."""


class _Choice(Protocol):
    """Rule that chooses rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the rule needs; empty if it needs positions of rows only."""

    def of(self, rows: RawRows) -> Bools:
        """Returns a mask of the chosen rows, ``(n,)``."""


@dataclass(frozen=True)
class Split:
    """Assigns each row to one part."""

    test: _Choice
    validation: _Choice | None = None
    """Chooses among the rows that are not for the test."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the split needs, without duplicates."""
        more = () if self.validation is None else self.validation.columns
        return tuple(dict.fromkeys((*self.test.columns, *more)))

    def masks(self, rows: RawRows) -> dict[Part, Bools]:
        """Returns, for each part, a mask of the rows that belong to it, ``(n,)``."""
        is_test = self.test.of(rows)
        if self.validation is None:
            return {"train": ~is_test, "test": is_test, "validation": np.zeros_like(is_test)}
        chosen = self.validation.of(rows) & ~is_test
        return {"train": ~(is_test | chosen), "test": is_test, "validation": chosen}

    def is_in(self, part: Part, rows: RawRows) -> Bools:
        """Returns a mask of the rows that belong to a part, ``(n,)``."""
        return self.masks(rows)[part]


def make_split(data: TableData, seed: int, read: Read) -> Split:
    """Creates the split for `data.split` and `data.validation`; reads the columns that it needs.

    Raises:
        DataError: a column has no suitable values.
    """
    split = data.split
    draw = _draw(data, split, seed)
    test = _choice(data, split, draw, read) or _ByChance(draw, 0.0, split.test_fraction)
    ways = data.validation
    if ways is None:
        return Split(test)

    def others(names: Sequence[str]) -> Iterator[tuple[RawRows, Bools]]:
        needed = tuple(dict.fromkeys((*names, *test.columns)))
        return ((rows, ~test.of(rows)) for rows in read(needed))

    draw = _draw(data, ways, seed)
    validation = _choice(data, ways, draw, read, others)
    if validation is None:
        assert ways.fraction is not None
        # If both rules compare the same random numbers, their ranges must not overlap.
        begin = test.end if isinstance(test, _ByChance) and test.draw == draw else 0.0
        validation = _ByChance(draw, begin, begin + ways.fraction * (1 - begin))
    return Split(test, validation)


def _choice(
    data: TableData,
    ways: SplitConfig | ValidationConfig,
    draw: _Draw,
    read: Read,
    candidates: Candidates | None = None,
) -> _Choice | None:
    """Returns the rule that is set, or None if it is `fraction`.

    Args:
        data: the section of the configuration.
        ways: its key `split` or `validation`.
        draw: the random number of each row.
        read: reads all rows.
        candidates: reads all rows and the candidates among them; None: all rows are candidates.
    """
    among = candidates or (
        lambda names: ((rows, np.ones(len(rows), np.bool_)) for rows in read(names))
    )
    if ways.column is not None:
        return _ByColumn((ways.column,), ways.chosen_value)
    if ways.files is not None:
        return _ByFile((), ways.files)
    if ways.exact_fraction is not None:
        name, part = data.categorical[0], ways.exact_fraction
        if isinstance(draw, _PositionDraw):
            return _ByPlace((), _draw_positions(part, name, draw.seed, among))
        return _ByChance(draw, 0.0, _find_threshold(part, name, draw, among))
    if ways.leave_one_out is not None:
        return _ByPlace((), _find_last_of_each(data, ways.leave_one_out, among))
    if data.time is not None and ways.time_from is not None:
        return _ByTime((data.time,), _parse_time(ways.time_from, data.time, read))
    if data.time is not None and ways.time is not None:
        return _ByTime((data.time,), _quantile(ways.time, data.time, among))
    return None


class _Draw(Protocol):
    """Random number of each row. Draws are equal if their numbers are."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that the draw needs."""

    def of(self, rows: RawRows) -> npt.NDArray[np.float64]:
        """Returns numbers in [0, 1), ``(n,)``."""


def _draw(data: TableData, ways: SplitConfig | ValidationConfig, seed: int) -> _Draw:
    if ways.key is not None:
        return _KeyDraw(seed, ways.key, data)
    return _PositionDraw(seed) if data.draw == "position" else _RowDraw(seed)


@dataclass(frozen=True)
class _PositionDraw:
    """By the position in all files: other files move rows between the parts."""

    seed: int
    columns: tuple[str, ...] = ()

    def of(self, rows: RawRows) -> npt.NDArray[np.float64]:
        return uniform_of_rows(rows.position, len(rows), seed=self.seed)


@dataclass(frozen=True)
class _RowDraw:
    """By the name of the file in the data set, and the index in the file."""

    seed: int
    columns: tuple[str, ...] = ()

    def of(self, rows: RawRows) -> npt.NDArray[np.float64]:
        return uniform_of_rows(rows.index, len(rows), seed=seed_of_file(self.seed, rows.key))


@dataclass(frozen=True)
class _KeyDraw:
    """By the id in a column. Rows without an id are drawn one by one."""

    seed: int
    name: str
    data: TableData = field(compare=False)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    def of(self, rows: RawRows) -> npt.NDArray[np.float64]:
        # Several threads draw, and a decoder is for one of them.
        batch, _ = Decoder(select_columns(self.data, categorical=(self.name,)), None).decode(rows)
        column = batch.ids[self.name]
        has_key = column.counts.astype(np.bool_)
        uniform = _RowDraw(self.seed).of(rows)
        uniform[has_key] = uniform_of_keys(column.ids, seed=self.seed)
        return uniform


@dataclass(frozen=True)
class _ByChance:
    draw: _Draw
    begin: float
    end: float
    """A row is chosen if its random number is in ``[begin, end)``."""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.draw.columns

    def of(self, rows: RawRows) -> Bools:
        uniform = self.draw.of(rows)
        chosen: Bools = (self.begin <= uniform) & (uniform < self.end)
        return chosen


@dataclass(frozen=True)
class _ByColumn:
    columns: tuple[str, ...]
    value: str

    def of(self, rows: RawRows) -> Bools:
        array = rows.columns[self.columns[0]]
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_floating(array.type):
            chosen = pc.equal(array, float(self.value))
        else:
            chosen = pc.equal(array.cast(pyarrow.string()), self.value)
        flags: Bools = chosen.fill_null(False).to_numpy(zero_copy_only=False)
        return flags


@dataclass(frozen=True)
class _ByFile:
    columns: tuple[str, ...]
    pattern: str

    def of(self, rows: RawRows) -> Bools:
        return np.full(len(rows), fnmatchcase(rows.file.rpartition("/")[2], self.pattern))


@dataclass(frozen=True)
class _ByTime:
    columns: tuple[str, ...]
    begin: float | int

    def of(self, rows: RawRows) -> Bools:
        flags: Bools = parse_times(rows, self.columns[0]) >= self.begin
        return flags


@dataclass(frozen=True)
class _ByPlace:
    columns: tuple[str, ...]
    positions: Ids
    """Positions of the chosen rows, sorted."""

    def of(self, rows: RawRows) -> Bools:
        first = int(np.searchsorted(self.positions, rows.position))
        last = int(np.searchsorted(self.positions, rows.position + len(rows)))
        flags = np.zeros(len(rows), np.bool_)
        flags[self.positions[first:last] - rows.position] = True
        return flags


def parse_times(rows: RawRows, name: str) -> npt.NDArray[Any]:
    """Converts times to microseconds since 1970, ``(n,)``. Numbers are not changed, and null
    becomes 0.

    Raises:
        DataError: the column contains neither times nor numbers.
    """
    array, kind = rows.columns[name], rows.columns[name].type
    try:
        if types.is_integer(kind):
            array = array.cast(pyarrow.int64())
        elif types.is_floating(kind):
            array = array.cast(pyarrow.float64())
        else:
            if not types.is_temporal(kind):
                array = TextStyle().cast_times(array.cast(pyarrow.string()))
            array = array.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64())
    except pyarrow.ArrowException as error:
        raise DataError(
            f"{rows.file}, column {name!r}: found {kind}, expected times or numbers: {error}; convert "
            "the column, or choose another data.time",
            path=rows.file,
            column=name,
        ) from error
    values: npt.NDArray[Any] = array.fill_null(0).to_numpy(zero_copy_only=False)
    return values


def _quantile(part: float, name: str, among: Candidates) -> float | int:
    """Returns the time from which on candidates belong to the latest fraction `part`."""
    times, count = [], 0
    for rows, is_candidate in among((name,)):
        times.append(parse_times(rows, name)[is_candidate])
        count += len(rows)
        if count > _MAX_TIMES:
            raise DataError(
                f"data.split.time: sorts the times of at most {_MAX_TIMES:,} rows, found more; set "
                "data.split.time_from instead"
            )
    joined = np.concatenate(times)
    if not len(joined):
        return 0
    at = min(int(len(joined) * (1 - part)), len(joined) - 1)
    begin: float | int = np.partition(joined, at)[at].item()
    share = float(np.mean(joined >= begin))
    if share > _MUCH_MORE * part:
        _log.warning(
            "the split by data.time: %g chooses %.3g of the rows, because many rows have the time "
            "at which it begins; name a column of finer times, or choose another split",
            part,
            share,
        )
    return begin


def _find_threshold(part: float, name: str, draw: _Draw, among: Candidates) -> float:
    """Returns the number below which the random numbers of an exact fraction of the candidates are.

    Args:
        part: fraction of the candidates.
        name: a column to read in order to count rows.
        draw: the random number of each row.
        among: see `_choice`.
    """
    numbers = [draw.of(rows)[is_candidate] for rows, is_candidate in among((name,))]
    uniform = np.concatenate([np.empty(0), *numbers])
    count = round(part * len(uniform))
    return 1.0 if count >= len(uniform) else float(np.partition(uniform, count)[count])


def _draw_positions(part: float, name: str, seed: int, among: Candidates) -> Ids:
    """Draws a fraction of the candidates, and returns their positions, sorted.

    Args:
        part: fraction of the candidates.
        name: a column to read in order to count rows.
        seed: seed of the order in which rows are drawn, which is the same for test and validation.
        among: see `_choice`.
    """
    flags = [is_candidate for _, is_candidate in among((name,))]
    is_candidate = np.concatenate([np.empty(0, np.bool_), *flags])
    order = np.random.Generator(np.random.PCG64(seed)).permutation(len(is_candidate))
    order = order[is_candidate[order]]
    return np.sort(order[: round(part * len(order))])


def _parse_time(text: str, name: str, read: Read) -> float | int:
    rows = next(read((name,)))
    kind = rows.columns[name].type
    try:
        if types.is_integer(kind) or types.is_floating(kind):
            return float(text)
        scalar = pyarrow.scalar(text).cast(pyarrow.timestamp("us"))
        return int(scalar.cast(pyarrow.int64()).as_py())
    except (ValueError, pyarrow.ArrowException) as error:
        raise DataError(
            f"data.split.time_from: found {text!r}, but the column {name!r} contains {kind}: {error}; "
            "set a value of that type",
            column=name,
        ) from error


def _find_last_of_each(data: TableData, user: str, among: Candidates) -> Ids:
    """Returns the positions of the last candidate of each user that has at least two, sorted."""
    decoder = Decoder(select_columns(data, categorical=(user,)), None)
    columns = (user,) if data.time is None else tuple(dict.fromkeys((user, data.time)))
    users, times, places, counts = (np.empty(0, np.int64) for _ in range(4))
    for rows, is_candidate in among(columns):
        batch, _ = decoder.decode(rows)
        batch = batch.take(is_candidate)
        column = batch.ids[user]
        has_user = column.counts.astype(np.bool_)
        here = np.arange(rows.position, rows.position + len(rows))[is_candidate]
        now = here if data.time is None else parse_times(rows, data.time)[is_candidate]
        users = np.concatenate([users, column.ids])
        times = np.concatenate([times, now[has_user]])
        places = np.concatenate([places, here[has_user]])
        counts = np.concatenate([counts, np.ones(len(column.ids), np.int64)])
        order = np.lexsort((places, times, users))
        users, times, places, counts = (each[order] for each in (users, times, places, counts))
        is_last = np.append(users[1:] != users[:-1], True)[: len(users)]
        begins = np.append(0, np.flatnonzero(is_last)[:-1] + 1)
        counts = np.add.reduceat(counts, begins) if len(counts) else counts
        users, times, places = users[is_last], times[is_last], places[is_last]
    return np.sort(places[counts > 1])
