"""Parses YAML text into plain Python values and their locations.

The text is untrusted: tags cannot create objects, and size, depth and number of values are limited
before anything is created. The YAML version is 1.2, so ``yes`` and ``no`` are text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from sparring_cli.documents.locations import Locations
from sparring_cli.documents.problems import (
    ConfigPath,
    Location,
    Problem,
    describe_value,
    raise_problems,
)

__all__ = [
    "CONFIG_LIMITS",
    "DATA_LIMITS",
    "Limits",
    "ParsedText",
    "parse_yaml",
    "make_locator",
    "read_text",
]

_MAX_DEPTH = 50
# Names of aliases and tags, which messages omit: unquoted passwords may start with `*` or `!`.
_QUOTED = re.compile(r" '[^'<\\][^']+'")

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {"bool", "float", "int", "null", "str"}

Locator = Callable[[int, int], Location]
"""(line, column), both from 0 → location for messages."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a text, checked before anything is created from it.

    Args:
        max_bytes: Maximum size of the file.
        max_values: Maximum number of scalars, lists and mappings; aliases count each time.
        text_keys: Whether keys are always text as written in the file, so that ``8: x`` has the key
            ``"8"``; otherwise keys must be text.
    """

    max_bytes: int
    max_values: int
    text_keys: bool


CONFIG_LIMITS = Limits(max_bytes=1 << 18, max_values=20_000, text_keys=False)
"""For files that people write."""

DATA_LIMITS = Limits(max_bytes=1 << 26, max_values=2_000_000, text_keys=True)
"""For files that programs also write, such as calibrations and sketches."""


@dataclass(slots=True)
class ParsedText:
    """Parsed text. `value` excludes everything that is in `problems`."""

    value: Any
    locations: Locations
    problems: list[Problem] = field(default_factory=list)
    is_readable: bool = True
    """False if the text is not YAML at all."""

    def mapping(self) -> dict[str, Any]:
        """Returns the top-level mapping, to which overrides apply; an empty text is an empty mapping."""
        if isinstance(self.value, dict):
            return self.value
        if self.value is not None:
            self.problems.append(
                Problem(
                    self.locations.of_value(()),
                    "the file must contain a mapping of keys to values",
                    found=describe_value(self.value),
                )
            )
            self.is_readable = False
        return {}


def read_text(source: str, limits: Limits) -> str:
    """Reads a UTF-8 file.

    Raises:
        ConfigError: The file cannot be read, is too large, or is not UTF-8.
    """
    path = Path(source)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "no regular file"
        _refuse(source, limits, found if path.exists() else "no such file")
    try:
        with path.open("rb") as file:
            content = file.read(limits.max_bytes + 1)
    except OSError as error:
        _refuse(source, limits, error.strerror or str(error))
    if len(content) > limits.max_bytes:
        _refuse(source, limits, f"more than {limits.max_bytes:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        location = make_locator(source)(before.count(b"\n"), len(before) - before.rfind(b"\n") - 1)
        found = f"byte 0x{content[error.start]:02X}"
        message = "the file is not UTF-8; save it as UTF-8"
        raise_problems([Problem(location, message, found=found)])


def _refuse(source: str, limits: Limits, found: str) -> NoReturn:
    expected = f"a YAML file of at most {limits.max_bytes:,} bytes"
    raise_problems([Problem(Location(0, 0, source), "cannot read the file", (), found, expected)])


def make_locator(source: str) -> Locator:
    """Returns a locator for a file: ``file:line:column``, both counted from 1."""
    return lambda line, column: Location(line + 1, column + 1, f"{source}:{line + 1}:{column + 1}")


def parse_yaml(text: str, locator: Locator, limits: Limits = CONFIG_LIMITS) -> ParsedText:
    """Parses one YAML document; problems are added to `ParsedText.problems`."""
    parsed = ParsedText(None, Locations(locator(0, 0)))
    loader = YAML(typ="safe", pure=True)
    try:
        node = loader.compose(text)
    except ReaderError as error:
        before = text[: error.position]
        column = error.position - (before.rfind("\n") + 1)
        character = f"U+{ord(text[error.position]):04X}"
        parsed.problems.append(
            Problem(
                locator(before.count("\n"), column),
                f"YAML: the character {character} is not allowed; remove it",
            )
        )
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        location = locator(mark.line, mark.column) if mark else locator(0, 0)
        parts = (str(part) for part in (error.context, error.problem) if part)
        reason = _QUOTED.sub("", " ".join(parts))
        parsed.problems.append(Problem(location, f"YAML: {reason}"))
    except RecursionError:
        parsed.problems.append(Problem(locator(0, 0), "YAML: nested too deep"))
    except YAMLError as error:
        parsed.problems.append(Problem(locator(0, 0), f"YAML: {error}"))
    else:
        if node is not None:
            try:
                parsed.value = _Reader(loader, parsed, locator, limits).read(node, ())
            except _LimitError as error:
                parsed.problems.append(Problem(locator(0, 0), f"YAML: {error}"))
                parsed.is_readable = False
        return parsed
    parsed.is_readable = False
    return parsed


class _LimitError(Exception):
    """A limit was exceeded; a few nested aliases can represent billions of values."""


class _Reader:
    """Converts the node tree of one text to plain values."""

    def __init__(self, loader: YAML, parsed: ParsedText, locator: Locator, limits: Limits) -> None:
        self._limits = limits
        self._constructor = loader.constructor
        self._parsed = parsed
        self._locator = locator
        self._num_values = 0

    def read(self, node: Node, path: ConfigPath) -> Any:
        self._num_values += 1
        if self._num_values > self._limits.max_values:
            most = self._limits.max_values
            raise _LimitError(f"more than {most:,} values, aliases counted each time")
        if len(path) > _MAX_DEPTH:
            raise _LimitError(f"nested more than {_MAX_DEPTH} levels deep")
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return self._read_mapping(node, path)
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            return [self._read_item(item, (*path, i)) for i, item in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self._read_scalar(node, path)
        return self._refuse_tag(node, path)

    def _read_mapping(self, node: MappingNode, path: ConfigPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._read_key(key_node, path)
            if not isinstance(key, str):
                shown = "a mapping or list" if key is None else describe_value(key)
                self._complain(key_node, path, "a key must be text; put it in quotes", shown)
                continue
            if key in mapping:
                first = self._parsed.locations.of_key((*path, key))
                self._complain(
                    key_node, (*path, key), f"duplicate key {key!r}, first at {first}; remove one"
                )
                continue
            below = (*path, key)
            self._parsed.locations.add(below, key=self._at(key_node), value=self._at(value_node))
            mapping[key] = self.read(value_node, below)
        return mapping

    def _read_key(self, node: Node, path: ConfigPath) -> Any:
        if not isinstance(node, ScalarNode):
            return None
        return str(node.value) if self._limits.text_keys else self._read_scalar(node, path)

    def _read_item(self, node: Node, path: ConfigPath) -> Any:
        self._parsed.locations.add(path, key=self._at(node), value=self._at(node))
        return self.read(node, path)

    def _read_scalar(self, node: ScalarNode, path: ConfigPath) -> Any:
        tag = str(node.tag).removeprefix(_TAG)
        if tag in ("timestamp", "merge", "value"):
            return node.value
        if tag not in _PLAIN_TAGS:
            return self._refuse_tag(node, path)
        try:
            return self._constructor.construct_object(node, deep=True)
        except (YAMLError, LookupError, ValueError, OverflowError):
            self._complain(
                node, path, f"this is not a value of type {tag}", describe_value(node.value)
            )
            return None

    def _refuse_tag(self, node: Node, path: ConfigPath) -> None:
        tag = str(node.tag)
        shown = "!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag
        self._complain(node, path, "tags are not allowed; remove it", shown)

    def _complain(
        self, node: Node, path: ConfigPath, message: str, found: str | None = None
    ) -> None:
        self._parsed.problems.append(
            Problem(self._at(node), f"YAML: {message}", path=path, found=found)
        )

    def _at(self, node: Node) -> Location:
        return self._locator(node.start_mark.line, node.start_mark.column)
