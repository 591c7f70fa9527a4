"""Classes that a configuration names as ``package.module:Class``.

The author of a configuration chooses code to run. A class is validated before it is called: it must
derive from the expected base class, or have the expected methods.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from sparring.adapter import format_suggestion
from sparring.errors import ConfigError

__all__ = ["accepts_option", "create", "find_class", "find_class_name"]

_Base = TypeVar("_Base")


def find_class(
    name: str, setting: str, base: type[_Base] | None = None, methods: Sequence[str] = ()
) -> type[_Base]:
    """Imports the class that a configuration names.

    Args:
        name: ``package.module:Class``.
        setting: the dotted key that contains it, for messages.
        base: required base class; None: any class.
        methods: names of required methods.

    Raises:
        ConfigError: the module or class does not exist, or is not of the required kind.
    """
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise _refusal(
            setting,
            f"importing {name} failed: {error}; install the package, or add the folder of the module to "
            "PYTHONPATH (PYTHONPATH=. for the current directory)",
        ) from error
    except Exception as error:  # Raised by the module's code.
        raise _refusal(
            setting,
            f"{name}: importing {module_name} failed: {type(error).__name__}: {error}; fix the "
            "module",
        ) from error
    for part in path.split("."):
        if not hasattr(found, part):
            classes = inspect.getmembers(found, inspect.isclass)
            known = [
                each
                for each, value in classes
                if not each.startswith("_") and (base is None or issubclass(value, base))
            ]
            raise _refusal(
                setting,
                f"{name} was not found: {module_name} has no {path!r}; {format_suggestion(part, known)}",
            )
        found = getattr(found, part)
    expected = "a class" if base is None else f"a class derived from {find_class_name(base)}"
    if not isinstance(found, type) or (base is not None and not issubclass(found, base)):
        kind = "class" if isinstance(found, type) else type(found).__name__
        raise _refusal(setting, f"{name} is a {kind}, expected {expected}; name such a class")
    missing = [each for each in methods if not callable(getattr(found, each, None))]
    if missing:
        raise _refusal(
            setting,
            f"{name} has no method {missing[0]!r}, expected a class with {', '.join(methods)}; add it",
        )
    return found


def create(
    made: type[_Base],
    name: str,
    setting: str,
    *arguments: Any,
    words: str = "",
    options: Mapping[str, Any],
) -> _Base:
    """Creates an instance of a class that a configuration names.

    Args:
        made: the class.
        name: name of the class in the configuration.
        setting: dotted key of the section, for messages.
        arguments: positional arguments.
        words: describes the positional arguments, for messages.
        options: keyword arguments from the configuration.

    Raises:
        ConfigError: the class does not accept these arguments.
    """
    try:
        return made(*arguments, **options)
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
        raise _refusal(
            setting,
            f"{name} does not accept {words}{' and ' if words else ''}{given}: {error}; change the "
            "options, or the class",
        ) from error


def accepts_option(made: type, option: str) -> bool:
    """Returns whether a class accepts this keyword argument."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == option for each in parameters)


def find_class_name(found: type) -> str:
    """Returns the name of a class in configurations."""
    return f"{found.__module__}:{found.__qualname__}"


def _refusal(setting: str, reason: str) -> ConfigError:
    return ConfigError(f"{setting}: {reason}", setting=setting)
