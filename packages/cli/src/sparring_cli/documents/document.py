"""Reads YAML files into pydantic models; problems are reported with file, line and column."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sparring_cli.documents.explanations import explain_error
from sparring_cli.documents.overrides import apply_override
from sparring_cli.documents.paths import resolve_path, with_paths
from sparring_cli.documents.problems import ConfigPath, Problem, raise_problems
from sparring_cli.documents.reader import DATA_LIMITS, make_locator, parse_yaml, read_text

__all__ = ["Document", "DocumentModel", "read_document"]

_Model = TypeVar("_Model", bound="DocumentModel")


class DocumentModel(BaseModel):
    """Base class of models of files: frozen, rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Document:
    """A parsed file with overrides: its value, and the location of each key.

    `value` and `as_model` raise all problems of the text, the overrides and the value together.

    Raises:
        ConfigError: The text is not YAML.
    """

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self._parsed = parse_yaml(text, make_locator(source), DATA_LIMITS)
        self._value = self._parsed.mapping()
        if not self._parsed.is_readable:
            raise_problems(self._parsed.problems)

    @property
    def value(self) -> dict[str, Any]:
        """The top-level mapping."""
        if self._parsed.problems:
            raise_problems(self._parsed.problems)
        return self._value

    def location(self, path: ConfigPath) -> str:
        """Returns ``file:line:column`` of the key at `path`, or of its section if the key is missing."""
        return str(self._parsed.locations.of_key(path))

    def raise_problem(self, path: ConfigPath, message: str) -> NoReturn:
        raise_problems([Problem(self._parsed.locations.of_key(path), message, path)])

    def rename_keys(self, names: Mapping[str, str]) -> None:
        """Renames keys, given as ``section.key``, unless the section also has the new key."""
        for old, new in names.items():
            (section, old_key), new_key = old.split("."), new.rpartition(".")[2]
            content = self._value.get(section)
            if isinstance(content, dict) and old_key in content and new_key not in content:
                content[new_key] = content.pop(old_key)
                locations, path = self._parsed.locations, (section, old_key)
                locations.add(
                    (section, new_key), key=locations.of_key(path), value=locations.of_value(path)
                )

    def override(self, text: str) -> None:
        """Sets one value: ``dotted.key=value``, with the value in YAML. Missing sections are created."""
        locations = self._parsed.locations
        self._parsed.problems += apply_override(text, self._value, locations, DATA_LIMITS)

    def as_model(self, model: type[_Model]) -> _Model:
        """Validates the value as `model`.

        Relative paths in the file start at its folder, relative paths in overrides at the current
        directory.

        Raises:
            ConfigError: The text, an override or the value is invalid; the message has one line per
                problem.
        """
        locations, problems = self._parsed.locations, list(self._parsed.problems)
        told = {each.path for each in problems}
        try:
            checked = model.model_validate(self._value)
        except ValidationError as error:
            found = explain_error(error, locations, model=model)
            problems += [each for each in found if each.path not in told]
        if problems:
            raise_problems(problems)
        folder = Path(self.source).parent
        return with_paths(
            checked,
            lambda at, text: (
                text if locations.of_value(at).is_override else resolve_path(text, folder)
            ),
        )


def read_document(path: str | Path) -> Document:
    """Reads a YAML file of at most 64 MiB.

    Raises:
        ConfigError: The file cannot be read, or is not YAML.
    """
    return Document(str(path), read_text(str(path), DATA_LIMITS))
