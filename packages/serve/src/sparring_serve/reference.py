"""Generates the Markdown tables of the reference page from the configuration models.

python -m sparring_serve.reference        # prints them
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from sparring import Expiry
from sparring.contracts import Admission, Initializer
from sparring_serve.backend_tables import BackendTableDeclaration
from sparring_serve.config import (
    ClientConfig,
    LogConfig,
    QuotaConfig,
    ServerConfig,
    ServingConfig,
    TlsFiles,
)
from sparring_serve.declaration import (
    ParametersConfig,
    ReplicationConfig,
    ScheduledSaveConfig,
    StorageDeclaration,
    TableDeclaration,
)

__all__ = ["reference_tables"]

_SECTIONS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("", ServingConfig),
    ("tables.NAME", BackendTableDeclaration),
    ("server", ServerConfig),
    ("server.log", LogConfig),
    ("server.quota", QuotaConfig),
    ("client", ClientConfig),
    ("tls", TlsFiles),
    ("parameters", ParametersConfig),
    ("parameters.save", ScheduledSaveConfig),
    ("parameters.replication", ReplicationConfig),
    ("parameters.tables.NAME", TableDeclaration),
    ("parameters.tables.NAME.storage", StorageDeclaration),
)
_NAMES = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    Path: "path",
    Initializer: "text or mapping",
    Admission: "mapping",
    Expiry: "mapping",
}


def reference_tables() -> str:
    """Returns one Markdown table per section."""
    return "\n".join("\n".join(_table(name, model)) for name, model in _SECTIONS)


def _table(section: str, model: type[BaseModel]) -> Iterator[str]:
    title = {"": "The file", "tls": "`server.tls` and `client.tls`"}.get(section, f"`{section}`")
    yield f"### {title}\n"
    yield "| key | default or type | meaning |\n|---|---|---|"
    for name, field in model.model_fields.items():
        if field.description is None:  # a section, which has a separate table
            continue
        default = field.default
        if field.default_factory is not None:
            default = field.get_default(call_default_factory=True)
        yield f"| `{name}` | {_shown(field.annotation, default)} | {field.description} |"
    yield ""


def _shown(annotation: Any, default: Any) -> str:
    """Returns the default, and the type or the other values if the default does not show them."""
    if get_origin(annotation) is Literal:
        others = [each for each in get_args(annotation) if each != default]
        return f"`{default}`; also {', '.join(f'`{each}`' for each in others)}"
    if default is None or default is PydanticUndefined or isinstance(default, BaseModel):
        return _type(annotation)
    return f"`{_yaml(default)}`"


def _yaml(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Initializer):
        return value.kind
    if isinstance(value, tuple):
        return f"[{', '.join(map(_yaml, value))}]"
    return f"{value:,}".replace(",", "_") if isinstance(value, int) else str(value)


def _type(annotation: Any) -> str:
    if annotation in _NAMES:
        return _NAMES[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin in (Union, UnionType):
        named = [_type(each) for each in arguments if each is not NoneType]
        return " or ".join(["`null`", *named])
    if origin is dict:
        return "mapping"
    if origin is tuple:
        plural = "lists" + _type(arguments[0])[4:] if get_origin(arguments[0]) is tuple else "texts"
        return f"list of {plural}"
    if arguments:  # Annotated
        return _type(arguments[0])
    return "section"


if __name__ == "__main__":
    print(reference_tables(), end="")
