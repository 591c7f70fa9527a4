"""Arguments of ``sparring init`` after the file: roles of columns, and keys of the configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from sparring.adapter import find_closest_name
from sparring.errors import ConfigError
from sparring_cli import Location, Locations, apply_override, parse_yaml
from sparring_train.config.reading.loader import parse_config
from sparring_train.config.run import RunConfig
from sparring_train.config.sections.table import TableData
from sparring_train.data.table.summary import Role

__all__ = ["ROLES", "Words", "apply_keys", "parse_words", "quote_yaml_name"]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_YAML_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}

ROLES: dict[str, Role] = {
    "user": "categorical",
    "item": "categorical",
    "categorical": "categorical",
    "numeric": "numeric",
    "time": "time",
    "skip": "left out",
}
_COLUMNS = ("label", "weight", *ROLES)
_OWN = {"kind", "path"}
_ANY_DATA = "{kind: table, path: x.csv, label: y, categorical: [x]}"


@dataclass(slots=True)
class Words:
    """Parsed arguments."""

    columns: dict[str, list[str]] = field(default_factory=dict)
    """Role → names of columns."""
    keys: dict[str, str] = field(default_factory=dict)
    """Dotted key of the configuration → value as YAML."""
    data: TableData | None = None
    """Validated keys of `data` that are among `keys`."""

    def has(self, key: str) -> bool:
        """Returns whether a key of `data` is given."""
        return f"data.{key}" in self.keys


def parse_words(words: Sequence[str]) -> Words:
    """Parses roles and keys.

    Raises:
        ConfigError: an argument is neither, or a value is invalid for its key.
    """
    found = Words()
    keys = [name for name in TableData.model_fields if name not in (*_COLUMNS, *_OWN)]
    for word in words:
        name, _, value = word.partition("=")
        if name in _COLUMNS and value:
            found.columns.setdefault(name, []).extend(value.split(","))
        elif name in keys and value:
            found.keys[f"data.{name}"] = value
        elif name.partition(".")[0] in RunConfig.model_fields and value:
            found.keys[name] = value
        else:
            known = [*_COLUMNS, *keys]
            meant = find_closest_name(name, known)
            hint = f"; did you mean {meant}?" if meant else ""
            raise ConfigError(
                f"{word}: expected ROLE=COLUMN with one of {', '.join(_COLUMNS)}, or KEY=VALUE with a "
                f"key of data, such as bad_rows=skip, or a dotted key, such as training.epochs=3{hint}"
            )
    of_data = [f"{key}={value}" for key, value in found.keys.items() if _is_reading_key(key)]
    text = f"data: {_ANY_DATA}\nmodel: {{kind: dlrm, embedding_dim: 1, bottom_mlp: [1], top_mlp: [1]}}\n"
    config = parse_config(text, of_data, source="the arguments of sparring init")
    found.data = cast(TableData, config.data)
    return found


def _is_reading_key(key: str) -> bool:
    names = (
        "delimiter", "decimal", "missing_values", "separator", "label_values", "encoding", "form",
        "skip_lines", "trim", "column_names", "thousands", "number_signs", "date_order",
    )  # fmt: skip
    return key in {f"data.{name}" for name in names}


def apply_keys(lines: Sequence[str], keys: Mapping[str, str]) -> list[str]:
    """Replaces values in the lines of a configuration. Comments of other lines are kept.

    Raises:
        ConfigError: a value is not valid YAML.
    """
    written = list(lines)
    for key, text in keys.items():
        section, _, rest = key.partition(".")
        name, _, inner = rest.partition(".")
        value: dict[str, Any] = {}
        begin, end = _block(written, section, 0, len(written))
        indent = ""
        if name:
            if begin == end:
                written += ["", f"{section}:"]
                begin, end = len(written) - 1, len(written)
            section_end = end
            begin, end = _block(written, name, begin + 1, end, "  ")
            if begin == end:
                while not written[section_end - 1].strip():
                    section_end -= 1
                begin = end = section_end
            indent = "  "
        if inner and begin != end:
            block = parse_yaml(
                "\n".join(written[begin:end]),
                lambda line, column: Location(line, column, "the file"),
            )
            value = {"it": block.value[name]}
        target = f"it.{inner}" if inner else "it"
        problems = apply_override(f"{target}={text}", value, Locations(Location(0, 0, key)))
        if problems:
            raise ConfigError(
                f"the argument {key}={text} cannot be applied: {problems[0].message}", setting=key
            )
        written[begin:end] = [f"{indent}{name or section}: {_flow(value['it'])}"]
    return written


def _block(
    lines: Sequence[str], key: str, begin: int, end: int, indent: str = ""
) -> tuple[int, int]:
    """Returns the range of lines of a key and its value, which is empty if the key is missing."""
    pattern = re.compile(rf"{indent}{re.escape(key)}:(\s|$)")
    first = next((at for at in range(begin, end) if pattern.match(lines[at])), None)
    if first is None:
        return end, end
    last = first + 1
    while last < end and (lines[last].startswith(f"{indent}  ") or not lines[last].strip()):
        if lines[last].lstrip().startswith("#") and indent:
            break
        last += 1
    while not lines[last - 1].strip():
        last -= 1
    return first, last


def _flow(value: Any) -> str:
    """Returns a value as YAML on one line."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{quote_yaml_name(key)}: {_flow(each)}" for key, each in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return quote_yaml_name(value) if isinstance(value, str) else json.dumps(value)


def quote_yaml_name(name: str) -> str:
    """Returns a column name as YAML, quoted if necessary."""
    is_plain = _PLAIN.fullmatch(name) is not None and name.lower() not in _YAML_WORDS
    return name if is_plain else json.dumps(name, ensure_ascii=False)
