"""Opens storages by the name of their backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.table import CONVERT_HELP, TableConfig
from sparring.errors import InvalidArgumentError, PluginError, VersionError
from sparring.plugins.option_checks import validate_options
from sparring.storage.convert import format_conversion_command

if TYPE_CHECKING:
    from sparring.contracts.descriptors import InnerStorage, StorageDescriptor
    from sparring.contracts.options import Options
    from sparring.contracts.ranks.shard_map import Shard
    from sparring.plugins.registry import PluginManager

__all__ = ["found_table", "inner_storages", "open_storage"]


def open_storage(
    backend: str,
    table: TableConfig,
    *,
    validate: bool = True,
    plugin_manager: PluginManager | None = None,
    shard: Shard | None = None,
    **options: Any,
) -> Storage:
    """Opens one shard of one table.

    Args:
        backend: Name that core (``memory``) or a plugin (such as ``hkv``) registers.
        table: Declaration of the table.
        validate: Whether each call checks that keys are unique. The engine turns the check off,
            because it deduplicates keys itself.
        plugin_manager: Plugins to search; None for the installed plugins.
        shard: Part of the table that this rank owns; None for the whole table on a single rank.
        **options: Options of the backend; ``sparring plugins`` lists them.

    Returns:
        The open storage; the caller must close it.

    Raises:
        PluginError: No plugin registers `backend`, its plugin is broken, or it cannot run on this
            machine.
        VersionError: The backend was built for another major version of the storage ABI.
        InvalidArgumentError: `backend` is not a string, `table` is not a `TableConfig`, or an option is
            unknown or invalid.

    Examples:
        >>> import numpy as np
        >>> from sparring import TableConfig, open_storage
        >>> with open_storage("memory", TableConfig("item", dim=2)) as storage:
        ...     evicted = storage.upsert([1, 2], np.ones((2, 2), np.float32))
        ...     storage.size
        2
    """
    if not isinstance(backend, str):
        raise InvalidArgumentError(
            f"open_storage: backend must be a name such as 'hkv', found {type(backend).__name__}; "
            "choose a name that `sparring plugins` lists"
        )
    if not isinstance(table, TableConfig):
        raise InvalidArgumentError(
            f"open_storage: table must be a sparring.TableConfig, found {type(table).__name__}; "
            "create one: sparring.TableConfig(name, dim)"
        )
    if plugin_manager is None:
        from sparring.plugins.registry import make_plugin_manager

        plugin_manager = make_plugin_manager()
    descriptor = plugin_manager.storage(backend)
    checked = validate_options("storage", descriptor, options)
    reason = descriptor.unavailable() if descriptor.unavailable is not None else None
    if reason is not None:
        raise PluginError(f"storage {backend!r} cannot run here: {reason}", backend=backend)
    try:
        storage = _create_storage(descriptor, table, checked, plugin_manager, shard)
    except VersionError as error:
        # The wrapper of a native struct may not know the distribution of the struct.
        for offer in plugin_manager.descriptors():
            if offer.descriptor is descriptor:
                raise VersionError(
                    f"storage {backend!r} of {offer.distribution} {offer.version}: {error}",
                    **(error.details | {"distribution": f"{offer.distribution} {offer.version}"}),
                ) from error
        raise
    except InvalidArgumentError as error:
        found = error.details.get("found_table")
        if not isinstance(found, TableConfig):
            raise
        # The backend knows the existing table, but only this function knows the command to convert it.
        given = {name: getattr(checked, name, value) for name, value in options.items()}
        command = format_conversion_command(backend, given, found, table)
        text = str(error).replace(CONVERT_HELP, command)
        raise InvalidArgumentError(text, **error.details) from error
    if not isinstance(storage, Storage):
        raise PluginError(
            f"storage {backend!r}: its factory must return a sparring.Storage, found "
            f"{type(storage).__name__}; report this to the authors of the plugin",
            backend=backend,
        )
    storage.validate = validate
    return storage


def found_table(
    backend: str, table: TableConfig, plugin_manager: PluginManager, options: Mapping[str, Any]
) -> TableConfig | None:
    """Returns the table of the rows that an earlier process stored; None if there are none.

    Creates no storage. For a stack, returns the table of its last tier.

    Args:
        backend: Name of the backend.
        table: Declaration of the table.
        plugin_manager: Plugins to search.
        options: Options of the backend.

    Raises:
        PluginError, InvalidArgumentError: Under the same conditions as `open_storage`.
    """
    descriptor = plugin_manager.storage(backend)
    checked = validate_options("storage", descriptor, options)
    if descriptor.inner is not None:
        last = descriptor.inner(checked)[-1]
        return found_table(last.backend, table, plugin_manager, last.options)
    if descriptor.found is None or (descriptor.unavailable and descriptor.unavailable()):
        return None
    return descriptor.found(table, checked)


def inner_storages(
    backend: str, options: Mapping[str, Any], plugin_manager: PluginManager
) -> Sequence[InnerStorage]:
    """Returns the storages in the options of a stack, hottest first; empty for other backends.

    Raises:
        PluginError, InvalidArgumentError: Under the same conditions as `open_storage`.
    """
    descriptor = plugin_manager.storage(backend)
    if descriptor.inner is None:
        return ()
    return descriptor.inner(validate_options("storage", descriptor, options))


def _create_storage(
    descriptor: StorageDescriptor,
    table: TableConfig,
    options: Options,
    plugin_manager: PluginManager,
    shard: Shard | None,
) -> Storage:
    if descriptor.inner is not None:
        return descriptor.factory(table, options, plugin_manager, shard)
    if shard is None or descriptor.shard_factory is None:
        return descriptor.factory(table, options)
    return descriptor.shard_factory(table, options, shard)
