"""Reads a YAML file and overrides into a `RunConfig`, or raises all errors in them at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from pydantic import ValidationError

from sparring.adapter import AUTO
from sparring_cli import (
    CONFIG_LIMITS,
    ConfigPath,
    Problem,
    apply_override,
    explain_error,
    make_locator,
    parse_yaml,
    raise_problems,
    read_text,
    resolve_path,
    with_paths,
)
from sparring_train.config.reading.backends import check_backends, with_option_paths
from sparring_train.config.reading.partial import keep_valid_sections
from sparring_train.config.run import RunConfig, check_together
from sparring_train.config.run_type import run_type
from sparring_train.config.sections.plan import check_plan

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
        overrides: ``dotted.key=value``; later ones replace earlier ones. See `apply_override`.
        folder: folder from which relative paths are resolved; None uses the file's folder. Paths in
            overrides are resolved from the current directory.
        plugin_manager: if given, the backends must be installed and accept their options.

    Raises:
        ConfigError: the file cannot be read or is invalid. ``error.problems`` contains each `Problem`;
            the message has one line per problem: ``file:line:column: message (…)``.

    Examples:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from sparring_train import load_config
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "run.yaml")
        ...     _ = path.write_text("{data: {kind: synthetic_criteo}, model: {kind: dlrm}}")
        ...     load_config(path, ["seed=3"]).seed
        3
    """
    source = os.fspath(path)
    return parse_config(
        read_text(source, CONFIG_LIMITS),
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
    """Reads a configuration from text.

    `overrides` and `plugin_manager` are those of `load_config`.

    Args:
        text: YAML.
        source: name of the text in messages.
        folder: folder from which relative paths are resolved; empty means the current directory.

    Raises:
        ConfigError: the text is invalid, see `load_config`.

    Examples:
        >>> from sparring_train import parse_config
        >>> text = "{data: {kind: synthetic_criteo}, model: {kind: dlrm}}"
        >>> config = parse_config(text, ["data.batch_size=64"])
        >>> config.data.batch_size
        64
    """
    parsed = parse_yaml(text, make_locator(source))
    value = parsed.mapping()
    for override in overrides:
        parsed.problems += apply_override(override, value, parsed.locations)
    if not parsed.is_readable:
        raise_problems(parsed.problems)
    # Values that YAML could not parse are null in `value`; their problems are already reported.
    told = {problem.path for problem in parsed.problems}
    problems: list[Problem] = []
    kind = run_type(plugin_manager)

    def resolve(at: ConfigPath, path: str) -> str:
        is_override = parsed.locations.of_value(at).is_override
        return path if is_override or path == AUTO else resolve_path(path, folder)

    try:
        config = with_paths(kind.model_validate(value), resolve)
        config = with_option_paths(config, resolve, plugin_manager)
        sections = dict(config)
    except ValidationError as error:
        problems = explain_error(error, parsed.locations, model=kind)
        sections = keep_valid_sections(kind, value, error)
        # Contradictions are not checked by Pydantic if a section is invalid.
        try:
            check_together(sections)
        except ValidationError as more:
            problems += explain_error(more, parsed.locations, model=kind)
    if plugin_manager is not None:
        problems += check_backends(sections, value, parsed.locations, plugin_manager)
        problems += check_plan(sections, parsed.locations, plugin_manager)
    problems = parsed.problems + [each for each in problems if each.path not in told]
    if problems:
        raise_problems(problems)
    return config
