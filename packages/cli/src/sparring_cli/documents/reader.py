"""YAML text → plain Python values and the places where they stand.

Texts may come from anybody: no tag makes an object, and size, depth and number of values are
bounded before anything is built. The YAML is 1.2, so ``yes`` and ``no`` are text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from sparring_cli.documents.places import Places
from sparring_cli.documents.problems import ConfigPath, Place, Problem, describe_value

__all__ = ["MAX_BYTES", "ParsedText", "parse_yaml"]

MAX_BYTES = 1 << 18
_MAX_DEPTH = 50
_MAX_VALUES = 20_000

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = {"bool", "float", "int", "null", "str"}

PlaceOf = Callable[[int, int], Place]
"""(line, column), both from 0 → how messages name that place."""


@dataclass(slots=True)
class ParsedText:
    """Parsed text. `value` leaves out what `problems` complain about."""

    value: Any
    places: Places
    problems: list[Problem] = field(default_factory=list)
    is_readable: bool = True
    """False where the text is no YAML at all."""


def parse_yaml(text: str, place_of: PlaceOf) -> ParsedText:
    """Reads one YAML document; what is wrong with it lands in `ParsedText.problems`."""
    parsed = ParsedText(None, Places(place_of(0, 0)))
    loader = YAML(typ="safe", pure=True)
    try:
        node = loader.compose(text)
    except ReaderError as error:
        before = text[: error.position]
        column = error.position - (before.rfind("\n") + 1)
        character = f"U+{ord(text[error.position]):04X}"
        parsed.problems.append(
            Problem(
                place_of(before.count("\n"), column),
                f"YAML: the character {character} is not allowed; remove it",
            )
        )
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = place_of(mark.line, mark.column) if mark else place_of(0, 0)
        reason = " ".join(str(part) for part in (error.context, error.problem) if part)
        parsed.problems.append(Problem(place, f"YAML: {reason}"))
    except RecursionError:
        parsed.problems.append(Problem(place_of(0, 0), "YAML: nested too deep"))
    except YAMLError as error:
        parsed.problems.append(Problem(place_of(0, 0), f"YAML: {error}"))
    else:
        if node is not None:
            try:
                parsed.value = _Reader(loader, parsed, place_of).read(node, ())
            except _TooMuchError as error:
                parsed.problems.append(Problem(place_of(0, 0), f"YAML: {error}"))
                parsed.is_readable = False
        return parsed
    parsed.is_readable = False
    return parsed


class _TooMuchError(Exception):
    """A bound was met; a few aliases in one another can stand for billions of values."""


class _Reader:
    """Turns the node tree of one text into plain values."""

    def __init__(self, loader: YAML, parsed: ParsedText, place_of: PlaceOf) -> None:
        self._constructor = loader.constructor
        self._parsed = parsed
        self._place_of = place_of
        self._num_values = 0

    def read(self, node: Node, path: ConfigPath) -> Any:
        self._num_values += 1
        if self._num_values > _MAX_VALUES:
            raise _TooMuchError(f"more than {_MAX_VALUES:,} values, aliases counted each time")
        if len(path) > _MAX_DEPTH:
            raise _TooMuchError(f"nested more than {_MAX_DEPTH} levels deep")
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
            key = self._read_scalar(key_node, path) if isinstance(key_node, ScalarNode) else None
            if not isinstance(key, str):
                shown = "a mapping or list" if key is None else describe_value(key)
                self._complain(key_node, path, "a key must be text; put it in quotes", shown)
                continue
            if key in mapping:
                first = self._parsed.places.of_key((*path, key))
                self._complain(
                    key_node, (*path, key), f"key {key!r} is given twice, first at {first}"
                )
                continue
            below = (*path, key)
            self._parsed.places.add(below, key=self._at(key_node), value=self._at(value_node))
            mapping[key] = self.read(value_node, below)
        return mapping

    def _read_item(self, node: Node, path: ConfigPath) -> Any:
        self._parsed.places.add(path, key=self._at(node), value=self._at(node))
        return self.read(node, path)

    def _read_scalar(self, node: ScalarNode, path: ConfigPath) -> Any:
        tag = str(node.tag).removeprefix(_TAG)
        if tag in ("timestamp", "merge", "value"):
            return node.value
        if tag not in _PLAIN_TAGS:
            return self._refuse_tag(node, path)
        try:
            return self._constructor.construct_object(node, deep=True)
        except (YAMLError, ValueError, OverflowError):
            self._complain(
                node, path, f"this is no value of type {tag}", describe_value(node.value)
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

    def _at(self, node: Node) -> Place:
        return self._place_of(node.start_mark.line, node.start_mark.column)
