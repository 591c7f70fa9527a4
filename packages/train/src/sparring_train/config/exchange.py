"""How rows and gradients travel between ranks: the `exchange` section."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from sparring import MOST_CHUNK_ROWS, MOST_CHUNKS_IN_FLIGHT, ExchangeOptions
from sparring_train.config.section import Section

__all__ = ["ExchangeConfig"]

_WireDtype = Literal["exact", "float32", "bfloat16", "float16", "int8"]


def _auto_is_null(value: Any) -> Any:
    return None if value == "auto" else value


class ExchangeConfig(Section):
    """All ranks must have the same. A run of one rank exchanges nothing."""

    chunk_rows: Annotated[
        Annotated[int, Field(ge=1, le=MOST_CHUNK_ROWS)] | None, BeforeValidator(_auto_is_null)
    ] = Field(
        None,
        description="Rows in one message. `auto` or null: measured when the first exchange begins.",
    )
    chunks_in_flight: int = Field(
        8,
        ge=1,
        le=MOST_CHUNKS_IN_FLIGHT,
        description="The most messages that a rank has under way each way; with `chunk_rows` it "
        "bounds the memory of an exchange.",
    )
    row_wire_dtype: _WireDtype = Field(
        "exact",
        description="What rows travel as; numbers that have as few bits stay as they are. `exact` "
        "changes none, `float32` narrows float64 only, `int8` has a scale for each row.",
    )
    gradient_wire_dtype: _WireDtype = Field("exact", description="The same for gradients.")

    def options(self) -> ExchangeOptions:
        """For a `StepContainer`."""
        return ExchangeOptions(
            self.chunk_rows,
            self.chunks_in_flight,
            self.row_wire_dtype,
            self.gradient_wire_dtype,
        )
