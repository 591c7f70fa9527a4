"""Relative paths in configuration files start at the folder of the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any, TypeVar

from pydantic import BaseModel

from sparring.contracts import is_path

__all__ = ["resolve_path", "with_paths"]

_Model = TypeVar("_Model", bound=BaseModel)
_Key = tuple[str | int, ...]


def resolve_path(text: str, folder: str | os.PathLike[str]) -> str:
    """Returns a path relative to the current directory.

    Args:
        text: Path. Absolute paths and URLs are returned unchanged.
        folder: Start of relative paths.
    """
    if "://" in text or "::" in text or Path(text).is_absolute():
        return text
    return os.path.normpath(Path(folder) / text)


def with_paths(model: _Model, change: Callable[[_Key, str], str], at: _Key = ()) -> _Model:
    """Returns a copy of a configuration with all paths replaced.

    Args:
        model: Configuration.
        change: Called with the keys that lead to a path, and the path; returns the new path.
        at: Keys that lead to `model`.
    """
    changed = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        new = _changed(value, is_path(field), change, (*at, name))
        if new is not value:
            changed[name] = new
    if not changed:
        return model
    copied = model.model_copy(update=changed)
    # Fields that the file does not set stay marked as unset, even if their default path has
    # changed.
    copied.model_fields_set.difference_update(changed.keys() - model.model_fields_set)
    return copied


def _changed(value: Any, is_marked: bool, change: Callable[[_Key, str], str], at: _Key) -> Any:
    if isinstance(value, BaseModel):
        return with_paths(value, change, at)
    if isinstance(value, PurePath):
        return type(value)(change(at, str(value)))
    if isinstance(value, str):
        return change(at, value) if is_marked else value
    if isinstance(value, Mapping):
        items = {key: _changed(each, is_marked, change, (*at, key)) for key, each in value.items()}
        return items if any(items[key] is not value[key] for key in items) else value
    if isinstance(value, (list, tuple)):
        parts = [
            _changed(each, is_marked, change, (*at, location))
            for location, each in enumerate(value)
        ]
        is_same = all(new is old for new, old in zip(parts, value, strict=True))
        return value if is_same else type(value)(parts)
    return value
