"""Storages that contain the rows of a run after it has ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from sparring import StorageChoice, latest_snapshot, open_storage
from sparring.adapter import found_table
from sparring.contracts import Storage, TableConfig
from sparring.errors import InvalidArgumentError
from sparring_train.config.run import RunConfig

if TYPE_CHECKING:
    from sparring import PluginManager

__all__ = ["open_run_storages", "format_storage"]


def format_storage(storage: StorageChoice) -> str:
    """Returns a name for messages: the backend and its textual options, such as a path or a URL."""
    said = [
        f"{name} {value}"
        for name, value in storage.options.items()
        if isinstance(value, (str, PurePath))
    ]
    return f"{storage.backend} ({', '.join(said)})" if said else storage.backend


def open_run_storages(
    config: RunConfig,
    table: str,
    manager: PluginManager,
    *,
    ranks: int | None = None,
) -> Iterator[tuple[StorageChoice, Storage]]:
    """Opens the storages in which ranks of a run have stored rows of a table, one after the other.

    Storages that contain no rows or that ended with the run are skipped.

    Args:
        config: configuration of the run, which must have ended.
        table: name of the table.
        manager: finds backends.
        ranks: number of ranks; None: the number that wrote the newest snapshot, or 1.

    Raises:
        InvalidArgumentError: the run has no such table.
        SparringError: a storage cannot be opened, for example because the run is still running.
    """
    wanted = {each.name: each for each in config.list_tables()}
    if table not in wanted:
        raise InvalidArgumentError(
            f"table {table!r} does not exist; the model of this run has {', '.join(wanted)}",
            table=table,
        )
    url = config.snapshots.url
    snapshot = None if url is None else latest_snapshot(url)
    if snapshot is not None and table in snapshot.tables:
        declared = replace(snapshot.tables[table].config, state_width=0, state_method="")
    else:
        declared = TableConfig(table, wanted[table].dim, config.tables.dtype)
    count = ranks or (1 if snapshot is None else snapshot.world_size)
    choice = StorageChoice(config.storage.backend, config.storage.options)
    places = [choice.on(rank, count, table) for rank in range(count)]
    for place in [each for at, each in enumerate(places) if each not in places[:at]]:
        found = found_table(place.backend, declared, manager, place.options)
        if found is None:
            continue
        with open_storage(place.backend, found, plugin_manager=manager, **place.options) as opened:
            yield place, opened
