"""Options of plugins: the base model, and field types for counts, bytes and paths."""

from __future__ import annotations

import re
from decimal import Decimal
from numbers import Integral
from pathlib import PurePath
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

__all__ = ["ByteCount", "LocalPath", "NoOptions", "Options", "WholeNumber", "is_path"]


class Options(BaseModel):
    """Base class of options models. Unknown options are rejected, and defaults are validated."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )


def _plain_int(value: object) -> object:
    # NumPy's integers are Integral; importing NumPy would take most of the time of `sparring --help`.
    return int(value) if isinstance(value, Integral) and not isinstance(value, int) else value


WholeNumber = Annotated[int, Field(strict=True), BeforeValidator(_plain_int)]
"""Field type for counts: an integer of Python or NumPy. Strings, floats and booleans are rejected."""


_UNITS = {"": 1, "b": 1} | {
    f"{letter}{binary}b": (1024 if binary else 1000) ** power
    for power, letter in enumerate("kmgt", 1)
    for binary in ("i", "")
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*\Z")


def _as_bytes(value: object) -> object:
    """Converts text such as ``"512 MiB"`` to bytes; numbers stay unchanged."""
    if not isinstance(value, str):
        return _plain_int(value)
    matched = _SIZE.match(value)
    if matched is None or matched[2].lower() not in _UNITS:
        raise PydanticCustomError(
            "byte_count",
            "must be a number of bytes such as 536870912, or have a unit such as 512 MiB",
        )
    count = Decimal(matched[1]) * _UNITS[matched[2].lower()]
    return int(min(count, Decimal(2**63)))  # above the maximum, so the field rejects it


ByteCount = Annotated[int, Field(strict=True, le=2**63 - 1), BeforeValidator(_as_bytes)]
"""Field type for bytes: a whole number, or text with a unit (KB, MB, GB, TB, KiB, MiB, GiB, TiB).
Options set their own minimum: ``Field(default, ge=…)``."""


class _PathMark:
    """Annotation of text that is a path."""


_MARK = _PathMark()

LocalPath = Annotated[str, _MARK]
"""Field type for a path or URL as text. Relative paths in a configuration file are relative to the
folder of the file. Options of the type `pathlib.Path` are also paths."""


def is_path(option: Any) -> bool:
    """Whether an option contains one or more paths.

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
    """The options model of backends without options."""
