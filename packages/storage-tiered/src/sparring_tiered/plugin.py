"""Plugin of sparring-tiered. Importing it loads no native library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sparring.contracts import StorageDescriptor, hookimpl
from sparring_tiered.options import TieredOptions, inner_storages, list_tier_problems

if TYPE_CHECKING:
    from sparring import PluginManager
    from sparring.contracts import Shard, Storage, TableConfig


@hookimpl
def sparring_register_storage() -> Sequence[StorageDescriptor]:
    return [
        StorageDescriptor(
            name="tiered",
            api_version=(1, 0),
            summary="A stack of storages: hot rows in the first tier, all other rows in lower tiers.",
            options=TieredOptions,
            factory=_open,
            inner=inner_storages,
            check=list_tier_problems,
            estimate_bytes=_estimate,
        )
    ]


def _open(
    table: TableConfig, options: TieredOptions, manager: PluginManager, shard: Shard | None
) -> Storage:
    if options.refresh is not None:
        from sparring_tiered.cache.open_cached import open_cached

        return open_cached(table, options, manager)
    from sparring_tiered.stack.open_tiers import open_tiers

    return open_tiers(table, options, manager, shard)


def _estimate(
    table: TableConfig, options: TieredOptions, rows: int, manager: PluginManager
) -> Mapping[str, int]:
    from sparring_tiered.stack.estimate import estimate_tiered_bytes

    return estimate_tiered_bytes(table, options, rows, manager)
