"""Opens the tiers that options name, and stacks them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from sparring.storage.contract import Storage
from sparring.storage.opening import open_storage
from sparring.storage.tiered.options import TieredOptions, backend_options
from sparring.storage.tiered.storage import TieredStorage
from sparring.table import TableConfig

if TYPE_CHECKING:
    from sparring.plugins import PluginManager
    from sparring.rendezvous import Shard

__all__ = ["open_tiers"]


def open_tiers(
    table: TableConfig, options: TieredOptions, manager: PluginManager, shard: Shard | None
) -> TieredStorage:
    """Opens every tier for `table`; none stays open where one cannot be.

    Args:
        table: what the rows are.
        options: which tiers, and their budgets.
        manager: where backends are looked up.
        shard: the part of the table that this rank keeps; None: all of it.

    Raises:
        PluginError: nobody offers a backend, or it cannot run here.
        InvalidArgumentError: an option of a tier is wrong, or it cannot be bounded as asked.
    """
    with ExitStack() as opened:
        tiers: list[tuple[str, Storage]] = []
        for place, tier in enumerate(options.tiers):
            storage = open_storage(
                tier.backend,
                table,
                validate=False,
                plugin_manager=manager,
                shard=shard,
                **backend_options(options, place, manager, row_bytes=table.row_bytes),
            )
            opened.callback(storage.close)
            tiers.append((tier.backend, storage))
        stack = TieredStorage(table, options, tiers)
        opened.pop_all()
        return stack
