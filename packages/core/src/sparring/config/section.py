"""The base of every section of a configuration."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "NonNegativeFloat",
    "OpenFraction",
    "PositiveFloat",
    "PositiveInt",
    "Section",
    "kind_from_name",
]


class Section(BaseModel):
    """A mapping in the YAML file: unknown keys are refused, nothing changes afterwards.

    Values are taken as YAML read them: the text ``"8"`` is no number, and ``1`` is no boolean.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        str_max_length=4096,
    )


PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]


def kind_from_name(value: Any) -> Any:
    """A name stands for the section of that kind with its defaults."""
    return {"kind": value} if isinstance(value, str) else value
