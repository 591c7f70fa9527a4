"""Estimates of the bytes that a storage takes, before it is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparring import PluginManager
from sparring.contracts import TableConfig, validate_options
from sparring.errors import InvalidArgumentError

__all__ = ["estimate_bytes"]


def estimate_bytes(
    backend: str,
    table: TableConfig,
    rows: int,
    plugin_manager: PluginManager,
    **options: Any,
) -> Mapping[str, int] | None:
    """Returns the bytes that a storage with the given number of rows takes. It opens nothing.

    Args:
        backend: as in `open_storage`.
        table: the declaration of its rows, with the width of their state.
        rows: number of rows of this storage, which is one shard of a table with several shards.
        plugin_manager: the plugins to search.
        **options: the options of the backend.

    Returns:
        Kind of memory (``gpu``, ``host``, ``disk``, ``remote``) → bytes; None if the backend
        gives no estimate.

    Raises:
        PluginError: no plugin offers `backend`; or a tier of a stack gives no estimate.
        CapacityError: no storage of the backend can contain as many rows.
        InvalidArgumentError: an option is unknown or wrong, or `rows` is below 0.
    """
    if rows < 0:
        raise InvalidArgumentError(f"estimate_bytes: rows must be at least 0, found {rows}")
    descriptor = plugin_manager.storage(backend)
    if descriptor.estimate_bytes is None:
        return None
    checked = validate_options("storage", descriptor, options)
    if descriptor.inner is not None:
        return descriptor.estimate_bytes(table, checked, rows, plugin_manager)
    return descriptor.estimate_bytes(table, checked, rows)
