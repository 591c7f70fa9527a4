"""A YAML file and overrides → `RunConfig`, or every error in them at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, NoReturn

from pydantic import ValidationError

from sparring import AUTO
from sparring_cli import (
    MAX_BYTES,
    ConfigPath,
    ParsedText,
    Place,
    Problem,
    apply_override,
    describe_value,
    explain,
    parse_yaml,
    raise_problems,
    resolve_path,
    with_paths,
)
from sparring_train.config.backends import check_backends, with_option_paths
from sparring_train.config.partial import right_sections
from sparring_train.config.plan import check_plan
from sparring_train.config.run import RunConfig, check_together
from sparring_train.config.run_type import run_type

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["load_config", "parse_config"]


def load_config(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    folder: str | None = None,
    plugin_manager: PluginManager | None = None,
) -> RunConfig:
    """Reads a configuration file.

    Args:
        path: a YAML file in UTF-8, at most 256 KiB.
        overrides: ``dotted.key=value``, later ones win; see `apply_override`.
        folder: where relative paths of the file start; None: at its own folder. Those of overrides
            start at the current directory.
        plugin_manager: where given, the backends that the file names must exist, and their
            options are checked too.

    Raises:
        ConfigError: the file cannot be read or is wrong. ``error.problems`` has each `Problem`,
            and the message a line for each: ``file:line:column: message (…)``.
    """
    source = os.fspath(path)
    return parse_config(
        _read_text(source),
        overrides,
        source=source,
        folder=str(FilePath(source).parent) if folder is None else folder,
        plugin_manager=plugin_manager,
    )


def parse_config(
    text: str,
    overrides: Sequence[str] = (),
    *,
    source: str = "<text>",
    folder: str = "",
    plugin_manager: PluginManager | None = None,
) -> RunConfig:
    """Reads a configuration from text; `source` is how messages call it. See `load_config`."""
    parsed = parse_yaml(text, lambda line, column: _place(source, line + 1, column + 1))
    value = _mapping_of(parsed)
    for override in overrides:
        parsed.problems += apply_override(override, value, parsed.places)
    if not parsed.is_readable:
        raise_problems(parsed.problems)
    # What YAML could not read stands as null in `value`, and was complained of already.
    told = {problem.path for problem in parsed.problems}
    problems: list[Problem] = []
    kind = run_type(plugin_manager)

    def resolve(at: ConfigPath, path: str) -> str:
        is_override = parsed.places.of_value(at).line == sys.maxsize
        return path if is_override or path == AUTO else resolve_path(path, folder)

    try:
        config = with_paths(kind.model_validate(value), resolve)
        config = with_option_paths(config, resolve, plugin_manager)
        sections = dict(config)
    except ValidationError as error:
        problems = explain(error, value, parsed.places, model=kind)
        sections = right_sections(kind, value, error)
        # They were not held against each other, because others are wrong.
        try:
            check_together(sections)
        except ValidationError as more:
            problems += explain(more, value, parsed.places, model=kind)
    if plugin_manager is not None:
        problems += check_backends(sections, value, parsed.places, plugin_manager)
        problems += check_plan(sections, parsed.places, plugin_manager)
    problems = parsed.problems + [each for each in problems if each.path not in told]
    if problems:
        raise_problems(problems)
    return config


def _mapping_of(parsed: ParsedText) -> dict[str, object]:
    """The top of the file, where overrides go; an empty file is an empty mapping."""
    if isinstance(parsed.value, dict):
        return parsed.value
    if parsed.value is not None:
        parsed.problems.append(
            Problem(
                parsed.places.of_value(()),
                "the file must hold a mapping of keys to values",
                found=describe_value(parsed.value),
            )
        )
        parsed.is_readable = False
    return {}


def _read_text(source: str) -> str:
    file_path = FilePath(source)
    if not file_path.is_file():
        found = "a folder" if file_path.is_dir() else "no regular file"
        if not file_path.exists():
            found = "no such file"
        _refuse(source, found)
    try:
        with file_path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        _refuse(source, error.strerror or str(error))
    if len(content) > MAX_BYTES:
        _refuse(source, f"more than {MAX_BYTES:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = len(before) - before.rfind(b"\n")
        found = f"byte 0x{content[error.start]:02X}"
        message = "the file is not UTF-8; save it as UTF-8"
        raise_problems([Problem(_place(source, line, column), message, found=found)])


def _refuse(source: str, found: str) -> NoReturn:
    expected = f"a YAML file of at most {MAX_BYTES:,} bytes"
    message = "cannot read the configuration"
    raise_problems([Problem(Place(0, 0, source), message, (), found, expected)])


def _place(source: str, line: int, column: int) -> Place:
    return Place(line, column, f"{source}:{line}:{column}")
