"""The check that an id which is read as a number is an integer, the same for all readers of ids."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.errors import DataError

__all__ = ["EXPECTED_ID", "check_whole_numbers", "find_whole_numbers", "parse_number"]

EXPECTED_ID = (
    "a whole number from -2^63 to 2^63 - 1, or null; data.types: {column: unsigned} accepts more"
)
_EXPECTED_UNSIGNED = "a whole number from 0 to 2^64 - 1, or null, because of data.types"
_SIGNED = range(-(2**63), 2**63)
_UNSIGNED = range(2**64)


def find_whole_numbers(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.bool_]:
    """Returns whether floating point numbers are ids that were stored exactly.

    Larger numbers of the type may be other ids that were rounded, for example 9007199254740993 to
    9007199254740992.

    Args:
        values: ``(n,)``, in the type in which they were stored.
    """
    limit = 2.0 ** (np.finfo(values.dtype).nmant + 1)
    is_whole: npt.NDArray[np.bool_] = (values == np.floor(values)) & (np.abs(values) < limit)
    return is_whole


def parse_number(text: str) -> int | float:
    """Converts a JSON number with a fraction or an exponent: an int if it is a whole number, exactly.

    Examples:
        >>> parse_number("9007199254740993.0"), parse_number("1.5")
        (9007199254740993, 1.5)
    """
    value = float(text)
    # Larger numbers are no ids: an exponent must not create an int with millions of digits.
    if not value.is_integer() or abs(value) > 2.0**64:
        return value
    if "e" in text or "E" in text:
        try:
            exact = Decimal(text)
        except ArithmeticError:  # the exponent is out of Decimal's range
            return value
        return int(exact) if exact == exact.to_integral_value() else value
    whole, _, fraction = text.partition(".")
    return value if fraction.strip("0") else int(whole)


def check_whole_numbers(values: Iterable[Any], name: str, *, is_unsigned: bool) -> None:
    """Raises if a value of a JSON event is not an id. `parse_number` returns the numbers.

    Args:
        values: values of a column, or lists of them; None is a missing value.
        name: name of the column, for messages.
        is_unsigned: whether ids are from 0 to 2^64 - 1.

    Raises:
        DataError: a value is not a whole number, or out of range.
    """
    allowed = _UNSIGNED if is_unsigned else _SIGNED
    for value in values:
        if type(value) is int:
            if value in allowed:
                continue
        elif value is None:
            continue
        elif isinstance(value, list):
            check_whole_numbers(value, name, is_unsigned=is_unsigned)
            continue
        expected = _EXPECTED_UNSIGNED if is_unsigned else EXPECTED_ID
        raise DataError(
            f"column {name!r}: found {value!r:.60}, expected {expected}; correct the event, or set the "
            "type of the column in data.types",
            column=name,
            found=value,
            expected=expected,
        )
