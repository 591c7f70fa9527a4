"""Estimates of the bytes of a storage, before there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError
from sparring.plugins.option_checks import checked_options

if TYPE_CHECKING:
    from sparring.plugins.registry import PluginManager

__all__ = ["estimate_bytes"]


def estimate_bytes(
    backend: str,
    table: TableConfig,
    rows: int,
    plugin_manager: PluginManager | None = None,
    **options: Any,
) -> Mapping[str, int] | None:
    """Bytes that a storage of so many rows takes. Nothing is opened.

    Args:
        backend: as in `open_storage`.
        table: the declaration of its rows, with the width of their state.
        rows: of this storage: of one shard, where a table has several.
        plugin_manager: where to look; None looks through the installed plugins.
        **options: the backend's own.

    Returns:
        Kind of memory (``gpu``, ``host``, ``disk``, ``remote``) → bytes; None where the backend
        gives no estimate.

    Raises:
        PluginError: no plugin offers `backend`; or a tier of a stack gives no estimate.
        CapacityError: no storage of the backend can have as many rows.
        InvalidArgumentError: an option is unknown or wrong, or `rows` is below 0.
    """
    if rows < 0:
        raise InvalidArgumentError(f"estimate_bytes: rows must be at least 0, found {rows}")
    if plugin_manager is None:
        from sparring.plugins.registry import make_plugin_manager

        plugin_manager = make_plugin_manager()
    descriptor = plugin_manager.storage(backend)
    if descriptor.estimate_bytes is None:
        return None
    checked = checked_options("storage", descriptor, options)
    if descriptor.inner is not None:
        return descriptor.estimate_bytes(table, checked, rows, plugin_manager)
    return descriptor.estimate_bytes(table, checked, rows)
