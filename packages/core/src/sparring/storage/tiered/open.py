"""Opens the tiers that options name, and stacks them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from sparring.contracts.storage import Storage
from sparring.contracts.table import TableConfig
from sparring.errors import InvalidArgumentError
from sparring.storage.open import open_storage
from sparring.storage.tiered.options import TieredOptions, backend_options
from sparring.storage.tiered.tiered_storage import TieredStorage

if TYPE_CHECKING:
    from sparring.contracts.shard_map import Shard
    from sparring.plugins.registry import PluginManager

__all__ = ["open_tiers"]

_log = logging.getLogger(__name__)


def open_tiers(
    table: TableConfig, options: TieredOptions, manager: PluginManager, shard: Shard | None
) -> TieredStorage:
    """Opens every tier for `table`; none stays open where one cannot be.

    Args:
        table: the declaration of their rows.
        options: which tiers, and their budgets.
        manager: where backends are looked up.
        shard: the part of the table that this rank keeps; None: all of it.

    Raises:
        PluginError: no plugin offers a backend, or it cannot run here.
        InvalidArgumentError: an option of a tier is wrong, or it cannot be bounded as asked.
    """
    with ExitStack() as opened:
        tiers: list[tuple[str, Storage]] = []
        for place, tier in enumerate(options.tiers):
            try:
                chosen = backend_options(options, place, manager, row_bytes=table.row_bytes)
                storage = open_storage(
                    tier.backend,
                    table,
                    validate=False,
                    plugin_manager=manager,
                    shard=shard,
                    **chosen,
                )
            except InvalidArgumentError as error:
                budget = "" if tier.budget_bytes is None else f", budget_bytes {tier.budget_bytes}"
                raise InvalidArgumentError(
                    f"table {table.name!r}, tiers.{place} ({tier.backend}{budget}): {error}",
                    **error.details,
                ) from error
            opened.callback(storage.close)
            tiers.append((tier.backend, storage))
        _warn_of_unused(table, options, [storage for _, storage in tiers])
        stack = TieredStorage(table, options, tiers)
        opened.pop_all()
        return stack


def _warn_of_unused(table: TableConfig, options: TieredOptions, tiers: Sequence[Storage]) -> None:
    """Logs a warning of an unbounded tier that keeps rows from those below it."""
    if options.write == "through":
        return
    for place, storage in enumerate(tiers[:-1]):
        if storage.capacity is None:
            _log.warning(
                "table %r: tiers.%d (%s) has no bound, so it lets no row go and rows come into the "
                "tiers below at a flush only; give it a budget_bytes, or leave those tiers out",
                table.name,
                place,
                options.tiers[place].backend,
            )
            return
