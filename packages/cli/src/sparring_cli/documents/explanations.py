"""Describes pydantic errors in the terms of a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sparring.adapter import find_closest_name
from sparring.contracts import SECRET_IN_CONFIG
from sparring_cli.documents.locations import Locations
from sparring_cli.documents.problems import ConfigPath, Problem, describe_value, format_path
from sparring_cli.documents.schema import UNKNOWN_KEY, find_path, known_keys

__all__ = ["explain_error"]

_MAPPING_ERRORS = {"dict_type", "model_attributes_type", "model_type", "dataclass_type"}

_EXPECTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "enum": "{expected}",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "int_type": "a whole number",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_too_long": "text of at most {max_length} characters",
    "string_too_short": "text that is not empty",
    "string_type": "text",
    "too_long": "at most {max_length} items",
    "too_short": "at least {min_length} items",
    "tuple_type": "a list",
}
"""Type of a pydantic error → expected value; names in braces come from the context of the error."""


def explain_error(
    error: ValidationError,
    locations: Locations,
    *,
    model: type[BaseModel],
    at: ConfigPath = (),
) -> list[Problem]:
    """Returns one problem per pydantic error.

    Args:
        error: Exception that `model` raised.
        locations: Locations of the values in the file.
        model: Model that was validated.
        at: Path of the model's input in the configuration.
    """
    return [
        _explain_one(details, locations, model, at) for details in error.errors(include_url=False)
    ]


def _explain_one(
    details: ErrorDetails, locations: Locations, model: type[BaseModel], at: ConfigPath
) -> Problem:
    inner = find_path(model, details["loc"])
    path = (*at, *inner)
    context = details.get("ctx", {})
    found = describe_value(details["input"])
    kind = details["type"]
    name = format_path(path) or "the configuration"

    if kind in UNKNOWN_KEY:
        known = known_keys(model, details["loc"][:-1])
        section = f" in {format_path(path[:-1])}" if len(path) > 1 else ""
        suggestion = find_closest_name(str(path[-1]), known)
        return Problem(
            locations.of_key(path),
            f"unknown key {str(path[-1])!r}{section}",
            path,
            expected=None if suggestion else _one_of(known),
            suggestion=suggestion,
        )
    if kind == SECRET_IN_CONFIG:
        # Only the reason: the message contains the name already.
        path = (*path, *context.get("path", ()))
        reason = context.get("reason", details["msg"])
        return Problem(locations.of_value(path), f"{format_path(path)}: {reason}", path)
    if kind == "missing":
        return Problem(locations.of_key(path), f"{name} is missing", path)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _explain_kind(kind, context, locations, path)
    if "path" in context:
        path = (*at, *context["path"])
        return Problem(
            locations.of_key(path) if context.get("is_key") else locations.of_value(path),
            f"{format_path(path)}: {details['msg']}",
            path,
            found=context.get("found"),
            expected=context.get("expected"),
            suggestion=context.get("suggestion"),
        )
    if kind == "value_error":
        return Problem(locations.of_value(path), f"{name}: {context['error']}", path)
    if kind in _MAPPING_ERRORS:
        return Problem(locations.of_value(path), f"{name} is wrong", path, found, "a mapping")
    if kind in _EXPECTED:
        suggestion = None
        if kind in ("enum", "literal_error") and isinstance(details["input"], str):
            suggestion = find_closest_name(details["input"], _quoted(context["expected"]))
        return Problem(
            locations.of_value(path),
            f"{name} is wrong",
            path,
            found,
            _EXPECTED[kind].format_map({name: _shown(each) for name, each in context.items()}),
            suggestion,
        )
    message = details["msg"][:1].lower() + details["msg"][1:]
    return Problem(locations.of_value(path), f"{name}: {message}", path, found=found)


def _explain_kind(
    kind: str, context: Mapping[str, Any], locations: Locations, path: ConfigPath
) -> Problem:
    """Describes a discriminator of a union that is missing or unknown."""
    below = (*path, "kind")
    if kind == "union_tag_not_found":
        return Problem(locations.of_key(below), f"{format_path(below)} is missing", below)
    tags = _quoted(context["expected_tags"])
    # An initializer may be given only by its name; then there is no key `kind`.
    at = below if locations.is_known(below) else path
    return Problem(
        locations.of_value(at),
        f"{format_path(at)} is wrong",
        at,
        found=repr(context["tag"]),
        expected=_one_of(tags),
        suggestion=find_closest_name(str(context["tag"]), tags),
    )


def _shown(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _quoted(listed: str) -> list[str]:
    """``"'a', 'b' or 'c'"`` → a, b, c."""
    return listed.split("'")[1::2]


def _one_of(names: tuple[str, ...] | list[str]) -> str | None:
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else "".join(names) or None
