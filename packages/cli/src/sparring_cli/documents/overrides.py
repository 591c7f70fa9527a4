"""Overrides on the command line: ``dotted.key=value``."""

from __future__ import annotations

import sys
from typing import Any

from sparring.adapter import may_show_secret
from sparring_cli.documents.locations import Locations
from sparring_cli.documents.problems import (
    ConfigPath,
    Location,
    Problem,
    describe_value,
    format_path,
)
from sparring_cli.documents.reader import CONFIG_LIMITS, Limits, parse_yaml

__all__ = ["apply_override"]

_MAX_SHOWN_CHARS = 80


def apply_override(
    override: str, value: dict[str, Any], locations: Locations, limits: Limits = CONFIG_LIMITS
) -> list[Problem]:
    """Sets one value in `value`, in place, and records in `locations` where it came from.

    The text after ``=`` is parsed as YAML: ``training.epochs=3``, ``data={kind: movielens, …}``.
    Missing sections are created. Returns the problems.
    """
    shown = override if len(override) <= _MAX_SHOWN_CHARS else override[:_MAX_SHOWN_CHARS] + "…"
    key, equals, text = override.partition("=")
    if may_show_secret(override):
        shown = key if equals and "@" not in key else "…"
    location = Location(sys.maxsize, 0, f"override {shown}")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        return [Problem(location, "an override has the form dotted.key=value")]
    parsed = parse_yaml(text, lambda _line, _column: location, limits)
    if parsed.problems:
        hint = "quote the value if it is text"
        return [Problem(location, f"{problem.message}; {hint}") for problem in parsed.problems]

    path: ConfigPath = ()
    target: Any = value
    for i, part in enumerate(parts):
        is_last = i == len(parts) - 1
        if isinstance(target, list):
            if not part.isascii() or not part.isdigit() or int(part) >= len(target):
                return [_no_such_item(location, path, part, target)]
            index: Any = int(part)
            is_new = False
        elif isinstance(target, dict):
            index = part
            is_new = part not in target or target[part] is None
        else:
            return [
                Problem(
                    location,
                    f"{format_path(path)} cannot have a key {part!r}; override {format_path(path)} "
                    f"itself",
                    path,
                    found=describe_value(target),
                    expected="a mapping or a list",
                )
            ]
        path = (*path, index)
        if is_last:
            target[index] = parsed.value
            locations.replace(path, location)
        elif is_new:
            target[index] = {}
            locations.replace(path, location)
        target = target[index]
    return []


def _no_such_item(location: Location, path: ConfigPath, part: str, target: list[Any]) -> Problem:
    return Problem(
        location,
        f"{format_path(path)} has no item {part!r}",
        path,
        found=f"{len(target)} items",
        expected=f"an index from 0 to {len(target) - 1}" if target else "the whole list",
    )
