"""Options of the parts that plugins offer: their base model, and types for counts and bytes."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import PurePath
from typing import Annotated, Any, get_args, get_origin

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

__all__ = ["ByteCount", "LocalPath", "NoOptions", "Options", "WholeNumber", "is_path"]


class Options(BaseModel):
    """The base of options models: unknown options are refused, defaults are checked too."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )


def _plain_int(value: object) -> object:
    return int(value) if isinstance(value, np.integer) else value


WholeNumber = Annotated[int, Field(strict=True), BeforeValidator(_plain_int)]
"""For options that are counts: an integer of Python or NumPy; no text, no float, no True."""


_UNITS = {"": 1, "b": 1} | {
    f"{letter}{binary}b": (1024 if binary else 1000) ** power
    for power, letter in enumerate("kmgt", 1)
    for binary in ("i", "")
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*\Z")


def _as_bytes(value: object) -> object:
    """``"512 MiB"`` → bytes; numbers are left alone."""
    if not isinstance(value, str):
        return _plain_int(value)
    matched = _SIZE.match(value)
    if matched is None or matched[2].lower() not in _UNITS:
        raise PydanticCustomError(
            "byte_count", "must be a number of bytes, as 536870912, or one with a unit, as 512 MiB"
        )
    count = Decimal(matched[1]) * _UNITS[matched[2].lower()]
    return int(min(count, Decimal(2**63)))  # which is too many


ByteCount = Annotated[int, Field(strict=True, le=2**63 - 1), BeforeValidator(_as_bytes)]
"""For options that are bytes: a whole number, or text with a unit: KB, MB, GB, TB, KiB, MiB, GiB,
TiB. Give ``ge`` with the default."""


class _PathMark:
    """Marks text as a path."""


_MARK = _PathMark()

LocalPath = Annotated[str, _MARK]
"""Type of an option that contains a path or a URL as text. Relative paths in a configuration file start
at the folder of the file. Options of the type `pathlib.Path` are paths, too."""


def is_path(option: Any) -> bool:
    """Whether an option contains a path, or several.

    Args:
        option: a field of a model, or its type.
    """
    if isinstance(option, FieldInfo):
        return _MARK in option.metadata or is_path(option.annotation)
    if get_origin(option) is Annotated and _MARK in get_args(option)[1:]:
        return True
    if isinstance(option, type) and get_origin(option) is None:
        return issubclass(option, PurePath)
    return any(is_path(each) for each in get_args(option))


class NoOptions(Options):
    """For parts that take no options."""
