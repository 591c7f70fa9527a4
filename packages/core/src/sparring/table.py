"""What a table is, said once, for every backend, framework and world size."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from sparring.admission import Admission, admission_from
from sparring.errors import InvalidArgumentError
from sparring.initializers import Initializer, Uniform, initializer_from

__all__ = ["DTYPES", "TableConfig"]

DTYPES = ("float32", "float64")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,199}\Z")


@dataclass(frozen=True, slots=True)
class TableConfig:
    """A named set of rows: one dim, one dtype, one initializer.

    A row is the embedding, `dim` elements, followed by the optimizer's state,
    `state_width` elements, all of the table's dtype.

    Args:
        name: letters, digits, ``_``, ``.``, ``-``; it is a file name in snapshots.
        dim: elements of an embedding, 1 to 65,536.
        dtype: ``float32`` or ``float64``.
        initializer: what a key reads as before it has a row; an `Initializer`, or its name.
        admission: which unseen keys earn a row, an `Admission` or ``{"kind": …}``; None: all.
        state_width: elements of optimizer state behind the embedding; set by the engine.
        state_method: whose state that is, an update method or an optimizer of a framework; empty
            where nobody said. Set by the engine.
        seed: with the name and the key it determines a row's initial value.

    Raises:
        InvalidArgumentError: any of these is out of range.
    """

    name: str
    dim: int
    dtype: str = "float32"
    initializer: Initializer | str | dict[str, Any] = field(default_factory=Uniform)
    state_width: int = 0
    seed: int = 0
    state_method: str = ""
    admission: Admission | dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise InvalidArgumentError(
                f"table name {self.name!r}: must start with a letter or underscore and hold only "
                "letters, digits, '_', '.', '-', at most 200 of them",
                table=self.name,
            )
        _check_whole("dim", self.dim, 1, 65_536, self.name)
        _check_whole("state_width", self.state_width, 0, 1_048_576, self.name)
        _check_whole("seed", self.seed, -(2**63), 2**63 - 1, self.name)
        dtype = str(np.dtype(self.dtype)) if not isinstance(self.dtype, str) else self.dtype
        if dtype not in DTYPES:
            raise InvalidArgumentError(
                f"dtype of table {self.name!r}: found {dtype!r}, must be one of "
                f"{', '.join(DTYPES)}",
                table=self.name,
                dtype=dtype,
            )
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "initializer", initializer_from(self.initializer))
        object.__setattr__(self, "admission", admission_from(self.admission))

    @property
    def width(self) -> int:
        """Elements of a whole row: embedding and state."""
        return self.dim + self.state_width

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of rows, little-endian."""
        return np.dtype(self.dtype)

    @property
    def row_bytes(self) -> int:
        return self.width * self.numpy_dtype.itemsize

    def with_state(self, state_width: int, state_method: str = "") -> TableConfig:
        """The same table with room for an optimizer's state behind each embedding."""
        return replace(self, state_width=state_width, state_method=state_method)

    def has_other_state(self, other: TableConfig) -> bool:
        """Whether rows of this table cannot serve as rows of `other`, as far as anybody said.

        ``adagrad`` and torch's ``Adagrad`` keep one state: case is no difference.
        """
        methods = {self.state_method.casefold(), other.state_method.casefold()} - {""}
        return self.state_width != other.state_width or len(methods) > 1


def _check_whole(what: str, value: object, low: int, high: int, table: str) -> None:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or not low <= int(value) <= high:  # type: ignore[call-overload]
        raise InvalidArgumentError(
            f"{what} of table {table!r}: found {value!r}, must be a whole number from {low} to "
            f"{high}",
            table=table,
        )
