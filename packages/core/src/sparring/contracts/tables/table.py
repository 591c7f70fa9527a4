"""Configuration of a table, the same for every backend, framework and world size.

A row consists of bytes: the embedding in the table's dtype, followed by the optimizer state. State,
gradients and computations use float64 for float64 tables and float32 for all others.

    float32, float64                          float16, bfloat16

    ┌─────────────────┬────────────────┐      ┌───────────┬ ─ ─ ┬────────────────────┐
    │ embedding (dim) │ state          │      │ embedding │ gap │ state, float32     │
    └─────────────────┴────────────────┘      └───────────┴ ─ ─ ┴────────────────────┘
    0                 state_begin  row_bytes   16 bits each  0 or 2 bytes, zero

    int8

    ┌──────────────┬───────┬──────────────────────┐
    │ codes (dim)  │ scale │ state, also 8 bits   │
    └──────────────┴───────┴──────────────────────┘
    0                      state_begin   row_bytes

Storages do not interpret rows: for them, a row is `width` elements of the table's dtype,
``row_bytes / itemsize``. ``native/kernels/row_layout.h`` defines the same layout in C++, and
``native/kernels/bytes.h`` the codes and scales of int8 rows.
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
"""Command that error messages name if they cannot construct the complete command line."""

DTYPES = ("float32", "float64", "float16", "bfloat16", "int8")

PLACEMENTS = ("sharded", "replicated")

_NARROW_DTYPES = ("float16", "bfloat16", "int8")

_SCALE_BYTES = 2
"""Bytes of the scale of an int8 embedding, and of each vector of its state."""

_LARGEST = {
    "int8": 127.0 * 448.0,
    "float16": 65_504.0,
    "bfloat16": (2 - 2**-7) * 2.0**127,
    "float32": float(np.finfo(np.float32).max),
    "float64": float(np.finfo(np.float64).max),
}
"""Largest finite number of each dtype."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]{0,199}\Z")


