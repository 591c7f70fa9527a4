"""Lookup of update methods by name, and validation of their hyper-parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sparring.contracts.storage.updates import UpdateMethod
from sparring.contracts.tables.hyperparameters import HyperParameters
from sparring.errors import InvalidArgumentError, PluginError
from sparring.runtime.suggestions import find_closest_name, format_suggestion

if TYPE_CHECKING:
    from sparring.plugins.registry import PluginManager

__all__ = ["parse_hyper", "hypers_by_table", "resolve_method", "set_learning_rate"]


def resolve_method(name: str, plugin_manager: PluginManager | None = None) -> UpdateMethod:
    """Returns the update method with this name.

    Args:
        name: name of a method of core or of a plugin.
        plugin_manager: the plugin manager; None: a new one with all installed plugins.

    Raises:
        PluginError: no plugin registers the name, or its plugin is broken or returns another object.

    Examples:
        >>> from sparring.updates.resolve import parse_hyper, resolve_method
        >>> method = resolve_method("adagrad")
        >>> method.state_width(16), parse_hyper(method, {"lr": 0.05}).lr
        (16, 0.05)
    """
    if plugin_manager is None:
        from sparring.plugins.registry import make_plugin_manager

        plugin_manager = make_plugin_manager()
    method = plugin_manager.update_method(name).factory()
    if not isinstance(method, UpdateMethod) or method.name != name:
        found = getattr(method, "name", None)
        raise PluginError(
            f"update method {name!r}: its factory must return a sparring.contracts.UpdateMethod of "
            f"that name, found {type(method).__name__} {found!r}; report this to the authors of the "
            "plugin",
            name=name,
        )
    return method


def parse_hyper(method: UpdateMethod, given: Mapping[str, Any]) -> HyperParameters:
    """Validates hyper-parameters of a method; missing ones get their defaults.

    Args:
        method: the update method.
        given: hyper-parameters by name.

    Raises:
        InvalidArgumentError: a name is unknown, or a value has the wrong type or is out of range.
    """
    known = method.hyperparameters.model_fields
    for name in given:
        if name not in known:
            meant = find_closest_name(name, known)
            hint = f"did you mean {meant!r}? " if meant is not None else ""
            raise InvalidArgumentError(
                f"update method {method.name!r} has no hyper-parameter {name!r}; {hint}"
                f"known hyper-parameters: {', '.join(known)}",
                hyperparameter=name,
            )
    try:
        return method.hyperparameters(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise InvalidArgumentError(
            f"update method {method.name!r}: hyper-parameter {name!r}: {first['msg']}, found "
            f"{given.get(name)!r}",
            hyperparameter=name,
        ) from error


def hypers_by_table(
    method: UpdateMethod,
    tables: Sequence[str],
    given: Mapping[str, Any],
    by_table: Mapping[str, Mapping[str, Any]],
) -> dict[str, HyperParameters]:
    """Validates the hyper-parameters of a method for each table, and returns them by table.

    Args:
        method: the update method.
        tables: names of the tables.
        given: hyper-parameters of all tables.
        by_table: table → hyper-parameters that override `given`.

    Raises:
        InvalidArgumentError: see `parse_hyper`; or `by_table` contains a table that is not in `tables`.
    """
    for name in by_table:
        if name not in tables:
            raise InvalidArgumentError(
                f"tables: this optimizer updates no table {name!r}; {format_suggestion(name, tables)}",
                table=name,
            )
    return {name: parse_hyper(method, {**given, **by_table.get(name, {})}) for name in tables}


def set_learning_rate(
    method: UpdateMethod,
    hypers: MutableMapping[str, HyperParameters],
    tables: Iterable[str],
    rate: float,
) -> None:
    """Sets the learning rate of tables.

    Args:
        method: the update method of the tables.
        hypers: hyper-parameters by table; changed in place.
        tables: names of the tables.
        rate: the learning rate.

    Raises:
        InvalidArgumentError: the method does not accept the rate; nothing has changed.
    """
    parse_hyper(method, {"lr": rate})
    for name in tables:
        hypers[name] = hypers[name].model_copy(update={"lr": rate})
