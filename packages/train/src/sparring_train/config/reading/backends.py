"""Validates the backends of a configuration: that they are installed and accept their options."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from sparring import make_plugin_manager
from sparring.adapter import AUTO, resolve_backends
from sparring.contracts import Descriptor, StorageDescriptor, is_path
from sparring.errors import PluginError
from sparring_cli import ConfigPath, Locations, Problem, explain_error, format_path
from sparring_train.config.reading.partial import keep_valid_part

if TYPE_CHECKING:
    from sparring import PluginManager
    from sparring_train.config.run import RunConfig

__all__ = ["check_backends", "with_option_paths"]

_PARTS = ("storage", "collective", "rendezvous")

_Found = TypeVar("_Found", bound=Descriptor)


def check_backends(
    sections: Mapping[str, Any], value: Mapping[str, Any], places: Locations, manager: PluginManager
) -> list[Problem]:
    """Returns problems of the framework, storage, collective and rendezvous of a configuration.

    Args:
        sections: the valid sections of a `RunConfig`.
        value: the whole configuration as it was read; backend names of invalid sections are checked.
        places: positions of its values.
        manager: finds backends.
    """
    problems: list[Problem] = []

    def found(path: ConfigPath, find: Callable[[str], _Found], name: str | None) -> _Found | None:
        if name is None:
            return None
        try:
            return find(name)
        except PluginError as error:
            problems.append(Problem(places.of_value(path), str(error), path))
            return None

    names = {part: _backend_name(part, sections, value) for part in _PARTS}
    framework = sections.get("framework")
    found(("framework",), manager.framework, framework)
    chosen = resolve_backends(
        names["rendezvous"] or AUTO, names["collective"] or AUTO, framework=framework or "torch"
    )
    for part, find, name in (
        ("storage", manager.storage, names["storage"]),
        ("collective", manager.collective, names["collective"] and chosen.collective),
        ("rendezvous", manager.rendezvous, names["rendezvous"] and chosen.rendezvous),
    ):
        descriptor = found((part, "backend"), find, name)
        if descriptor is None or part not in sections:
            continue
        at = (part, "options")
        options = _option_problems(descriptor, sections[part].options, at, places, manager)
        if part == "storage" and not options and chosen.collective != "local":
            options = _check_deadlines(sections, places, manager)
        problems += options
    return problems


def with_option_paths(
    config: RunConfig, change: Callable[[ConfigPath, str], str], manager: PluginManager | None
) -> RunConfig:
    """Returns a copy with each path in the options of storage, collective and rendezvous replaced.

    Args:
        config: the configuration.
        change: see `sparring_cli.with_paths`.
        manager: finds backends; options that are invalid stay unchanged. None: all installed plugins.
    """
    given = [part for part in _PARTS if getattr(config, part).options]
    if not given:
        return config
    manager = manager or make_plugin_manager()
    changed = {}
    for part in given:
        section = getattr(config, part)
        find: Callable[[str], Descriptor] = getattr(manager, part)
        with suppress(PluginError, ValidationError):
            descriptor = find(section.backend)
            options = _with_paths(descriptor, section.options, (part, "options"), change, manager)
            changed[part] = section.model_copy(update={"options": options})
    return config.model_copy(update=changed)


def _with_paths(
    descriptor: Descriptor,
    options: Mapping[str, Any],
    at: ConfigPath,
    change: Callable[[ConfigPath, str], str],
    manager: PluginManager,
) -> dict[str, Any]:
    """Returns options with their paths replaced, including options of inner storages."""
    made = copy.deepcopy(dict(options))
    for name, field in descriptor.options.model_fields.items():
        if isinstance(made.get(name), str) and is_path(field):
            made[name] = change((*at, name), made[name])
    if not isinstance(descriptor, StorageDescriptor) or descriptor.inner is None:
        return made
    for inner in descriptor.inner(descriptor.options.model_validate(options)):
        section: Any = made
        for key in inner.path:
            section = section[key]
        if isinstance(section, dict) and "options" in section:
            below = (*at, *inner.path, "options")
            found = manager.storage(inner.backend)
            section["options"] = _with_paths(found, section["options"], below, change, manager)
    return made


def _backend_name(part: str, sections: Mapping[str, Any], value: Mapping[str, Any]) -> str | None:
    """Returns the backend of a section; None if it is invalid, which is reported elsewhere."""
    if part in sections:
        return str(sections[part].backend)
    given = value.get(part)
    name = given.get("backend") if isinstance(given, Mapping) else None
    return name if isinstance(name, str) else None


def _check_deadlines(
    sections: Mapping[str, Any], places: Locations, manager: PluginManager
) -> list[Problem]:
    """Returns problems of storages whose deadline is not less than `deadline_seconds`. Other ranks would
    time out first, and report a failed rank instead of the storage."""

    most = sections.get("deadline_seconds")
    if most is None:
        return []

    def look(backend: str, options: Mapping[str, Any], at: ConfigPath) -> list[Problem]:
        descriptor = manager.storage(backend)
        checked = descriptor.options.model_validate(options)
        problems = []
        seconds = getattr(checked, "deadline_seconds", None)
        if isinstance(seconds, (int, float)) and seconds >= most:
            path = (*at, "deadline_seconds")
            problems.append(
                Problem(
                    places.of_value(path),
                    f"{format_path(path)} must be less than deadline_seconds, because other ranks wait "
                    "no longer; lower it, or raise deadline_seconds",
                    path,
                    found=f"{seconds:g}",
                    expected=f"less than {most:g}",
                )
            )
        for inner in descriptor.inner(checked) if descriptor.inner is not None else ():
            problems += look(inner.backend, inner.options, (*at, *inner.path, "options"))
        return problems

    storage = sections["storage"]
    return look(storage.backend, storage.options, ("storage", "options"))


def _option_problems(
    descriptor: Descriptor,
    options: Mapping[str, Any],
    at: ConfigPath,
    places: Locations,
    manager: PluginManager,
) -> list[Problem]:
    """Returns problems of the options at `at`, including options of inner storages."""
    problems: list[Problem] = []
    try:
        checked = descriptor.options.model_validate(options)
    except ValidationError as error:
        problems = explain_error(error, places, model=descriptor.options, at=at)
        # Inner storages may be invalid, too.
        try:
            checked = descriptor.options.model_validate(
                keep_valid_part(descriptor.options, options, error)
            )
        except ValidationError:
            return problems
    if not isinstance(descriptor, StorageDescriptor) or descriptor.inner is None:
        return problems
    for inner in descriptor.inner(checked):
        below = (*at, *inner.path)
        try:
            found = manager.storage(inner.backend)
        except PluginError as error:
            path = (*below, "backend")
            at_name = path if places.is_known(path) else below  # A name may replace a mapping.
            problems.append(Problem(places.of_value(at_name), str(error), at_name))
            continue
        problems += _option_problems(found, inner.options, (*below, "options"), places, manager)
    if not problems and descriptor.check is not None:
        for each in descriptor.check(checked, manager):
            path = (*at, *each.path)
            problems.append(
                Problem(places.of_value(path), f"{format_path(path)}: {each.message}", path)
            )
    return problems
