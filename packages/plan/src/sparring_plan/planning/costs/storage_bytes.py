"""Estimates the bytes that a storage needs, before it is opened."""

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
    """Returns the bytes that a storage with the given number of rows needs, without opening it.

    Args:
        backend: Name of the backend, as in `open_storage`.
        table: Declaration of the rows, including the width of their state.
        rows: Number of rows of this storage, which is one shard of the table.
        plugin_manager: Plugin manager that finds the backend.
        **options: Options of the backend.

    Returns:
        Kind of memory (``gpu``, ``host``, ``disk``, ``remote``) → bytes; None if the backend has no
        estimate.

    Raises:
        PluginError: The backend is not installed, or a tier of a stack has no estimate.
        CapacityError: The backend does not support that many rows.
        InvalidArgumentError: An option is unknown or invalid, or `rows` is below 0.
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
