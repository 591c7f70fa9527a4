"""Options of exchanges, which a configuration may set."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sparring.errors import InvalidArgumentError

__all__ = ["ExchangeOptions", "WireDtype"]

MOST_CHUNK_ROWS = 1 << 20
MOST_CHUNKS_IN_FLIGHT = 64


class WireDtype(Enum):
    """Dtype of numbers on the wire. Numbers that are smaller already stay as they are."""

    EXACT = "exact"
    """Unchanged, bit for bit."""
    FLOAT32 = "float32"
    """Narrows float64 only."""
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"
    """One float32 scale for each row, and whole numbers from -127 to 127."""


@dataclass(frozen=True, slots=True)
class ExchangeOptions:
    """All ranks must have equal ones.

    Args:
        chunk_rows: rows in one message; None has it measured when the first exchange begins, so
            that all ranks use one value.
        chunks_in_flight: how many chunks each way a rank has under way at once; with
            `chunk_rows` it bounds the memory of an exchange.
        row_wire_dtype: of rows on their way from their owner, `WireDtype` or its name.
        gradient_wire_dtype: of gradients on their way to the owner.

    Raises:
        InvalidArgumentError: a number out of range, or a name that is none.
    """

    chunk_rows: int | None = None
    chunks_in_flight: int = 8
    row_wire_dtype: WireDtype | str = WireDtype.EXACT
    gradient_wire_dtype: WireDtype | str = WireDtype.EXACT

    def __post_init__(self) -> None:
        _check("chunk_rows", self.chunk_rows, MOST_CHUNK_ROWS, is_optional=True)
        _check("chunks_in_flight", self.chunks_in_flight, MOST_CHUNKS_IN_FLIGHT)
        for name in ("row_wire_dtype", "gradient_wire_dtype"):
            object.__setattr__(self, name, _member(WireDtype, name, getattr(self, name)))


def _check(name: str, value: object, most: int, *, is_optional: bool = False) -> None:
    if value is None and is_optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidArgumentError(
            f"exchange: {name} must be a whole number from 1 to {most:,}"
            f"{' or None' if is_optional else ''}, found {value!r}"
        )


def _member(kind: type[Enum], name: str, value: object) -> Enum:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(each.value for each in kind)
        raise InvalidArgumentError(
            f"exchange: {name} must be one of {names}, found {value!r}"
        ) from None
