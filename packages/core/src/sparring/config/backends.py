"""Checks what a configuration says of plugins: that they exist and take these options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sparring.config.explanations import explain
from sparring.config.places import Places
from sparring.config.problems import ConfigPath, Problem
from sparring.config.run import RunConfig
from sparring.descriptors import Descriptor
from sparring.errors import PluginError
from sparring.joining import resolved_backends

if TYPE_CHECKING:
    from sparring.plugins import PluginManager

__all__ = ["check_backends"]


def check_backends(config: RunConfig, places: Places, manager: PluginManager) -> list[Problem]:
    """What is wrong with the framework, storage, collective and rendezvous of `config`."""
    problems: list[Problem] = []
    chosen = resolved_backends(
        config.rendezvous.backend, config.collective.backend, framework=config.framework
    )
    parts: tuple[tuple[ConfigPath, Callable[[str], Descriptor], str, Mapping[str, Any]], ...] = (
        (("framework",), manager.framework, config.framework, {}),
        (
            ("storage", "backend"),
            manager.storage,
            config.storage.backend,
            config.storage.options,
        ),
        (
            ("collective", "backend"),
            manager.collective,
            chosen.collective,
            config.collective.options,
        ),
        (
            ("rendezvous", "backend"),
            manager.rendezvous,
            chosen.rendezvous,
            config.rendezvous.options,
        ),
    )
    for path, find, name, options in parts:
        try:
            descriptor = find(name)
        except PluginError as error:
            problems.append(Problem(places.of_value(path), str(error), path))
            continue
        if path == ("framework",):
            continue
        at = (path[0], "options")
        try:
            descriptor.options.model_validate(options)
        except ValidationError as error:
            problems += explain(error, options, places, model=descriptor.options, at=at)
    return problems
