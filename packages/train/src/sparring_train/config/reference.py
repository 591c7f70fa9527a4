"""Writes ``docs/reference/config.md`` from the models: ``python -m sparring_train.config.reference``."""

from __future__ import annotations

import threading
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparring.contracts import get_fields
from sparring_cli import find_shape
from sparring_train.config.run_type import run_type

__all__ = ["render_reference_page"]

_INTRODUCTION = """\
# Configuration

A run is described by a YAML 1.2 file in UTF-8. Any value can be overridden on the command line:
`sparring train run.yaml training.epochs=3 model.bottom_mlp.0=128 data.path=ratings.csv`. The text
after `=` is parsed as YAML, so `[64, 32]` is a list and `{name: adam}` a mapping; quote text that
YAML would parse as another type. Later overrides replace earlier ones. An override creates sections
that the file does not contain, and can change elements of lists in the file.

Unknown keys are errors. All errors are reported at once, each with file, line and column, or with the
override that contains it. `sparring config check` validates a configuration without running it.
`sparring config show` prints the result of a file and overrides, including defaults.

Relative paths in a file start at the folder of the file: with `data: {path: ratings.csv}` in
`runs/films.yaml`, `runs/ratings.csv` is read from any directory. This includes paths in the options of
backends. Paths in overrides start at the current directory, like other arguments of a command. URLs and
absolute paths are used unchanged. `sparring train --relative-to FOLDER` selects another folder for the
relative paths of the file. A snapshot stores absolute paths; data files may be moved if their names stay
the same.

Types are not converted: `8` is a number, `"8"` is text. A file can contain at most 256 KiB and
20,000 values. Tags (`!!python/…`) are rejected.

`python -m sparring_train.config.reference` generates the tables below.
"""

_MACHINE_LIMITS = (2**31 - 1, 2**32 - 1, 2**40, 2**50, 2**63 - 1, threading.TIMEOUT_MAX)
"""Upper bounds that the page omits, because no user reaches them."""


_FEWEST_SHARED = 2
"""Smallest number of equal rows that a section does not repeat."""


def render_reference_page() -> str:
    """Returns the page in Markdown."""
    lines = [_INTRODUCTION]
    known: dict[str, dict[str, str]] = {}
    for title, model in _sections():
        rows = {name: _row(name, field) for name, field in get_fields(model).items()}
        lines += [f"## {title}", "", _paragraph(model), ""]
        earlier, shared = _find_shared(rows, known)
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [row for name, row in rows.items() if name not in shared]
        if shared:
            names = ", ".join(f"`{name}`" for name in shared)
            lines += ["", f"Further keys, described at {earlier}: {names}."]
        lines.append("")
        known[title] = rows
    return "\n".join(lines)


def _find_shared(
    rows: Mapping[str, str], known: Mapping[str, Mapping[str, str]]
) -> tuple[str, list[str]]:
    """Returns the title of the earlier section that has the most equal rows, and their keys; no keys if
    there are only a few."""
    shared = {
        title: [name for name, row in rows.items() if earlier.get(name) == row]
        for title, earlier in known.items()
    }
    title = max(shared, key=lambda each: len(shared[each]), default="")
    keys = shared.get(title, [])
    return (title, keys) if len(keys) >= _FEWEST_SHARED else (title, [])


def _sections() -> Iterator[tuple[str, type[Any]]]:
    """Yields title and model of each section, outermost first, each model once."""
    run = run_type()
    yield "The whole file", run
    waiting: list[tuple[str, Any]] = [
        (name, field.annotation) for name, field in run.model_fields.items()
    ]
    known: set[type[Any]] = set()
    while waiting:
        path, annotation = waiting.pop(0)
        shape = find_shape(annotation)
        if shape.items is not None:
            waiting.insert(0, (f"{path}.<name>", shape.items))
        below: list[tuple[str, Any]] = []
        for kind, model in shape.models.items():
            if model in known:
                continue
            known.add(model)
            yield f"`{path}`" + (f" of kind `{kind}`" if kind else ""), model
            below += [
                (f"{path}.{name}", each.annotation) for name, each in get_fields(model).items()
            ]
        waiting = below + waiting


def _paragraph(model: type[Any]) -> str:
    return " ".join((model.__doc__ or "").split())


def _row(name: str, field: FieldInfo) -> str:
    default = (
        "required" if field.is_required() else _code(field.get_default(call_default_factory=True))
    )
    meaning = field.description or _describe_kind(name)
    cells = (f"`{name}`", _type_name(field.annotation, field.metadata), default, meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _describe_kind(name: str) -> str:
    assert name == "kind", f"field {name} has no description"
    return "Selects this kind."


def _code(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, BaseModel) or is_dataclass(value):
        return "see below"
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return f"`[{', '.join(str(each) for each in value)}]`"
    return f"`{value}`"


def _type_name(annotation: Any, metadata: list[Any]) -> str:
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        inner, *more = get_args(annotation)
        for each in more:
            more = [*more, *each.metadata] if isinstance(each, FieldInfo) else more
        return _type_name(inner, [*metadata, *more])
    if origin is Literal:
        return " or ".join(f"`{each}`" for each in get_args(annotation))
    if origin in (Union, types.UnionType):
        parts = [each for each in get_args(annotation) if each is not type(None)]
        has_null = len(parts) < len(get_args(annotation))
        if any(_is_plain(each) for each in parts):
            name = " or ".join(_type_name(each, metadata) for each in parts)
        else:
            name = "a mapping with `kind`" if len(parts) > 1 else _type_name(parts[0], metadata)
        return name + (" or null" if has_null else "")
    if origin is dict:
        return "a mapping"
    if origin in (tuple, list):
        return "a list of " + _plural(_type_name(get_args(annotation)[0], []))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f"`{each.value}`" for each in annotation)
    if isinstance(annotation, type) and (
        issubclass(annotation, BaseModel) or is_dataclass(annotation)
    ):
        return "a mapping"
    name = {
        int: "whole number",
        float: "number",
        str: "text",
        bool: "`true` or `false`",
    }[annotation]
    return name + _bounds(metadata)


def _is_plain(annotation: Any) -> bool:
    """Returns whether the values of a union's member are neither mappings with `kind` nor models."""
    while get_origin(annotation) is typing.Annotated:
        annotation = get_args(annotation)[0]
    return annotation in (int, float, str, bool) or get_origin(annotation) in (dict, tuple, list)


def _plural(name: str) -> str:
    noun, comma, bounds = name.removeprefix("a ").partition(",")
    return f"{noun}s{comma}{bounds}"


def _bounds(metadata: list[Any]) -> str:
    parts = []
    for bound in metadata:
        if isinstance(bound, Gt):
            parts.append(f"> {bound.gt}")
        elif isinstance(bound, Ge):
            parts.append(f"≥ {bound.ge}")
        elif isinstance(bound, Lt):
            parts.append(f"< {bound.lt}")
        elif isinstance(bound, Le) and bound.le not in _MACHINE_LIMITS:
            parts.append(f"≤ {bound.le}")
        elif isinstance(bound, MaxLen):
            unit = "character" if bound.max_length == 1 else "characters"
            parts.append(f"at most {bound.max_length} {unit}")
    return f", {', '.join(parts)}" if parts else ""


if __name__ == "__main__":
    print(render_reference_page(), end="")
