"""Validation of the options of a registered backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sparring.contracts.descriptors import Descriptor
from sparring.contracts.options import Options
from sparring.errors import InvalidArgumentError
from sparring.runtime.secrets import SECRET_IN_CONFIG, may_show_secret
from sparring.runtime.suggestions import find_closest_name

__all__ = ["validate_options"]


def validate_options(kind: str, descriptor: Descriptor, options: Mapping[str, Any]) -> Options:
    """Validates options with the model of a descriptor, and returns the model.

    Args:
        kind: kind of the descriptor in messages: ``storage``, ``collective``, ….
        descriptor: the descriptor of the backend.
        options: name → value.

    Raises:
        InvalidArgumentError: options are unknown, missing or invalid; the message contains all problems.
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
        harmless = {
            name: value
            for name, value in options.items()
            if not may_show_secret(name) and not may_show_secret(repr(value))
        }
        raise InvalidArgumentError(
            f"options of {kind} {descriptor.name!r}: {'; '.join(reasons)}; known options: "
            f"{', '.join(known) or 'none'}",
            backend=descriptor.name,
            options=harmless,
        ) from None


def _reason(
    error_type: str, location: tuple[int | str, ...], message: str, value: object, known: list[str]
) -> str:
    name = ".".join(str(part) for part in location)
    if error_type == "extra_forbidden":
        meant = find_closest_name(name, known)
        return f"unknown option {name!r}" + (f", did you mean {meant!r}?" if meant else "")
    if error_type == "missing":
        return f"option {name!r} is missing"
    what = f"option {name!r}: " if name else ""
    text = f"{what}{message[:1].lower()}{message[1:]}"
    if error_type == SECRET_IN_CONFIG or isinstance(value, dict):
        return text
    found = repr(value)
    if may_show_secret(name) or may_show_secret(found):
        return text
    shown = found if len(found) <= 60 else found[:60] + "…"
    return f"{text}, found {shown}"
