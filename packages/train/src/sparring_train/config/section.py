"""Base class of every section of a configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from sparring.adapter import FoundSecret, find_secrets
from sparring.contracts import SECRET_IN_CONFIG, find_passwords

__all__ = [
    "BackendOptions",
    "NonNegativeFloat",
    "OpenFraction",
    "PositiveFloat",
    "PositiveInt",
    "Section",
]


class Section(BaseModel):
    """A mapping in the YAML file. Immutable; unknown keys are rejected.

    Types are not converted: the text ``"8"`` is not a number, and ``1`` is not a boolean.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        validate_default=True,
        allow_inf_nan=False,
        str_max_length=4096,
        hide_input_in_errors=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _check_no_password(cls, value: Any) -> Any:
        # Runs first, because messages of other checks may quote the value.
        _raise_first(find_passwords(value))
        return value


def _without_secrets(options: dict[str, Any]) -> dict[str, Any]:
    _raise_first(find_secrets(options))
    return options


def _raise_first(found: Iterable[FoundSecret]) -> None:
    for each in found:
        name = ".".join(map(str, each.path))
        context = {"name": name, "reason": each.reason, "path": each.path}
        raise PydanticCustomError(SECRET_IN_CONFIG, "{name} {reason}", context)


BackendOptions = Annotated[dict[str, Any], AfterValidator(_without_secrets)]
"""Options of a backend, which validates them itself. They must not contain secrets."""

PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]
