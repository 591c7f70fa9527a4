"""Configuration of a table, the same for every backend, framework and world size.

A row is bytes: the embedding, of the table's dtype, and behind it the optimizer's state. State,
gradients and whatever is computed with are float64 for float64 tables and float32 for all others.

    float32, float64                          float16, bfloat16

    ┌─────────────────┬────────────────┐      ┌───────────┬ ─ ─ ┬────────────────────┐
    │ embedding (dim) │ state          │      │ embedding │ gap │ state, float32     │
    └─────────────────┴────────────────┘      └───────────┴ ─ ─ ┴────────────────────┘
    0                 state_begin  row_bytes   16 bits each  0 or 2 bytes, zero

Storages keep whole rows and look at none of their parts: to them a row is `width` elements of the
table's dtype, ``row_bytes / itemsize``. ``native/kernels/row_layout.h`` is the same in C++.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.tables.admission import AdmissionLike, parse_admission
from sparring.contracts.tables.expiry import ExpiryLike, parse_expiry
from sparring.contracts.tables.initializers import Initializer, Uniform, parse_initializer
from sparring.errors import InvalidArgumentError

__all__ = ["CONVERT_HELP", "DTYPES", "PLACEMENTS", "TableConfig"]

CONVERT_HELP = "sparring convert --help"
"""Command that messages name where they do not know the whole one."""

DTYPES = ("float32", "float64", "float16", "bfloat16")

PLACEMENTS = ("sharded", "replicated")

_DTYPES_OF_16_BITS = ("float16", "bfloat16")

_LARGEST = {
    "float16": 65_504.0,
    "bfloat16": (2 - 2**-7) * 2.0**127,
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}
"""The largest number of each dtype."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,199}\Z")


