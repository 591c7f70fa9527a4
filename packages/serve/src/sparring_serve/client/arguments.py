"""Checks of the arguments of clients, before anything is sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring import hash_strings
from sparring.errors import InvalidArgumentError

__all__ = ["check_table_mapping", "check_seconds", "check_text", "check_ids", "check_whole_number"]


def check_seconds(given: object, most: float) -> float:
    """Returns a deadline as a float.

    Raises:
        InvalidArgumentError: It is not a number above 0 and at most `most`.
    """
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    try:
        seconds = float(given) if is_number else math.nan  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond the range of float
        seconds = math.nan
    if not 0 < seconds <= most:
        up_to = f" and at most {most:g}" if most < math.inf else ""
        raise InvalidArgumentError(
            f"deadline_seconds must be a number above 0{up_to}, found {given!r}"
        )
    return seconds


def check_text(what: str, given: object) -> str:
    """Returns a string that is encodable as UTF-8 and contains no NUL.

    Raises:
        InvalidArgumentError: It is not such a string; `what` is the name of the argument.
    """
    if isinstance(given, str) and "\0" not in given:
        try:
            given.encode()
        except UnicodeEncodeError:
            pass
        else:
            return given
    raise InvalidArgumentError(f"{what} must be text, found {given!r}")


def check_whole_number(what: str, given: object, least: int = 1) -> int:
    """Returns an integer that fits into 63 bits.

    Raises:
        InvalidArgumentError: It is not an integer of at least `least`; `what` is the name of the
            argument.
    """
    is_whole = isinstance(given, Integral) and not isinstance(given, bool)
    if not is_whole or not least <= int(given) < 1 << 63:  # type: ignore[call-overload]
        raise InvalidArgumentError(
            f"{what} must be a whole number, at least {least}, found {given!r}"
        )
    return int(given)  # type: ignore[call-overload,no-any-return]


def check_table_mapping(what: str, given: object, values: str) -> Mapping[str, Any]:
    """Returns a mapping whose keys are table names.

    Raises:
        InvalidArgumentError: It is not such a mapping; `what` is the name of the argument, `values`
            describes its values.
    """
    if not isinstance(given, Mapping):
        raise InvalidArgumentError(
            f"{what} must be a mapping of tables to {values}, found {type(given).__name__}; use "
            f"{{'item': {values}}}"
        )
    for each in given:
        check_text(f"{what}: the name of a table", each)
    return given


def check_ids(table: str, ids: npt.ArrayLike) -> npt.NDArray[Any]:
    """Returns ids as an ``(n,)`` integer array; strings are hashed by `sparring.hash_strings`.

    Raises:
        InvalidArgumentError: The ids of the table `table` are neither integers nor strings.
    """
    try:
        array = np.asarray(ids)
        if array.dtype.kind in "US" and array.size and array.ndim == 1:
            array = hash_strings(ids)
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"cannot convert ids of table {table!r} to an array: {error}; pass integers or strings in "
            "one flat list"
        ) from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidArgumentError(
            f"ids of table {table!r} must be a one-dimensional array of integers or strings, found "
            f"dtype {array.dtype}, shape {array.shape}; flatten and convert them",
            table=table,
        )
    return array
