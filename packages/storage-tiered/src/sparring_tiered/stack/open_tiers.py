"""Opens the tiers in the options, and creates a stack of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from sparring import open_storage
from sparring.contracts import Storage, TableConfig
from sparring.errors import InvalidArgumentError
from sparring_tiered.options import TieredOptions, build_backend_options
from sparring_tiered.stack.tiered_storage import TieredStorage

if TYPE_CHECKING:
    from sparring import PluginManager
    from sparring.contracts import Shard

__all__ = ["open_storages", "open_tiers"]

_log = logging.getLogger(__name__)


def open_tiers(
    table: TableConfig, options: TieredOptions, manager: PluginManager, shard: Shard | None
) -> TieredStorage:
    """Opens every tier for `table`. If one cannot be opened, all are closed again.

    Args:
        table: Declaration of the table.
        options: Tiers and their budgets.
        manager: Finds backends by name.
        shard: Part of the table that this rank owns; None for the whole table.

    Raises:
        PluginError: No plugin registers a backend, or the backend cannot run here.
        InvalidArgumentError: An option of a tier is invalid, or its backend does not support a budget.
    """
    tiers = open_storages(table, options, manager, shard, range(len(options.tiers)))
    with ExitStack() as opened:
        for _, storage in tiers:
            opened.callback(storage.close)
        _warn_unused_tiers(table, options, [storage for _, storage in tiers])
        stack = TieredStorage(table, options, tiers)
        opened.pop_all()
        return stack


def open_storages(
    table: TableConfig,
    options: TieredOptions,
    manager: PluginManager,
    shard: Shard | None,
    places: range,
) -> list[tuple[str, Storage]]:
    """Opens the tiers at the given places, with the errors of `open_tiers`.

    Returns:
        Backend name and storage of each tier.
    """
    with ExitStack() as opened:
        tiers: list[tuple[str, Storage]] = []
        for place in places:
            tier = options.tiers[place]
            try:
                chosen = build_backend_options(options, place, manager, row_bytes=table.row_bytes)
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
        opened.pop_all()
        return tiers


def _warn_unused_tiers(
    table: TableConfig, options: TieredOptions, tiers: Sequence[Storage]
) -> None:
    """Logs a warning if a tier has no bound, so that the tiers below it get rows only at a
    flush."""
    if options.write == "through":
        return
    for place, storage in enumerate(tiers[:-1]):
        if storage.capacity is None:
            _log.warning(
                "table %r: tiers.%d (%s) has no bound, so it evicts no row, and rows reach the tiers "
                "below only at a flush; set its budget_bytes, or omit the tiers below",
                table.name,
                place,
                options.tiers[place].backend,
                extra={"table": table.name},
            )
            return
