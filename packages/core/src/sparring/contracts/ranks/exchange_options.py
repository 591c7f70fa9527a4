"""Options of exchanges between ranks."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from sparring.contracts.options import WholeNumber
from sparring.contracts.settings import SETTINGS, checked

__all__ = ["MAX_CHUNKS_IN_FLIGHT", "MAX_CHUNK_ROWS", "ExchangeOptions", "WireDtype"]

MAX_CHUNK_ROWS = 1 << 20
MAX_CHUNKS_IN_FLIGHT = 64


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


if TYPE_CHECKING:
    _GivenDtype = WireDtype | str  # a name becomes the member
else:
    _GivenDtype = WireDtype


def _auto_is_none(value: Any) -> Any:
    return None if value == "auto" else value


@checked("exchange")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class ExchangeOptions:
    """All ranks must have the same. A run of one rank exchanges nothing."""

    chunk_rows: Annotated[
        Annotated[WholeNumber, Field(ge=1, le=MAX_CHUNK_ROWS)] | None,
        BeforeValidator(_auto_is_none),
        Field(
            description="Rows in one message. `auto` or null: measured when the first exchange begins."
        ),
    ] = None
    chunks_in_flight: Annotated[
        WholeNumber,
        Field(
            ge=1,
            le=MAX_CHUNKS_IN_FLIGHT,
            description="The most messages that a rank has under way each way; with `chunk_rows` it "
            "bounds the memory of an exchange.",
        ),
    ] = 8
    row_wire_dtype: Annotated[
        _GivenDtype,
        Field(
            description="What rows travel as; numbers that have as few bits stay as they are. `exact` "
            "changes none, `float32` narrows float64 only, `int8` has a scale for each row.",
        ),
    ] = WireDtype.EXACT
    gradient_wire_dtype: Annotated[_GivenDtype, Field(description="The same for gradients.")] = (
        WireDtype.EXACT
    )
