"""The storages of core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparring.contracts.descriptors import API_VERSION, StorageDescriptor
from sparring.contracts.hookspecs import hookimpl

if TYPE_CHECKING:
    from sparring.contracts.shard_map import Shard
    from sparring.contracts.storage import Storage
    from sparring.contracts.table import TableConfig
    from sparring.plugins.registry import PluginManager


@hookimpl
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    from sparring.storage.memory import MemoryOptions
    from sparring.storage.tiered.options import TieredOptions, inner_storages, tier_problems

    return [
        StorageDescriptor(
            name="memory",
            api_version=API_VERSION,
            summary="Rows in plain Python and NumPy: slow, and obviously correct.",
            options=MemoryOptions,
            factory=_open_memory,
            estimate_bytes=_estimate_memory,
        ),
        StorageDescriptor(
            name="tiered",
            api_version=API_VERSION,
            summary="A stack of storages: hot rows in the first, all others further down.",
            options=TieredOptions,
            factory=_open_tiered,
            inner=inner_storages,
            check=tier_problems,
            estimate_bytes=_estimate_tiered,
        ),
    ]


def _open_memory(table: TableConfig, options: Any) -> Storage:
    from sparring.storage.memory import MemoryStorage

    return MemoryStorage(table, options)


def _estimate_memory(table: TableConfig, options: Any, rows: int) -> Mapping[str, int]:
    from sparring.storage.memory import estimate_memory_bytes

    return estimate_memory_bytes(table, options, rows)


def _estimate_tiered(
    table: TableConfig, options: Any, rows: int, manager: PluginManager
) -> Mapping[str, int]:
    from sparring.storage.tiered.estimate import estimate_tiered_bytes

    return estimate_tiered_bytes(table, options, rows, manager)


def _open_tiered(
    table: TableConfig, options: Any, manager: PluginManager, shard: Shard | None
) -> Storage:
    if options.refresh is not None:
        from sparring.storage.cached.open_cached import open_cached

        return open_cached(table, options, manager)
    from sparring.storage.tiered.tiered_storage import open_tiers

    return open_tiers(table, options, manager, shard)
