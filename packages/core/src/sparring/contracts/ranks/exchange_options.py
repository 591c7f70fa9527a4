"""Options of exchanges between ranks.

Examples:
    >>> from sparring import ExchangeOptions, StepContainer
    >>> options = ExchangeOptions(gradient_wire_dtype="bfloat16")
    >>> with StepContainer(exchange=options) as container:
    ...     options.gradient_wire_dtype
    <WireDtype.BFLOAT16: 'bfloat16'>
"""

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
    """Dtype of numbers in messages. Numbers that already have as few bits are not converted."""

    EXACT = "exact"
    """Unchanged, bit for bit."""
    FLOAT32 = "float32"
    """Only float64 is narrowed."""
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    INT8 = "int8"
    """One float32 scale per row, and integers from -127 to 127."""


if TYPE_CHECKING:
    _GivenDtype = WireDtype | str  # pydantic converts a name to the member
else:
    _GivenDtype = WireDtype


def _auto_is_none(value: Any) -> Any:
    return None if value == "auto" else value


@checked("exchange")
@dataclass(frozen=True, slots=True, config=SETTINGS)
class ExchangeOptions:
    """Options of the exchange between ranks, the same on all ranks. They have no effect on one rank."""

    chunk_rows: Annotated[
        Annotated[WholeNumber, Field(ge=1, le=MAX_CHUNK_ROWS)] | None,
        BeforeValidator(_auto_is_none),
        Field(
            description="Rows per message. `auto` or null: measured when the first exchange begins."
        ),
    ] = None
    chunks_in_flight: Annotated[
        WholeNumber,
        Field(
            ge=1,
            le=MAX_CHUNKS_IN_FLIGHT,
            description="Maximum number of messages that a rank has in flight in each direction; with "
            "`chunk_rows` it limits the memory of an exchange.",
        ),
    ] = 8
    row_wire_dtype: Annotated[
        _GivenDtype,
        Field(
            description="Dtype of rows in messages; numbers that already have as few bits are not "
            "converted. `exact` changes nothing, `float32` only narrows float64, `int8` uses one scale "
            "per row.",
        ),
    ] = WireDtype.EXACT
    gradient_wire_dtype: Annotated[
        _GivenDtype,
        Field(description="Dtype of gradients in messages; see `row_wire_dtype`."),
    ] = WireDtype.EXACT
    two_levels: Annotated[
        bool | None,
        BeforeValidator(_auto_is_none),
        Field(
            description="Whether ranks of one host send short messages to other hosts together: one "
            "per pair of hosts instead of one per pair of ranks. `auto` or null: if they arrive "
            "earlier, which is measured when the first exchange begins. Results do not change."
        ),
    ] = None
