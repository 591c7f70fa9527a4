"""Checks the options that a user gives to a part that a plugin offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sparring.descriptors import Descriptor, Options
from sparring.errors import InvalidArgumentError
from sparring.names import closest_name

__all__ = ["checked_options"]


def checked_options(kind: str, descriptor: Descriptor, options: Mapping[str, Any]) -> Options:
    """`options` as the model that `descriptor` declares.

    Args:
        kind: how messages call the part: ``storage``, ``collective``, ….
        descriptor: whose options they are.
        options: name → value, as given.

    Raises:
        InvalidArgumentError: unknown, missing or wrong options, all of them in one message.
    """
    try:
        return descriptor.options.model_validate(dict(options))
    except ValidationError as error:
        known = sorted(descriptor.options.model_fields)
        reasons = [
            _reason(details["type"], details["loc"], details["msg"], details["input"], known)
            for details in error.errors(include_url=False)
        ]
        raise InvalidArgumentError(
            f"options of {kind} {descriptor.name!r}: {'; '.join(reasons)}; it takes "
            f"{', '.join(known) or 'no options'}",
            backend=descriptor.name,
            options=dict(options),
        ) from None


def _reason(
    error_type: str, location: tuple[int | str, ...], message: str, value: object, known: list[str]
) -> str:
    name = ".".join(str(part) for part in location)
    if error_type == "extra_forbidden":
        meant = closest_name(name, known)
        return f"unknown option {name!r}" + (f", did you mean {meant!r}?" if meant else "")
    if error_type == "missing":
        return f"option {name!r} is missing"
    found = repr(value)
    shown = found if len(found) <= 60 else found[:60] + "…"
    what = f"option {name!r}: " if name else ""
    return f"{what}{message[:1].lower()}{message[1:]}, found {shown}"
