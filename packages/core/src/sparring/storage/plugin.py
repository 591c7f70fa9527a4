"""Registers the storage of core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparring.contracts.descriptors import API_VERSION, StorageDescriptor
from sparring.contracts.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparring.contracts.storage.storage import Storage
    from sparring.contracts.tables.table import TableConfig


@hookimpl
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    from sparring.storage.memory import MemoryOptions

    return [
        StorageDescriptor(
            name="memory",
            api_version=API_VERSION,
            summary="Rows in plain Python and NumPy: slow, and obviously correct.",
            options=MemoryOptions,
            factory=_open_memory,
            estimate_bytes=_estimate_memory,
        ),
    ]


def _open_memory(table: TableConfig, options: Any) -> Storage:
    from sparring.storage.memory import MemoryStorage

    return MemoryStorage(table, options)


def _estimate_memory(table: TableConfig, options: Any, rows: int) -> Mapping[str, int]:
    from sparring.storage.memory import estimate_memory_bytes

    return estimate_memory_bytes(table, options, rows)
