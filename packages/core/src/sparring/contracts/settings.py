"""Settings: frozen dataclasses that declare the fields, limits, defaults and descriptions of options.

They are pydantic dataclasses, so the same class can be called in code and be a section of a
configuration file. Errors in a file contain the path of the value. Each field is ``Annotated[type,
Field(limits, description=…)]``; ``__post_init__`` checks combinations of fields.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING
from enum import Enum
from functools import reduce, wraps
from operator import or_
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeVar, Union, get_args, get_origin

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
    ValidationError,
)
from pydantic.fields import FieldInfo

from sparring.errors import InvalidArgumentError
from sparring.runtime.suggestions import find_closest_name

__all__ = [
    "SETTINGS",
    "Number",
    "checked",
    "choice_type",
    "get_fields",
    "kind_of",
    "parse_setting",
]

SETTINGS = ConfigDict(extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)
"""Pydantic configuration of all settings."""


def _plain_float(value: object) -> object:
    return float(value) if isinstance(value, np.number) else value


Number = Annotated[float, Field(strict=True), BeforeValidator(_plain_float)]
"""Field type for numbers of Python or NumPy. Strings and booleans are rejected."""

_Class = TypeVar("_Class", bound=type)


class Kind(Protocol):
    """A setting that is selected among others by its ``kind``."""

    kind: ClassVar[str]

    def as_dict(self) -> dict[str, Any]: ...


def checked(what: str) -> Callable[[_Class], _Class]:
    """Class decorator: an invalid argument raises `InvalidArgumentError`, not pydantic's error.

    Args:
        what: name of the setting in messages, followed by the class's `kind` if it has one.
    """

    def decorate(cls: _Class) -> _Class:
        validate = cls.__init__  # type: ignore[misc]
        name = f"{what} {getattr(cls, 'kind', '')}".rstrip()

        @wraps(validate)
        def create(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                validate(self, *args, **kwargs)
            except ValidationError as error:
                raise _as_argument_error(cls, name, error) from None

        cls.__init__ = create  # type: ignore[misc]
        return cls

    return decorate


def get_fields(model: Any) -> Mapping[str, FieldInfo]:
    """Returns the fields of a pydantic model or a setting, by name, including `kind`.

    Args:
        model: the class, or an instance of it.
    """
    if hasattr(model, "model_fields"):
        fields: Mapping[str, FieldInfo] = model.model_fields
        return fields
    kind = getattr(model, "kind", "")
    chosen = {"kind": FieldInfo(annotation=Literal[kind])} if kind else {}  # type: ignore[arg-type]
    return {**chosen, **model.__pydantic_fields__}


def kind_of(value: Any) -> str | None:
    """Returns the `kind` of a mapping or setting, or None if it has none.

    Args:
        value: mapping, or instance of a setting.
    """
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return None if kind is None else str(kind)


def choice_type(kinds: Mapping[str, type], choose: Callable[[Any], str | None] = kind_of) -> Any:
    """Returns the type of a field that contains one of several settings.

    In a file, the value is a mapping with `kind` and the fields of that setting, or only the kind.

    Args:
        kinds: kind → setting, or pydantic model with a field `kind`.
        choose: function that returns the kind of a value.
    """
    tagged = [Annotated[_member(cls), Tag(kind)] for kind, cls in kinds.items()]
    return Annotated[
        reduce(or_, tagged[1:], tagged[0]), Discriminator(choose), BeforeValidator(_from_name)
    ]


def parse_setting(what: str, kinds: Mapping[str, type[Any]], value: str | Mapping[str, Any]) -> Any:
    """Creates a setting from the name of its kind, or from ``{"kind": name, parameter: value}``.

    Args:
        what: name of the setting in messages.
        kinds: kind → setting.
        value: the name or mapping.

    Raises:
        InvalidArgumentError: unknown kind, or an unknown, missing or invalid parameter.
    """
    given = {"kind": value} if isinstance(value, str) else dict(value)
    name = given.pop("kind", None)
    kind = kinds.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidArgumentError(f"{what} {name!r} is unknown; choose one of {', '.join(kinds)}")
    return kind(**{str(parameter): each for parameter, each in given.items()})


def _member(cls: type) -> Any:
    if hasattr(cls, "model_fields"):
        return cls
    return Annotated[cls, BeforeValidator(_without_kind), PlainSerializer(_as_dict)]


def _as_dict(setting: Kind) -> dict[str, Any]:
    return setting.as_dict()


def _without_kind(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: each for name, each in value.items() if name != "kind"}


def _from_name(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


def _as_argument_error(cls: type, what: str, error: ValidationError) -> InvalidArgumentError:
    """Converts the first error of pydantic to an error with sparring's wording."""
    details = error.errors(include_url=False)[0]
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, InvalidArgumentError):
        return cause
    fields: Mapping[str, FieldInfo] = cls.__pydantic_fields__  # type: ignore[attr-defined]
    known, place = list(fields), details["loc"][0]
    takes = f"known parameters: {', '.join(known) or 'none'}"
    name = known[place] if isinstance(place, int) and place < len(known) else place
    if name not in fields:
        meant = find_closest_name(str(name), known)
        hint = f"did you mean {meant!r}? " if meant is not None else ""
        return InvalidArgumentError(f"{what}: unknown parameter {name!r}; {hint}{takes}")
    if details["type"].startswith("missing"):
        return InvalidArgumentError(f"{what}: parameter {name!r} is missing; add it ({takes})")
    field = fields[str(name)]
    found = details["input"]
    return InvalidArgumentError(
        f"{what}: {name} must be {_expected(field.annotation, field.metadata)}, found {found!r}"
    )


def _expected(annotation: Any, metadata: list[Any]) -> str:
    """Describes valid values, such as ``a whole number from 1 to 256 or None``."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _expected(inner, [*metadata, *more])
    if origin in (Union, types.UnionType):
        parts = [each for each in get_args(annotation) if each is not type(None)]
        has_none = len(parts) < len(get_args(annotation))
        return " or ".join([*(_expected(each, metadata) for each in parts), *["None"][:has_none]])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return f"one of {', '.join(str(each.value) for each in annotation)}"
    words = {int: "a whole number", float: "a finite number", bool: "True or False", str: "text"}
    return words.get(annotation, f"a {getattr(annotation, '__name__', annotation)}") + _range(
        metadata
    )


def _range(metadata: list[Any]) -> str:
    bounds = [
        inner
        for each in metadata
        for inner in (each.metadata if isinstance(each, FieldInfo) else [each])
    ]
    low = next((each.ge for each in bounds if isinstance(each, Ge)), MISSING)
    high = next((each.le for each in bounds if isinstance(each, Le)), MISSING)
    if low is not MISSING and high is not MISSING:
        return f" from {low} to {high}"
    words = [f"of at least {low}"] if low is not MISSING else []
    words += [f"of at most {high}"] if high is not MISSING else []
    words += [f"above {each.gt}" for each in bounds if isinstance(each, Gt)]
    words += [f"below {each.lt}" for each in bounds if isinstance(each, Lt)]
    return f" {' and '.join(words)}" if words else ""
