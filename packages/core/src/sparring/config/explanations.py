"""Puts what pydantic found wrong into the words of a configuration file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sparring.config.places import Places
from sparring.config.problems import ConfigPath, Problem, describe_value, dotted
from sparring.config.schema import known_keys, path_of
from sparring.names import closest_name

__all__ = ["explain"]

_MAPPING_ERRORS = {"dict_type", "model_attributes_type", "model_type", "dataclass_type"}

_EXPECTED: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "bool_parsing": lambda c: "true or false",
    "bool_type": lambda c: "true or false",
    "finite_number": lambda c: "a finite number",
    "float_parsing": lambda c: "a number",
    "float_type": lambda c: "a number",
    "greater_than": lambda c: f"a number above {_number(c['gt'])}",
    "greater_than_equal": lambda c: f"a number of at least {_number(c['ge'])}",
    "int_from_float": lambda c: "a whole number",
    "int_parsing": lambda c: "a whole number",
    "int_parsing_size": lambda c: "a smaller whole number",
    "int_type": lambda c: "a whole number",
    "less_than": lambda c: f"a number below {_number(c['lt'])}",
    "less_than_equal": lambda c: f"a number of at most {_number(c['le'])}",
    "list_type": lambda c: "a list",
    "literal_error": lambda c: str(c["expected"]),
    "string_pattern_mismatch": lambda c: f"text of the form {c['pattern']}",
    "string_too_long": lambda c: f"text of at most {c['max_length']:,} characters",
    "string_too_short": lambda c: "text that is not empty",
    "string_type": lambda c: "text",
    "too_long": lambda c: f"at most {c['max_length']:,} items",
    "too_short": lambda c: f"at least {c['min_length']:,} items",
    "tuple_type": lambda c: "a list",
}


def explain(
    error: ValidationError, value: Any, places: Places, *, model: type[BaseModel], at: ConfigPath = ()
) -> list[Problem]:
    """One problem for each thing that pydantic found.

    Args:
        error: what `model` raised.
        value: what it was given.
        places: where the values stand.
        model: the model that was validated.
        at: where in the configuration `value` stands.
    """
    return [
        _explain_one(details, value, places, model, at)
        for details in error.errors(include_url=False)
    ]


def _explain_one(
    details: ErrorDetails, value: Any, places: Places, model: type[BaseModel], at: ConfigPath
) -> Problem:
    inner = path_of(model, details["loc"])
    path = (*at, *inner)
    context = details.get("ctx", {})
    found = describe_value(details["input"])
    kind = details["type"]
    name = dotted(path) or "the configuration"

    if kind == "extra_forbidden":
        known = known_keys(model, inner[:-1], value)
        section = f" in {dotted(path[:-1])}" if len(path) > 1 else ""
        suggestion = closest_name(str(path[-1]), known)
        return Problem(
            places.of_key(path),
            f"unknown key {str(path[-1])!r}{section}",
            path,
            expected=None if suggestion else _one_of(known),
            suggestion=suggestion,
        )
    if kind == "missing":
        return Problem(places.of_key(path), f"{name} is missing", path)
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return _explain_kind(kind, context, places, path)
    if "path" in context:
        path = (*at, *context["path"])
        return Problem(
            places.of_value(path),
            f"{dotted(path)}: {details['msg']}",
            path,
            found=context.get("found"),
            expected=context.get("expected"),
        )
    if kind == "value_error":
        return Problem(places.of_value(path), f"{name}: {context['error']}", path)
    if kind in _MAPPING_ERRORS:
        return Problem(places.of_value(path), f"{name} is wrong", path, found, "a mapping")
    if kind in _EXPECTED:
        suggestion = None
        if kind == "literal_error" and isinstance(details["input"], str):
            suggestion = closest_name(details["input"], _quoted(context["expected"]))
        return Problem(
            places.of_value(path),
            f"{name} is wrong",
            path,
            found,
            _EXPECTED[kind](context),
            suggestion,
        )
    message = details["msg"][:1].lower() + details["msg"][1:]
    return Problem(places.of_value(path), f"{name}: {message}", path, found=found)


def _explain_kind(kind: str, context: Mapping[str, Any], places: Places, path: ConfigPath) -> Problem:
    """The discriminator of a union is missing or names no member."""
    below = (*path, "kind")
    if kind == "union_tag_not_found":
        return Problem(places.of_key(below), f"{dotted(below)} is missing", below)
    tags = _quoted(context["expected_tags"])
    return Problem(
        places.of_value(below),
        f"{dotted(below)} is wrong",
        below,
        found=repr(context["tag"]),
        expected=_one_of(tags),
        suggestion=closest_name(str(context["tag"]), tags),
    )


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _quoted(listed: str) -> list[str]:
    """``"'a', 'b' or 'c'"`` → a, b, c."""
    return listed.split("'")[1::2]


def _one_of(names: tuple[str, ...] | list[str]) -> str | None:
    return ", ".join(names[:-1]) + " or " + names[-1] if len(names) > 1 else "".join(names) or None
