"""Classes that a configuration names: ``package.module:Class``.

Who writes a configuration chooses code that runs. A class is checked before it is called: it must be
derived from the class that its place in the configuration expects, or have the methods of it.
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
    """The class that a configuration names.

    Args:
        name: ``package.module:Class``.
        setting: the dotted key that holds it, for messages.
        base: class that it must be derived from; None: any.
        methods: names of methods that it must have.

    Raises:
        ConfigError: there is no such module or class, or it is of another kind.
    """
    module_name, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise _refusal(
            setting,
            f"{name} cannot be found: {error}; install the package, or put the module on Python's path "
            "(PYTHONPATH=. for the current directory)",
        ) from error
    except Exception as error:  # of the module's own code
        raise _refusal(
            setting,
            f"{name}: importing {module_name} failed: {type(error).__name__}: {error}; correct the "
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
                f"{name} cannot be found: {module_name} has no {path!r}; "
                f"{format_suggestion(part, known)}",
            )
        found = getattr(found, part)
    expected = "a class" if base is None else f"a class derived from {find_class_name(base)}"
    if not isinstance(found, type) or (base is not None and not issubclass(found, base)):
        kind = "class" if isinstance(found, type) else type(found).__name__
        raise _refusal(setting, f"{name} is a {kind}, expected {expected}; name another one")
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
    """Calls a class that a configuration names.

    Args:
        made: the class.
        name: how the configuration calls it.
        setting: the dotted key of the section that it stands in, for messages.
        arguments: given by position.
        words: names these, for messages.
        options: given by name: those that the configuration gives.

    Raises:
        ConfigError: it does not accept these arguments.
    """
    try:
        return made(*arguments, **options)
    except (TypeError, ValueError) as error:
        given = ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no options"
        raise _refusal(
            setting, f"{name} does not accept {words}{' and ' if words else ''}{given}: {error}"
        ) from error


def accepts_option(made: type, option: str) -> bool:
    """Whether a class can be called with this option by its name."""
    try:
        parameters = inspect.signature(made).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == option for each in parameters)


def find_class_name(found: type) -> str:
    """As configurations name it."""
    return f"{found.__module__}:{found.__qualname__}"


def _refusal(setting: str, reason: str) -> ConfigError:
    return ConfigError(f"{setting}: {reason}", setting=setting)