@dataclass(frozen=True, slots=True)
class TableConfig:
    """Declaration of a table: a named set of rows with one dim, dtype and initializer.

    A row is the embedding, `dim` elements of the table's dtype, followed by the optimizer state,
    `state_width` elements of `computing_dtype`.

    Args:
        name: letters, digits, ``_``, ``.``, ``-``; it is part of file names in snapshots.
        dim: number of elements of an embedding, 1 to 65,536.
        dtype: dtype of embeddings: ``float32``, ``float64``, ``float16``, ``bfloat16`` or ``int8``.
            16-bit and 8-bit embeddings are rounded stochastically after an update. int8 rows have a
            scale per embedding, and optimizer state of 8 bits per element.
        initializer: initial value of keys without a row: an `Initializer`, its name, or
            ``{"kind": …}``.
        state_width: number of elements of optimizer state after the embedding. Set by the engine.
        seed: seed of the initial values.
        state_method: name of the update method or framework optimizer that the state belongs to;
            empty if unknown. Set by the engine.
        admission: filter that decides which new keys get a row, an `Admission` or ``{"kind": …}``;
            None admits all keys.
        placement: ``sharded``: each row is on the rank that owns its key. ``replicated``: every rank
            keeps all rows; for small tables of which every batch reads a large part.
        expire: TTL of rows, an `Expiry` or ``{"after_steps": …, "after_days": …}``; None disables
            expiry.

    Raises:
        InvalidArgumentError: an argument is out of range, or initial values may exceed the largest
            number of the dtype.

    Examples:
        >>> from sparring import TableConfig, Uniform
        >>> table = TableConfig("item", dim=16, initializer=Uniform(-0.1, 0.1))
        >>> table.width, table.row_bytes
        (16, 64)
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
    """Dtype of embeddings and of arrays of rows; little-endian."""
    computing_dtype: np.dtype[Any] = field(init=False, repr=False, compare=False)
    """Dtype of optimizer state, gradients and the results of lookups."""
    is_replicated: bool = field(init=False, repr=False, compare=False)
    """Whether every rank keeps all rows."""
    is_narrow: bool = field(init=False, repr=False, compare=False)
    """Whether elements of embeddings have fewer bits than the computing dtype, so that rows must be
    decoded."""
    embedding_width: int = field(init=False, repr=False, compare=False)
    """Length of a stored embedding in elements of the table's dtype: `dim`, and the scale of int8."""
    state_begin: int = field(init=False, repr=False, compare=False)
    """Offset of the state in a row, in bytes; the length of the row if there is no state."""
    row_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes of a complete row: embedding, gap and state."""
    width: int = field(init=False, repr=False, compare=False)
    """Length of a complete row, state included, in elements of the table's dtype."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise InvalidArgumentError(
                f"table name {self.name!r}: must start with a letter or underscore, and contain only "
                "letters, digits, '_', '.' and '-', at most 200 characters; rename the table",
                table=self.name,
            )
        _check_whole("dim", self.dim, 1, 65_536, self.name)
        _check_whole("state_width", self.state_width, 0, 1_048_576, self.name)
        _check_whole("seed", self.seed, -(2**63), 2**63 - 1, self.name)
        dtype = self.dtype if isinstance(self.dtype, str) else _dtype_name(self.dtype)
        if dtype not in DTYPES:
            raise InvalidArgumentError(
                f"dtype of table {self.name!r}: must be one of {', '.join(DTYPES)}, found {self.dtype!r}",
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
        """Computes the derived fields once, because every step reads them."""
        computing = np.dtype(np.float64 if self.dtype == "float64" else np.float32)
        numpy_dtype = _numpy_dtype(self.dtype)
        itemsize, embedding_width = numpy_dtype.itemsize, self.dim
        if self.dtype == "int8":
            state_begin = embedding_width = self.dim + _SCALE_BYTES
            num_vectors, num_numbers = divmod(self.state_width, self.dim)
            row_bytes = (1 + num_vectors) * state_begin + 2 * num_numbers
        else:
            unit = computing.itemsize if self.state_width else 1
            state_begin = -(-self.dim * itemsize // unit) * unit
            row_bytes = state_begin + self.state_width * computing.itemsize
        derived = {
            "numpy_dtype": numpy_dtype,
            "computing_dtype": computing,
            "is_replicated": self.placement == "replicated",
            "is_narrow": self.dtype in _NARROW_DTYPES,
            "embedding_width": embedding_width,
            "state_begin": state_begin,
            "row_bytes": row_bytes,
            "width": row_bytes // itemsize,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def embeddings(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns a view of the embeddings in an array of rows.

        Args:
            rows: ``(n, width)`` of the table's dtype, each row contiguous.

        Returns:
            ``(n, embedding_width)`` of the table's dtype. `read_embeddings` decodes it.
        """
        return rows[:, : self.embedding_width]

    def state(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns a view of the optimizer state in an array of rows.

        Args:
            rows: ``(n, width)`` of the table's dtype, each row contiguous.

        Returns:
            ``(n, state_width)`` of `computing_dtype`.

        Raises:
            InvalidArgumentError: the dtype is int8, whose state is encoded.
        """
        if self.dtype == "int8":
            raise InvalidArgumentError(
                f"state of table {self.name!r}: rows of int8 contain no state of "
                f"{self.computing_dtype}, but codes of 8 bits; call "
                "sparring.contracts.read_state(table, rows) or write_state(table, rows, state)",
                table=self.name,
            )
        if not self.is_narrow:
            return rows[:, self.dim :]
        return rows[:, self.state_begin // 2 :].view(self.computing_dtype)

    def with_state(self, state_width: int, state_method: str = "") -> TableConfig:
        """Returns this table with another optimizer state in its rows.

        Args:
            state_width: number of elements of state per row.
            state_method: name of the update method or framework optimizer; empty if unknown.

        Raises:
            InvalidArgumentError: `state_width` is not a whole number from 0 to 1,048,576.
        """
        return replace(self, state_width=state_width, state_method=state_method)

    @property
    def row_label(self) -> str:
        """Layout of a row in one line, which persistent storages store with the rows."""
        return f"{self.dtype} x {self.dim} + {self.state_width} {self.state_method}".rstrip()

    def check_row_label(self, found: str, place: object) -> None:
        """Checks that stored rows have the layout and optimizer state of this table.

        Args:
            found: the `row_label` that the storage recorded when it was created.
            place: location of the storage, for the message.

        Raises:
            InvalidArgumentError: the rows have another layout or state. If only the state differs,
                the attribute `found_table` is the table of the rows, and `open_storage` adds the
                command that converts them.
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
            "continue with the optimizer that created them, or copy the embeddings, with new "
            f"optimizer state, to another location: {CONVERT_HELP}"
            if is_convertible
            else "declare the table as it was created, or name another location"
        )
        raise InvalidArgumentError(
            f"{place} contains rows of table {self.name!r} with layout {found!r}, expected "
            f"{self.row_label!r}; {remedy}",
            table=self.name,
            found_table=self.with_state(int(width), method) if is_convertible else None,
        )

    def with_row_label(self, found: str) -> TableConfig:
        """Returns this table with the optimizer state that a row label describes.

        If the label describes another dim or dtype, which `check_row_label` rejects, the table is
        returned unchanged.

        Args:
            found: the `row_label` that a storage recorded when it was created.
        """
        layout, _, width = found.partition(" + ")
        width, _, method = width.partition(" ")
        if layout != self.row_label.partition(" + ")[0] or not width.isdecimal():
            return self
        return self.with_state(int(width), method)

    def has_other_state(self, other: TableConfig) -> bool:
        """Whether the optimizer states of this table and `other` are known to be incompatible.

        Names are compared without case, because ``adagrad`` and torch's ``Adagrad`` have the same
        state.

        Args:
            other: table to compare with. An empty `state_method` fits every method.
        """
        methods = {self.state_method.casefold(), other.state_method.casefold()} - {""}
        return self.state_width != other.state_width or len(methods) > 1


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    if dtype == "bfloat16":
        # Imported here because few tables need it. NumPy itself does not support bfloat16.
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(dtype)


def _dtype_name(dtype: Any) -> str:
    if dtype is None:  # NumPy would interpret it as float64
        return "None"
    try:
        return str(np.dtype(dtype))
    except (TypeError, ValueError):
        return repr(dtype)


def _check_range(initializer: Initializer, dim: int, dtype: str, table: str) -> None:
    """Rejects an initializer whose values may become infinite in the table's dtype."""
    max_abs = initializer.max_abs(dim)
    if not max_abs <= _LARGEST[dtype]:
        raise InvalidArgumentError(
            f"initializer {initializer.kind} of table {table!r}: values of {initializer.as_dict()} "
            f"can be as large as {max_abs}, but must not exceed {_LARGEST[dtype]}, the largest "
            f"{dtype}; choose smaller parameters, or a wider dtype",
            table=table,
        )


def _check_whole(what: str, value: object, low: int, high: int, table: str) -> None:
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or not low <= int(value) <= high:  # type: ignore[call-overload]
        raise InvalidArgumentError(
            f"{what} of table {table!r}: must be a whole number from {low} to {high}, found "
            f"{value!r}",
            table=table,
        )
