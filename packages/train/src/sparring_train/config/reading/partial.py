"""The valid part of a configuration that contains errors, for further checks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from sparring.contracts import SECRET_IN_CONFIG
from sparring_cli import UNKNOWN_KEY, ConfigPath, find_path
from sparring_train.config.run import RunConfig

__all__ = ["keep_valid_part", "keep_valid_sections"]


def keep_valid_part(
    model: type[BaseModel], value: Mapping[str, Any], error: ValidationError
) -> dict[str, Any]:
    """Returns `value` without invalid top-level keys, and without unknown keys at any depth.

    Args:
        model: validated `value`.
        error: raised by that validation.
    """
    unknown: list[ConfigPath] = []
    for details in error.errors(include_url=False):
        path = find_path(model, details["loc"])
        if details["type"] == SECRET_IN_CONFIG and not path:
            return {}  # Validation stopped here.
        unknown.append(path if details["type"] in UNKNOWN_KEY else path[:1])
    part: dict[str, Any] = _without(value, (), unknown)
    return part


def keep_valid_sections(
    kind: type[RunConfig], value: Mapping[str, Any], error: ValidationError
) -> dict[str, Any]:
    """Returns the valid sections of a run by name, with defaults.

    Without its unknown keys, a section may still contradict itself; such a section is not valid either.
    """
    part = keep_valid_part(kind, value, error)
    sections = {}
    for name, field in kind.model_fields.items():
        if name in part:
            annotation: Any = Annotated[field.annotation, field]
            with suppress(ValidationError):
                sections[name] = TypeAdapter[Any](annotation).validate_python(part[name])
        elif name not in value and not field.is_required():
            sections[name] = field.get_default(call_default_factory=True)
    return sections


def _without(value: Any, at: ConfigPath, left_out: list[ConfigPath]) -> Any:
    """Returns `value`, which is located at `at`, without the keys at `left_out`."""
    if isinstance(value, Mapping):
        return {
            key: _without(each, (*at, key), left_out)
            for key, each in value.items()
            if (*at, key) not in left_out
        }
    if isinstance(value, list):
        return [_without(each, (*at, place), left_out) for place, each in enumerate(value)]
    return value
