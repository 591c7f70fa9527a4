"""YAML files → pydantic models; what is wrong is named with file, line and column."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from sparring import closest_name
from sparring.contracts import may_show_secret
from sparring.errors import ConfigError
from sparring_cli.documents.paths import resolve_path, with_paths

__all__ = ["Document", "DocumentModel", "read_document"]

_MAX_BYTES = 1 << 26
_MAX_VALUES = 2_000_000
_SCALARS = frozenset(
    f"tag:yaml.org,2002:{name}" for name in ("bool", "float", "int", "null", "str", "timestamp")
)
# Names of aliases and tags: `*` and `!` may begin a password without quotes.
_QUOTED = re.compile(r" '[^'<][^']+'")
_Model = TypeVar("_Model", bound="DocumentModel")
_Key = tuple[str | int, ...]


class DocumentModel(BaseModel):
    """The base of what files hold: frozen, and refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Document:
    """A parsed file: its value, and the place of each key in it."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self._places: dict[_Key, tuple[int, int]] = {(): (0, 0)}
        self._overridden: dict[_Key, str] = {}
        self._num_values = 0
        loader = YAML(typ="safe", pure=True)
        try:
            node = loader.compose(text)
            self._constructor = loader.constructor
            self.value = {} if node is None else self._read(node, ())
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
            reason = _QUOTED.sub("", str(error.problem or error.context))
            raise ConfigError(f"{place}: YAML: {reason}") from None
        except (YAMLError, RecursionError) as error:
            raise ConfigError(f"{source}: YAML: {error}") from None
        if not isinstance(self.value, dict):
            self.refuse((), "the file must hold a mapping of keys to values")

    def place(self, path: _Key) -> str:
        """``file:line:column`` of the key at `path`, or of what it would be in."""
        while path not in self._places and path not in self._overridden:
            path = path[:-1]
        if path in self._overridden:
            return self._overridden[path]
        line, column = self._places[path]
        return f"{self.source}:{line + 1}:{column + 1}"

    def refuse(self, path: _Key, message: str) -> NoReturn:
        raise ConfigError(f"{self.place(path)}: {message}")

    def override(self, text: str) -> None:
        """Sets one value: ``dotted.key=value``, the value in YAML. Sections that are missing are made.

        Raises:
            ConfigError: the text has another form, or its key leads through what is no section.
        """
        key, equals, value = text.partition("=")
        path = tuple(key.strip().split("."))
        if not equals or not all(path):
            shown = "" if may_show_secret(text) else f" {text!r}"
            raise ConfigError(f"override{shown}: must be dotted.key=value, as server.threads=4")
        of_key = Document(f"override {key}", f"{json.dumps(key)}: {value}").value
        given = next(iter(of_key.values()))  # YAML may write the key otherwise
        section = self.value
        for part in path[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise ConfigError(f"override {key}: {part} is no section; override {part} itself")
        section[path[-1]] = given
        # What the file had below the key is gone.
        self._places = {at: place for at, place in self._places.items() if at[: len(path)] != path}
        self._overridden[path] = f"override {key}"

    def as_model(self, model: type[_Model]) -> _Model:
        """The value as `model`; relative paths of the file start at its folder, those of overrides at
        the current directory.

        Raises:
            ConfigError: the value does not fit; a line for each fault.
        """
        try:
            checked = model.model_validate(self.value)
            folder = Path(self.source).parent
            return with_paths(
                checked,
                lambda at, text: text if self._is_overridden(at) else resolve_path(text, folder),
            )
        except ValidationError as error:
            lines = [self._explain(model, each) for each in error.errors(include_url=False)]
            raise ConfigError("\n".join(lines)) from None

    def _is_overridden(self, path: _Key) -> bool:
        return any(path[: len(each)] == each for each in self._overridden)

    def _explain(self, model: type[BaseModel], error: Any) -> str:
        path: _Key = error["loc"]
        name = ".".join(map(str, path)) or "the file"
        if error["type"] == "extra_forbidden":
            known = _known_keys(model, path[:-1])
            near = closest_name(str(path[-1]), known)
            advice = f"did you mean {near}?" if near else f"expected one of {', '.join(known)}"
            return f"{self.place(path)}: unknown key {name} ({advice})"
        if error["type"] == "missing":
            return f"{self.place(path)}: {name} is missing; add it"
        message = error["msg"].removeprefix("Value error, ")
        found = _shown(path, error["input"])
        found = f" (found {found})" if found else ""
        return f"{self.place(path)}: {name}: {message[:1].lower()}{message[1:]}{found}"

    def _read(self, node: Node, path: _Key) -> Any:
        self._num_values += 1
        self._places.setdefault(path, (node.start_mark.line, node.start_mark.column))
        if self._num_values > _MAX_VALUES:
            self.refuse((), f"more than {_MAX_VALUES:,} values, aliases counted each time")
        if isinstance(node, MappingNode) and str(node.tag).endswith(":map"):
            mapping: dict[str, Any] = {}
            for key_node, value_node in node.value:
                if not isinstance(key_node, ScalarNode):
                    self.refuse(path, "a key must be text, not a mapping or list")
                key = str(key_node.value)
                below = (*path, key)
                first = self._places.get(below)
                self._places[below] = (key_node.start_mark.line, key_node.start_mark.column)
                if key in mapping:
                    line = 0 if first is None else first[0] + 1
                    self.refuse(below, f"key {key!r} is given twice, first in line {line}")
                mapping[key] = self._read(value_node, below)
            return mapping
        if isinstance(node, SequenceNode) and str(node.tag).endswith(":seq"):
            return [self._read(each, (*path, index)) for index, each in enumerate(node.value)]
        if isinstance(node, ScalarNode) and str(node.tag) in _SCALARS:
            try:
                return self._constructor.construct_object(node, deep=True)
            except (YAMLError, LookupError, ValueError, OverflowError):
                found = _shown(path, node.value) or "this"
                self.refuse(path, f"{found} is no value of type {node.tag}")
        tag = f" {node.tag}" if _shown(path, str(node.tag)) else ""
        self.refuse(path, f"the tag{tag} is not allowed; remove it")


def _shown(path: _Key, value: object) -> str:
    """`value` for a message; empty where it has parts, or may be a secret by itself or by its key."""
    if isinstance(value, (dict, list)):
        return ""
    text = repr(value)
    return "" if any(may_show_secret(each) for each in (*map(str, path), text)) else text


def _known_keys(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Keys that the model at `path` knows; names of a mapping stand for any of its values."""
    current: Any = model
    for part in path:
        fields = getattr(current, "model_fields", {})
        current = fields[part].annotation if part in fields else _model_within(current)
    return sorted(getattr(_model_within(current), "model_fields", {}))


def _model_within(annotation: Any) -> Any:
    """The model that is `annotation` or one of its arguments."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_within(each) for each in getattr(annotation, "__args__", ()))
    return next((each for each in found if each is not None), None)


def read_document(path: str | Path) -> Document:
    """Reads a YAML file of at most 64 MiB.

    Raises:
        ConfigError: the file cannot be read, or is no YAML.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {error.strerror}") from None
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{path}: {len(content):,} bytes, more than {_MAX_BYTES:,}")
    try:
        return Document(str(path), content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8; save it as UTF-8") from None
