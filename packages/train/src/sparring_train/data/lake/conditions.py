"""Conditions on the values of partitions: `data.filter`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow

from sparring.errors import DataError

__all__ = ["Condition", "parse_conditions"]

_PATTERN = re.compile(r"\s*(?P<column>.+?)\s*(?P<sign><=|>=|!=|==|=|<|>)\s*(?P<text>.+?)\s*")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a column with a constant. A null value satisfies no condition."""

    column: str
    sign: str
    """One of ``=``, ``!=``, ``<``, ``<=``, ``>`` and ``>=``."""
    text: str

    def holds(self, value: Any) -> bool:
        """Returns whether the value of a partition, an Arrow scalar, satisfies the condition.

        Raises:
            DataError: the text is not a value of the column's type.
        """
        try:
            wanted = pyarrow.scalar(self.text).cast(value.type)
        except pyarrow.ArrowException as error:
            raise DataError(
                f"data.filter: found {self.text!r} for the column {self.column!r}, expected a value of "
                f"its type {value.type}: {error}; fix the condition",
                column=self.column,
            ) from error
        return bool(value.is_valid) and _OPERATORS[self.sign](value.as_py(), wanted.as_py())


def parse_conditions(texts: Sequence[str]) -> list[Condition]:
    """Returns the conditions of `data.filter`.

    Raises:
        DataError: a text is not a condition.
    """
    found = []
    for text in texts:
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise DataError(
                f"data.filter: found {text!r}, expected a comparison such as `day >= 2026-01-31`; fix "
                "the condition"
            )
        sign = "=" if match["sign"] == "==" else match["sign"]
        found.append(Condition(match["column"], sign, match["text"]))
    return found
