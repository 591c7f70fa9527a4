"""Walks the models of a configuration, to find what may stand at a path."""

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
"""Types of the error for an unknown key, in a model and in a setting."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Permitted values at a path.

    Args:
        models: discriminator → model or setting; a section of one kind has the only key ``""``.
        discriminator: the key that chooses among several models.
        tags: names of all members of a union, by which pydantic's locations contain them.
        items: the annotation of list items or of mapping values.
    """

    models: Mapping[str, type[Any]]
    discriminator: str | None = None
    tags: frozenset[str] = frozenset()
    items: Any = None


def find_shape(annotation: Any) -> Shape:
    """The shape behind an annotation, without `Annotated` and `None`."""
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
        if models:
            return Shape(models, "kind", frozenset(members))
    if origin is dict or origin is tuple or origin is list:
        return Shape({}, items=get_args(annotation)[-1 if origin is dict else 0])
    return Shape({})


def find_path(top: type[BaseModel], location: tuple[int | str, ...]) -> ConfigPath:
    """pydantic's location of an error, without the names of union members in it."""
    shape = Shape({"": top})
    path: list[str | int] = []
    for part in location:
        if part in shape.tags:
            model = shape.models.get(str(part))
            shape = Shape({}) if model is None else Shape({"": model})
            continue
        path.append(part)
        shape = _below(shape, part)
    return tuple(path)


def known_keys(top: type[BaseModel], path: ConfigPath, value: Any) -> tuple[str, ...]:
    """The keys that the mapping at `path` may have.

    Args:
        top: the model of the whole.
        path: the mapping.
        value: the whole, as it was read; it decides which member of a union is meant.
    """
    shape = _choose_member(Shape({"": top}), value)
    for part in path:
        value = _item(value, part)
        shape = _choose_member(_below(shape, part), value)
    return tuple(key for model in shape.models.values() for key in get_fields(model))


def _is_model(annotation: Any) -> bool:
    # Python 3.10 takes `list[int]` for an instance of `type`, which `issubclass` then refuses.
    is_class = get_origin(annotation) is None and isinstance(annotation, type)
    return is_class and (issubclass(annotation, BaseModel) or is_dataclass(annotation))


def _below(shape: Shape, part: str | int) -> Shape:
    model = shape.models.get("")
    if model is not None and part in get_fields(model):
        return find_shape(get_fields(model)[str(part)].annotation)
    return find_shape(shape.items)


def _choose_member(shape: Shape, value: Any) -> Shape:
    if shape.discriminator is None:
        return shape
    kind = value.get(shape.discriminator) if isinstance(value, dict) else None
    if isinstance(kind, str) and kind in shape.models:
        return Shape({"": shape.models[kind]})
    return shape


def _item(value: Any, part: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(part)
    if isinstance(value, list) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def _member(part: Any) -> tuple[str, Any]:
    """Tag and model of one kind."""
    if get_origin(part) is typing.Annotated:
        model, *marks = get_args(part)
        tags = [each.tag for each in marks if isinstance(each, Tag)]
        return tags[0], model
    if not _is_model(part):
        return str(getattr(part, "__name__", part)), part
    if "kind" not in get_fields(part):
        return part.__name__, part
    annotation = get_fields(part)["kind"].annotation
    assert get_origin(annotation) is Literal
    return str(get_args(annotation)[0]), part
