"""From a name and hyper-parameters, as users write them, to a method."""

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
    """The update method of that name.

    Args:
        name: of a built-in method or of one that a plugin registered.
        plugin_manager: where to look; None looks through the installed plugins.

    Raises:
        PluginError: no plugin registers it, its plugin is broken, or makes something else.
    """
    if plugin_manager is None:
        from sparring.plugins.registry import make_plugin_manager

        plugin_manager = make_plugin_manager()
    method = plugin_manager.update_method(name).factory()
    if not isinstance(method, UpdateMethod) or method.name != name:
        found = getattr(method, "name", None)
        raise PluginError(
            f"update method {name!r}: its factory must return a sparring.contracts.UpdateMethod of "
            f"that name, found {type(method).__name__} {found!r}; report this to the makers of the "
            "plugin",
            name=name,
        )
    return method


def parse_hyper(method: UpdateMethod, given: Mapping[str, Any]) -> HyperParameters:
    """Checked hyper-parameters of a method; missing ones have their defaults.

    Raises:
        InvalidArgumentError: an unknown name, a value of another type or out of range.
    """
    known = method.hyperparameters.model_fields
    for name in given:
        if name not in known:
            meant = find_closest_name(name, known)
            hint = f"did you mean {meant!r}? " if meant is not None else ""
            raise InvalidArgumentError(
                f"update method {method.name!r} has no hyper-parameter {name!r}; {hint}"
                f"it takes {', '.join(known)}",
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
    """Checked hyper-parameters of a method for each of `tables`.

    Args:
        method: what takes them.
        tables: names.
        given: for all tables.
        by_table: of single tables, which override these.

    Raises:
        InvalidArgumentError: as `parse_hyper`; `by_table` names a table that is none of `tables`.
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
    """Gives `tables` another learning rate in `hypers`.

    Raises:
        InvalidArgumentError: it is no learning rate of the method; nothing has changed.
    """
    parse_hyper(method, {"lr": rate})
    for name in tables:
        hypers[name] = hypers[name].model_copy(update={"lr": rate})
