"""Checks the options that a user gives to a part that a plugin offers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sparring.descriptors import Descriptor, Options
from sparring.errors import InvalidArgumentError
from sparring.names import closest_name

__all__ = ["SECRET_GIVEN", "checked_options"]

SECRET_GIVEN = "secret_given"
"""The type of the pydantic error by which an options model refuses a secret that was written out
where options stand. What was found is then never repeated: messages end up in logs."""


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
        found = error.errors(include_url=False)
        reasons = [
            _reason(details["type"], details["loc"], details["msg"], details["input"], known)
            for details in found
        ]
        secret = {details["loc"][0] for details in found if details["type"] == SECRET_GIVEN}
        raise InvalidArgumentError(
            f"options of {kind} {descriptor.name!r}: {'; '.join(reasons)}; it takes "
            f"{', '.join(known) or 'no options'}",
            backend=descriptor.name,
            options={name: value for name, value in options.items() if name not in secret},
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
    what = f"option {name!r}: " if name else ""
    text = f"{what}{message[:1].lower()}{message[1:]}"
    if error_type == SECRET_GIVEN or isinstance(value, dict):
        return text
    found = repr(value)
    shown = found if len(found) <= 60 else found[:60] + "…"
    return f"{text}, found {shown}"
