"""Arrays that storage methods accept and return, and checks of arguments.

A check returns an array that is valid for an ``_impl`` method. An integer array of another width or
sign is converted if every value fits. Floats are rejected, because a rounded id is a different id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sparring.errors import InvalidArgumentError, UnsupportedError

if TYPE_CHECKING:
    from sparring.contracts.tables.table import TableConfig

__all__ = [
    "Columns",
    "EvictedRows",
    "FindResult",
    "Keys",
    "Rows",
    "ScanChunk",
    "Scores",
    "as_array",
    "check_columns",
    "check_count",
    "check_keys",
    "check_note",
    "check_out",
    "check_rows",
    "check_scores",
    "is_whole",
]

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[Any]
Scores = npt.NDArray[np.uint64]


class Columns(NamedTuple):
    """A half-open range of a row, counted in elements of the table's dtype.

    Examples:
        >>> from sparring import Columns, TableConfig, open_storage
        >>> with open_storage("memory", TableConfig("item", dim=4)) as storage:
        ...     evicted = storage.upsert([7], np.float32([[0, 1, 2, 3]]))
        ...     storage.find([7], Columns(2, 4)).rows.tolist()
        [[2.0, 3.0]]
    """

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class FindResult:
    """Rows in the order of the requested keys.

    Examples:
        >>> import numpy as np
        >>> from sparring import TableConfig, open_storage
        >>> with open_storage("memory", TableConfig("item", dim=2)) as storage:
        ...     evicted = storage.upsert([7], np.ones((1, 2), np.float32))
        ...     result = storage.find([7, 8])
        >>> result.rows.tolist(), result.found.tolist()
        ([[1.0, 1.0], [0.0, 0.0]], [True, False])
    """

    rows: Rows
    """``(n, width of columns)``; zeros where `found` is False."""
    found: npt.NDArray[np.bool_]
    """``(n,)``"""


@dataclass(frozen=True, slots=True)
class EvictedRows:
    """Evicted rows, complete and in their newest version.

    Args:
        keys: ``(n,)`` int64.
        rows: ``(n, width)`` of the table's dtype.
        scores: ``(n,)`` uint64.
    """

    keys: Keys
    rows: Rows
    scores: Scores

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True, slots=True)
class ScanChunk:
    """Part of the rows of a storage, at most `chunk_rows`.

    Args:
        keys: ``(n,)`` int64.
        rows: ``(n, width of columns)`` of the table's dtype.
        scores: ``(n,)`` uint64.

    Examples:
        >>> import numpy as np
        >>> from sparring import TableConfig, open_storage
        >>> with open_storage("memory", TableConfig("item", dim=2)) as storage:
        ...     evicted = storage.upsert([1, 2, 3], np.ones((3, 2), np.float32))
        ...     sorted(len(chunk) for chunk in storage.scan(chunk_rows=2))
        [1, 2]
    """

    keys: Keys
    rows: Rows
    scores: Scores

    def __len__(self) -> int:
        return len(self.keys)


_INT64_MAX = np.iinfo(np.int64).max
_NOTE_NAME = re.compile(r"[a-z_]{1,64}\Z")
_MAX_NOTE_LENGTH = 4096


def is_whole(value: object) -> bool:
    """Whether `value` is an integer of Python or NumPy, except True and False."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_array(values: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """Converts `values` to a NumPy array.

    Args:
        values: any array-like object.
        what: name of the values in messages, such as ``keys of table 'item'``.

    Raises:
        InvalidArgumentError: NumPy cannot convert them, for example a list of lists of different
            lengths.
    """
    try:
        return np.asarray(values)
    # NumPy raises these for ragged lists; arrays of other packages raise them if they cannot be
    # converted, for example because they are on a GPU or have a gradient.
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise InvalidArgumentError(
            f"{what} must be an array, found {type(values).__name__} that NumPy cannot read "
            f"({error}); pass a NumPy array, or lists of equal length"
        ) from error


def check_keys(keys: npt.ArrayLike, table: str, *, unique: bool) -> Keys:
    """Converts keys to a C-contiguous ``(n,)`` int64 array.

    Args:
        keys: one-dimensional integers.
        table: name of the table, for messages.
        unique: whether to check that no key repeats.

    Raises:
        InvalidArgumentError: the keys cannot be converted exactly, or a key repeats.
    """
    array = as_array(keys, f"keys of table {table!r}")
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.ndim != 1:
        raise InvalidArgumentError(
            f"keys of table {table!r} must have one dimension, found shape {array.shape}; "
            "flatten them first",
            table=table,
            shape=array.shape,
        )
    if array.dtype.kind not in "iu":
        fix = "convert them, and make sure that no fraction is lost"
        if array.dtype.kind in "SUO":
            fix = "convert strings with sparring.hash_strings(strings)"
        raise InvalidArgumentError(
            f"keys of table {table!r} must be int64, found dtype {array.dtype}; {fix}",
            table=table,
            dtype=str(array.dtype),
        )
    if array.dtype == np.uint64 and array.size and int(array.max()) > _INT64_MAX:
        raise InvalidArgumentError(
            f"keys of table {table!r} must fit int64, found {int(array.max())}; pass "
            "array.view('int64') if only the bits matter",
            table=table,
        )
    array = np.ascontiguousarray(array, dtype=np.int64)
    if unique and len(array) > 1:
        ordered = np.sort(array)
        repeats = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(repeats):
            raise InvalidArgumentError(
                f"keys of table {table!r} must be unique within one call, found {int(repeats[0])} "
                "more than once; deduplicate first (sparring.kernels.functions.dedup)",
                table=table,
                key=int(repeats[0]),
            )
    return array


def check_rows(rows: npt.ArrayLike, count: int, table: TableConfig) -> Rows:
    """Converts rows to a C-contiguous ``(count, width)`` array of the table's dtype.

    Raises:
        InvalidArgumentError: wrong shape or dtype.
    """
    array = as_array(rows, f"rows of table {table.name!r}")
    expected = (count, table.width)
    if array.shape != expected:
        raise InvalidArgumentError(
            f"rows of table {table.name!r} must have shape {expected} (keys, width), found "
            f"{array.shape}; pass one row per key",
            table=table.name,
            expected=expected,
            shape=array.shape,
        )
    if array.dtype != table.numpy_dtype:
        raise InvalidArgumentError(
            f"rows of table {table.name!r} must be {table.numpy_dtype}, found {array.dtype}; "
            f"convert them with rows.astype({str(table.numpy_dtype)!r})",
            table=table.name,
            dtype=str(array.dtype),
        )
    return np.ascontiguousarray(array)


def check_scores(scores: npt.ArrayLike, count: int, table: str) -> Scores:
    """Converts scores to a C-contiguous ``(count,)`` uint64 array.

    Raises:
        InvalidArgumentError: wrong shape or dtype, or a negative score.
    """
    array = as_array(scores, f"scores for table {table!r}")
    if array.shape != (count,):
        raise InvalidArgumentError(
            f"scores for table {table!r} must have shape ({count},), found {array.shape}; "
            "pass one score per key",
            table=table,
            shape=array.shape,
        )
    is_whole = array.dtype.kind in "iu"
    if array.size and (not is_whole or array.min() < 0):
        raise InvalidArgumentError(
            f"scores for table {table!r} must be whole numbers from 0 to 2**64-1, found "
            + (f"{array.min()}" if is_whole else f"dtype {array.dtype}")
            + "; convert them to uint64",
            table=table,
            dtype=str(array.dtype),
        )
    return np.ascontiguousarray(array, dtype=np.uint64)


def check_consumed_scores(
    scores: npt.ArrayLike | None, count: int, table: str, taken: str, storage: str
) -> Scores | None:
    """Checks scores like `check_scores`; None stays None.

    Args:
        scores: the scores that a caller passed.
        count: number of keys.
        table: name of the table, for messages.
        taken: `Capabilities.scores` of the storage.
        storage: class name of the storage, for messages.

    Raises:
        UnsupportedError: the storage does not accept scores.
    """
    if scores is None:
        return None
    if taken != "given":
        raise UnsupportedError(
            f"scores for table {table!r}: this {storage} does not accept them (found capability "
            f"scores={taken!r}); omit them, or choose a policy that uses the caller's scores",
            table=table,
            operation="scores",
        )
    return check_scores(scores, count, table)


def check_columns(columns: Columns | tuple[int, int] | None, table: TableConfig) -> Columns:
    """Returns the requested range of columns; None means the complete row.

    Args:
        columns: two whole numbers, counted in elements of the table's dtype.
        table: declaration of the table, whose `width` limits the range.

    Raises:
        InvalidArgumentError: the range is empty, or not within the row.
    """
    if columns is None:
        return Columns(0, table.width)
    # Callers may pass a value of another type than the signature declares.
    given: object = columns
    is_pair = isinstance(given, (tuple, list)) and len(given) == 2 and all(map(is_whole, given))
    if not is_pair or not 0 <= columns[0] < columns[1] <= table.width:
        shown = tuple(given) if isinstance(given, (tuple, list)) else given
        raise InvalidArgumentError(
            f"columns {shown!r} of table {table.name!r}: must be two whole numbers, a non-empty "
            f"range within (0, {table.width}); pass sparring.Columns(begin, end)",
            table=table.name,
            columns=shown,
        )
    return Columns(int(columns[0]), int(columns[1]))


def check_count(what: str, count: int, least: int, table: str) -> int:
    """Returns `count` as an int.

    Args:
        what: name of the argument in messages, such as ``scan of table 'item': chunk_rows``.
        count: the value.
        least: the minimum.
        table: name of the table.

    Raises:
        InvalidArgumentError: `count` is not a whole number from `least` to 2**63-1.
    """
    if not is_whole(count) or not least <= count <= _INT64_MAX:
        raise InvalidArgumentError(
            f"{what} must be a whole number from {least} to 2**63-1, found {count!r}; "
            "round it, or omit it",
            table=table,
            count=count,
        )
    return int(count)


def check_out(out: npt.NDArray[Any], shape: tuple[int, int], table: TableConfig) -> None:
    """Checks that an ``_impl`` method can fill an output array in place.

    Raises:
        InvalidArgumentError: `out` has the wrong shape, dtype or layout, or is read-only.
    """
    if not isinstance(out, np.ndarray):
        found = type(out).__name__
    elif out.shape != shape or out.dtype != table.numpy_dtype:
        found = f"shape {out.shape}, dtype {out.dtype}"
    elif not (out.flags.c_contiguous and out.flags.aligned):
        found = f"C-contiguous {out.flags.c_contiguous}, aligned {out.flags.aligned}"
    elif not out.flags.writeable:
        found = "a read-only array"
    else:
        return
    raise InvalidArgumentError(
        f"out for table {table.name!r} must be a writable C-contiguous {shape} array of "
        f"{table.numpy_dtype}, found {found}; pass numpy.empty({shape}, "
        "table.numpy_dtype), or omit it",
        table=table.name,
    )


def check_note(table: str, name: str, text: str | None) -> None:
    """Checks the limits of notes, which are the same for every backend.

    Raises:
        InvalidArgumentError: `name` is not a short lowercase word, or `text` is too long.
    """
    if not isinstance(name, str) or _NOTE_NAME.match(name) is None:
        raise InvalidArgumentError(
            f"note of table {table!r}: its name must be lowercase letters and _, found {name!r}; "
            "rename it",
            table=table,
        )
    if text is not None and (not isinstance(text, str) or len(text) > _MAX_NOTE_LENGTH):
        found = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        raise InvalidArgumentError(
            f"note {name!r} of table {table!r}: must be a text of at most {_MAX_NOTE_LENGTH} characters, "
            f"found {found}; shorten it, or omit it",
            table=table,
        )
