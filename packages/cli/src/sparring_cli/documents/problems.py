"""Problems of a configuration and their locations: `file:line:column: message (…)`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from sparring.adapter import may_show_secret
from sparring.errors import ConfigError

__all__ = ["Location", "ConfigPath", "Problem", "describe_value", "format_path", "raise_problems"]

ConfigPath = tuple[str | int, ...]
"""Keys and list indexes from the top of a configuration to a value."""

_MAX_VALUE_CHARS = 60
_MAX_SHOWN = 100


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A location in error messages; locations sort in the order of the file, overrides last."""

    line: int
    column: int
    text: str

    @property
    def is_override(self) -> bool:
        """Whether the value comes from an override instead of a file."""
        return self.line == sys.maxsize

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    Args:
        location: ``file:line:column``, or the override that set the value.
        message: Description, starting with the dotted key if there is one.
        path: Path of the value.
        found: Value found; omitted if it may be a secret.
        expected: Permitted values.
        suggestion: Probably intended value.
    """

    location: Location
    message: str
    path: ConfigPath = ()
    found: str | None = None
    expected: str | None = None
    suggestion: str | None = None

    def __post_init__(self) -> None:
        # Messages are logged, so they must not contain secrets.
        names = [part for part in self.path if isinstance(part, str)]
        if self.found is not None and any(map(may_show_secret, [*names, self.found])):
            object.__setattr__(self, "found", None)

    def __str__(self) -> str:
        facts = ", ".join(
            f"{word} {fact}"
            for word, fact in (("found", self.found), ("expected", self.expected))
            if fact is not None
        )
        question = f"did you mean {self.suggestion}?" if self.suggestion else ""
        remarks = "; ".join(part for part in (facts, question) if part)
        return f"{self.location}: {self.message}" + (f" ({remarks})" if remarks else "")


def raise_problems(problems: Sequence[Problem]) -> NoReturn:
    """Raises one `ConfigError` with all `problems`, sorted by location.

    The attribute ``problems`` of the error contains them. Duplicates are omitted.
    """
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.location)
    lines = [str(problem) for problem in ordered[:_MAX_SHOWN]]
    if len(ordered) > _MAX_SHOWN:
        lines.append(f"… and {len(ordered) - _MAX_SHOWN:,} more")
    raise ConfigError("\n".join(lines), problems=tuple(ordered))


def format_path(path: ConfigPath) -> str:
    """Formats a path as in an override: ``model.bottom_mlp.0``."""
    return ".".join(str(part) for part in path)


def describe_value(value: object) -> str:
    """Formats a value for an error message: short, and in YAML's terms."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shown = repr(value)
        return shown if len(shown) <= _MAX_VALUE_CHARS else shown[:_MAX_VALUE_CHARS] + "…"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    shown = str(value)
    return shown if len(shown) <= _MAX_VALUE_CHARS else shown[:_MAX_VALUE_CHARS] + "…"
