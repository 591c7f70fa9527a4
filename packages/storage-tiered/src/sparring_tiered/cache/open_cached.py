"""Opens the storage of a reader from the options of a stack with `refresh`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from sparring import open_storage
from sparring.adapter import found_table
from sparring.contracts import Storage, TableConfig
from sparring.errors import InvalidArgumentError
from sparring_tiered.cache.cached_storage import CachedStorage
from sparring_tiered.changelog.open_log import open_change_log
from sparring_tiered.options import TieredOptions
from sparring_tiered.stack.open_tiers import open_storages
from sparring_tiered.stack.tiered_storage import TieredStorage

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["open_cached"]


def open_cached(
    table: TableConfig, options: TieredOptions, manager: PluginManager
) -> CachedStorage:
    """Opens the tiers above the last as a cache, and the last tier as the backend behind it.

    Args:
        table: Declaration of the table. The optimizer state is read from the backend.
        options: Options of the stack, with `refresh`.
        manager: Finds backends by name.

    Raises:
        InvalidArgumentError: The backend has no rows of the table, or there are no notes.
        SparringError: A tier cannot be opened.
    """
    assert options.refresh is not None
    last = options.tiers[-1]
    stored = found_table(last.backend, table, manager, last.options)
    if stored is None:
        raise InvalidArgumentError(
            f"table {table.name!r}: storage {last.backend!r} has no rows of it with these options; train "
            "with that storage first, or set the same options as in the trainer",
            table=table.name,
        )
    own = table.with_state(0)
    with ExitStack() as opened:
        log = open_change_log(
            table.name, options.refresh.notes, last.backend, last.options, manager
        )
        opened.callback(log.close)
        backend = open_storage(
            last.backend, stored, validate=False, plugin_manager=manager, **last.options
        )
        opened.callback(backend.close)
        tiers = open_storages(own, options, manager, None, range(len(options.tiers) - 1))
        for _, each in tiers:
            opened.callback(each.close)
        cache: Storage = tiers[0][1]
        if len(tiers) > 1:
            inner = options.model_copy(update={"refresh": None, "write_back": "inline"})
            cache = TieredStorage(own, inner, tiers, validate=False)
        storage = CachedStorage(own, cache, backend, log, options.refresh)
        opened.pop_all()
        return storage