@dataclass(frozen=True, slots=True)
class TableConfig:
    """A named set of rows: one dim, one dtype, one initializer.

    A row is the embedding, `dim` elements of the table's dtype, followed by the optimizer's
    state, `state_width` elements of `computing_dtype`.

    Args:
        name: letters, digits, ``_``, ``.``, ``-``; it is a file name in snapshots.
        dim: elements of an embedding, 1 to 65,536.
        dtype: of embeddings: ``float32``, ``float64``, ``float16`` or ``bfloat16``. A 16-bit
            embedding is read exactly, and rounded stochastically when it was updated.
        initializer: what a key reads as before it has a row; an `Initializer`, or its name.
        admission: which unseen keys earn a row, an `Admission` or ``{"kind": …}``; None: all.
        state_width: elements of optimizer state behind the embedding; set by the engine.
        state_method: whose state that is, an update method or an optimizer of a framework; empty
            if unknown. Set by the engine.
        seed: with the name and the key it determines a row's initial value.
        placement: ``sharded``: each row is on the rank that owns its key; ``replicated``: every
            rank keeps all rows, for small tables that every batch reads much of.
        expire: after how long without a visit rows are removed, an `Expiry` or
            ``{"after_steps": …, "after_days": …}``; None: never.

    Raises:
        InvalidArgumentError: any of these is out of range, or an initial value may lie beyond the
            largest number of the dtype.
    """

    name: str
    dim: int
    dtype: str = "float32"
    initializer: Initializer | str | dict[str, Any] = field(default_factory=Uniform)
    state_width: int = 0
    seed: int = 0
    state_method: str = ""
    admission: AdmissionLike = None
    placement: str = "sharded"
    expire: ExpiryLike = None

    numpy_dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    """The dtype of embeddings, and of arrays of rows; little-endian."""
    computing_dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    """The dtype of state, of gradients and of what a lookup returns."""
    is_replicated: bool = field(init=False, repr=False, compare=False)
    """Whether every rank keeps all rows."""
    is_16_bit: bool = field(init=False, repr=False, compare=False)
    """Whether embeddings have 16 bits an element, fewer than the computing dtype."""
    state_begin: int = field(init=False, repr=False, compare=False)
    """Where state begins in a row, in bytes; the end of the row where there is none."""
    row_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes of a whole row: embedding, gap and state."""
    width: int = field(init=False, repr=False, compare=False)
    """Elements of the table's dtype in a whole row, the state counted as if it were such."""

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
        dtype = self.dtype if isinstance(self.dtype, str) else _dtype_name(self.dtype)
        if dtype not in DTYPES:
            raise InvalidArgumentError(
                f"dtype of table {self.name!r}: found {self.dtype!r}, must be one of {', '.join(DTYPES)}",
                table=self.name,
                dtype=dtype,
            )
        object.__setattr__(self, "dtype", dtype)
        if self.placement not in PLACEMENTS:
            raise InvalidArgumentError(
                f"placement of table {self.name!r}: must be {' or '.join(PLACEMENTS)}, found "
                f"{self.placement!r}",
                table=self.name,
            )
        initializer = parse_initializer(self.initializer)
        _check_range(initializer, self.dim, dtype, self.name)
        object.__setattr__(self, "initializer", initializer)
        object.__setattr__(self, "admission", parse_admission(self.admission))
        object.__setattr__(self, "expire", parse_expiry(self.expire))
        self._derive()

    def _derive(self) -> None:
        """Computes, once, what every step asks for."""
        is_16_bit = self.dtype in _DTYPES_OF_16_BITS
        computing = np.dtype(np.float64 if self.dtype == "float64" else np.float32)
        itemsize = 2 if is_16_bit else computing.itemsize
        unit = computing.itemsize if self.state_width else 1
        state_begin = -(-self.dim * itemsize // unit) * unit
        row_bytes = state_begin + self.state_width * computing.itemsize
        derived = {
            "numpy_dtype": _numpy_dtype(self.dtype),
            "computing_dtype": computing,
            "is_replicated": self.placement == "replicated",
            "is_16_bit": is_16_bit,
            "state_begin": state_begin,
            "row_bytes": row_bytes,
            "width": row_bytes // itemsize,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def embeddings(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The embeddings in an array of rows.

        Args:
            rows: ``(n, width)`` of the table's dtype, each row contiguous.

        Returns:
            ``(n, dim)``: a view.
        """
        return rows[:, : self.dim]

    def state(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The optimizer's state in an array of rows.

        Args:
            rows: ``(n, width)`` of the table's dtype, each row contiguous.

        Returns:
            ``(n, state_width)`` of `computing_dtype`: a view.
        """
        if not self.is_16_bit:
            return rows[:, self.dim :]
        return rows[:, self.state_begin // 2 :].view(self.computing_dtype)

    def with_state(self, state_width: int, state_method: str = "") -> TableConfig:
        """The same table with room for an optimizer's state behind each embedding."""
        return replace(self, state_width=state_width, state_method=state_method)

    @property
    def row_label(self) -> str:
        """Meaning of the bytes of a row, in one line, for storages that outlive the process."""
        return f"{self.dtype} x {self.dim} + {self.state_width} {self.state_method}".rstrip()

    def check_row_label(self, found: str, place: object) -> None:
        """Refuses rows that were written for another layout or another optimizer's state.

        Args:
            found: the `row_label` that the storage recorded when it was made.
            place: where it is stored, for the message.

        Raises:
            InvalidArgumentError: they cannot serve as rows of this table. Where another state is
                all that they have, `found_table` is the table that they are of; `open_storage`
                then names the command to run.
        """
        layout, _, width = found.partition(" + ")
        asked_layout, _, asked_width = self.row_label.partition(" + ")
        width, _, method = width.partition(" ")
        asked_width, _, asked_method = asked_width.partition(" ")
        methods = {method.casefold(), asked_method.casefold()} - {""}
        if (layout, width) == (asked_layout, asked_width) and len(methods) < 2:
            return
        is_convertible = layout == asked_layout and width.isdecimal()
        remedy = (
            "go on with the optimizer that made them, or keep the embeddings and start their "
            f"state again in another place: {CONVERT_HELP}"
            if is_convertible
            else "declare the table as it was made, or name another place"
        )
        raise InvalidArgumentError(
            f"{place} holds rows of table {self.name!r} made as {found!r}, asked was "
            f"{self.row_label!r}; {remedy}",
            table=self.name,
            found_table=self.with_state(int(width), method) if is_convertible else None,
        )

    def with_row_label(self, found: str) -> TableConfig:
        """This table with the state that rows of a label have; itself where they are of another
        kind, which `check_row_label` refuses.

        Args:
            found: the `row_label` that a storage recorded when it was made.
        """
        layout, _, width = found.partition(" + ")
        width, _, method = width.partition(" ")
        if layout != self.row_label.partition(" + ")[0] or not width.isdecimal():
            return self
        return self.with_state(int(width), method)

    def has_other_state(self, other: TableConfig) -> bool:
        """Whether rows of this table cannot serve as rows of `other`, as far as anybody said.

        ``adagrad`` and torch's ``Adagrad`` keep one state: case is no difference.
        """
        methods = {self.state_method.casefold(), other.state_method.casefold()} - {""}
        return self.state_width != other.state_width or len(methods) > 1


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    if dtype == "bfloat16":
        # Here, because few tables need it. NumPy itself has no bfloat16.
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(dtype)


def _dtype_name(dtype: Any) -> str:
    if dtype is None:  # which NumPy takes for float64
        return "None"
    try:
        return str(np.dtype(dtype))
    except (TypeError, ValueError):
        return repr(dtype)


def _check_range(initializer: Initializer, dim: int, dtype: str, table: str) -> None:
    """Refuses an initializer that would give infinity for a number that was asked for."""
    max_abs = initializer.max_abs(dim)
    if not max_abs <= _LARGEST[dtype]:
        raise InvalidArgumentError(
            f"initializer {initializer.kind} of table {table!r}: {initializer.as_dict()} leads to "
            f"{max_abs} and so beyond {dtype}, whose largest number is {_LARGEST[dtype]}; choose "
            "smaller parameters, or a wider dtype",
            table=table,
        )


def _check_whole(what: str, value: object, low: int, high: int, table: str) -> None:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or not low <= int(value) <= high:  # type: ignore[call-overload]
        raise InvalidArgumentError(
            f"{what} of table {table!r}: found {value!r}, must be a whole number from {low} to "
            f"{high}",
            table=table,
        )
