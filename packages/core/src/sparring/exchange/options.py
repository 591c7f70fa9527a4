"""How ranks exchange rows and gradients: what a configuration may choose."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sparring.errors import InvalidArgumentError

__all__ = ["ExchangeOptions", "Schedule", "WireDtype"]

MOST_CHUNK_ROWS = 1 << 20
MOST_CHUNKS_IN_FLIGHT = 64


class Schedule(Enum):
    """In what order a rank finds, sends and receives."""

    RING = "ring"
    """Hop by hop in chunks: rows of one chunk travel while the next is found."""
    SEQUENTIAL = "sequential"
    """Everything is found, then one all-to-all. No overlap; for comparison."""


class WireDtype(Enum):
    """What numbers are while they travel. Numbers that are smaller already stay as they are."""

    EXACT = "exact"
    """As they are, bit for bit."""
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
        schedule: `Schedule`, or its name.
        chunk_rows: rows in one message; None has it measured when the first exchange begins, so
            that all ranks use one value.
        chunks_in_flight: how many chunks each way a rank has under way at once; with
            `chunk_rows` it bounds the memory of an exchange.
        row_wire_dtype: of rows on their way from their owner, `WireDtype` or its name.
        gradient_wire_dtype: of gradients on their way to the owner.

    Raises:
        InvalidArgumentError: a number out of range, or a name that is none.
    """

    schedule: Schedule | str = Schedule.RING
    chunk_rows: int | None = None
    chunks_in_flight: int = 8
    row_wire_dtype: WireDtype | str = WireDtype.EXACT
    gradient_wire_dtype: WireDtype | str = WireDtype.EXACT

    def __post_init__(self) -> None:
        _check("chunk_rows", self.chunk_rows, MOST_CHUNK_ROWS, is_optional=True)
        _check("chunks_in_flight", self.chunks_in_flight, MOST_CHUNKS_IN_FLIGHT)
        object.__setattr__(self, "schedule", _member(Schedule, "schedule", self.schedule))
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
