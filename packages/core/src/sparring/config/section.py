"""The base of every section of a configuration."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from sparring.options import SECRET_GIVEN

__all__ = [
    "BackendOptions",
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


def _without_passwords(options: dict[str, Any]) -> dict[str, Any]:
    """Configurations are printed, compared between ranks and kept with results."""
    for name, value in options.items():
        if isinstance(value, str) and _URL_WITH_PASSWORD.match(value):
            raise PydanticCustomError(
                SECRET_GIVEN,
                "{name} is a URL with a password in it, and configurations are printed; leave user "
                "and password out of it, and give them by the options that the backend has for "
                "them, as password_environment",
                {"name": name},
            )
    return options


_URL_WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://[^/?#]*:[^/?#]*@")

BackendOptions = Annotated[dict[str, Any], AfterValidator(_without_passwords)]
"""The options of a backend, which are its own to check."""

PositiveInt = Annotated[int, Field(ge=1, le=2**31 - 1)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
OpenFraction = Annotated[float, Field(gt=0, lt=1)]


def kind_from_name(value: Any) -> Any:
    """A name stands for the section of that kind with its defaults."""
    return {"kind": value} if isinstance(value, str) else value
