"""Traverses the models of a configuration to find the permitted values at a path."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, Tag

from sparring.contracts import get_fields
from sparring_cli.documents.problems import ConfigPath

__all__ = ["UNKNOWN_KEY", "Shape", "known_keys", "find_path", "find_shape"]

UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""Error types for an unknown key, in a model and in a setting."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Permitted values at a path.

    Args:
        models: Kind → model or setting; a section with only one kind has the key ``""``.
        tags: Names of all members of a union, as in pydantic's locations.
        items: Annotation of list items or mapping values.
    """

    models: Mapping[str, type[Any]]
    tags: frozenset[str] = frozenset()
    items: Any = None


def find_shape(annotation: Any) -> Shape:
    """Returns the shape of an annotation, without `Annotated` and `None`."""
    while get_origin(annotation) is typing.Annotated:
        annotation = get_args(annotation)[0]
    if _is_model(annotation):
        return Shape({"": annotation})
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        if len(parts) == 1:
            return find_shape(parts[0])
        members = dict(map(_member, parts))
        models = {tag: part for tag, part in members.items() if _is_model(part)}
        if models or any(get_origin(part) is typing.Annotated for part in parts):
            return Shape(models, frozenset(members))
    if origin is dict or origin is tuple or origin is list:
        return Shape({}, items=get_args(annotation)[-1 if origin is dict else 0])
    return Shape({})


def find_path(top: type[BaseModel], location: tuple[int | str, ...]) -> ConfigPath:
    """Returns pydantic's location of an error, without the names of union members."""
    return _follow(top, location)[0]


def _follow(top: type[BaseModel], location: tuple[int | str, ...]) -> tuple[ConfigPath, Shape]:
    """Returns the path without the names of union members, and the shape at the path."""
    shape = Shape({"": top})
    path: list[str | int] = []
    for part in location:
        if part in shape.tags:
            model = shape.models.get(str(part))
            shape = Shape({}) if model is None else Shape({"": model})
            continue
        path.append(part)
        shape = _below(shape, part)
    return tuple(path), shape


def known_keys(top: type[BaseModel], location: tuple[int | str, ...]) -> tuple[str, ...]:
    """Returns the permitted keys of a mapping.

    Args:
        top: Model of the whole configuration.
        location: pydantic's location of the mapping, which contains the names of union members.
    """
    _, shape = _follow(top, location)
    return tuple(key for model in shape.models.values() for key in get_fields(model))


def _is_model(annotation: Any) -> bool:
    # In Python 3.10, `list[int]` is an instance of `type`, but `issubclass` rejects it.
    is_class = get_origin(annotation) is None and isinstance(annotation, type)
    return is_class and (issubclass(annotation, BaseModel) or is_dataclass(annotation))


def _below(shape: Shape, part: str | int) -> Shape:
    model = shape.models.get("")
    if model is not None and part in get_fields(model):
        return find_shape(get_fields(model)[str(part)].annotation)
    return find_shape(shape.items)


def _member(part: Any) -> tuple[str, Any]:
    """Returns the tag and the model of a union member."""
    if get_origin(part) is typing.Annotated:
        model, *marks = get_args(part)
        tags = [each.tag for each in marks if isinstance(each, Tag)]
        if tags:
            return tags[0], model
        part = model
    if not _is_model(part):
        return str(getattr(part, "__name__", part)), part
    if "kind" not in get_fields(part):
        return part.__name__, part
    annotation = get_fields(part)["kind"].annotation
    assert get_origin(annotation) is Literal
    return str(get_args(annotation)[0]), part
