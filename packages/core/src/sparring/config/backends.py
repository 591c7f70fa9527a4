"""Checks what a configuration says of plugins: that they exist and take these options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sparring.config.explanations import explain
from sparring.config.places import Places
from sparring.config.problems import ConfigPath, Problem, dotted
from sparring.config.run import RunConfig
from sparring.descriptors import Descriptor, StorageDescriptor
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
        found = _option_problems(descriptor, options, at, places, manager)
        if path[0] == "storage" and not found and chosen.collective != "local":
            found = _late_deadlines(config, places, manager)
        problems += found
    return problems


def _late_deadlines(config: RunConfig, places: Places, manager: PluginManager) -> list[Problem]:
    """Storages that may take longer than other ranks wait: those would give up first, and blame it
    on a rank in place of a storage."""

    def look(backend: str, options: Mapping[str, Any], at: ConfigPath) -> list[Problem]:
        descriptor = manager.storage(backend)
        checked = descriptor.options.model_validate(options)
        problems = []
        seconds = getattr(checked, "deadline_seconds", None)
        if isinstance(seconds, (int, float)) and seconds >= config.deadline_seconds:
            path = (*at, "deadline_seconds")
            problems.append(
                Problem(
                    places.of_value(path),
                    f"{dotted(path)} must be less than deadline_seconds, so that other ranks are "
                    "told in time; lower it, or raise deadline_seconds",
                    path,
                    found=f"{seconds:g}",
                    expected=f"less than {config.deadline_seconds:g}",
                )
            )
        for inner in descriptor.inner(checked) if descriptor.inner is not None else ():
            problems += look(inner.backend, inner.options, (*at, *inner.path, "options"))
        return problems

    return look(config.storage.backend, config.storage.options, ("storage", "options"))


def _option_problems(
    descriptor: Descriptor,
    options: Mapping[str, Any],
    at: ConfigPath,
    places: Places,
    manager: PluginManager,
) -> list[Problem]:
    """What is wrong with the options at `at`, and with those of storages that they name."""
    try:
        checked = descriptor.options.model_validate(options)
    except ValidationError as error:
        return explain(error, options, places, model=descriptor.options, at=at)
    if not isinstance(descriptor, StorageDescriptor) or descriptor.inner is None:
        return []
    problems: list[Problem] = []
    for inner in descriptor.inner(checked):
        below = (*at, *inner.path)
        try:
            found = manager.storage(inner.backend)
        except PluginError as error:
            path = (*below, "backend")
            at_name = path if places.is_known(path) else below  # a name alone stands for a mapping
            problems.append(Problem(places.of_value(at_name), str(error), at_name))
            continue
        problems += _option_problems(found, inner.options, (*below, "options"), places, manager)
    if not problems and descriptor.check is not None:
        for each in descriptor.check(checked, manager):
            path = (*at, *each.path)
            problems.append(Problem(places.of_value(path), f"{dotted(path)}: {each.message}", path))
    return problems
