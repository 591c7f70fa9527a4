"""Choice of the backend that holds a table's rows, and checks of declarations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any

from sparring.contracts.storage.storage import Storage
from sparring.contracts.tables.admission import Bloom
from sparring.contracts.tables.table import TableConfig
from sparring.errors import InvalidArgumentError, UnsupportedError

__all__ = [
    "StorageChoice",
    "check_declaration",
    "check_column_blocks",
    "check_given",
    "check_placement",
    "find_storage_device",
]


@dataclass(frozen=True, slots=True)
class StorageChoice:
    """Which backend holds a table's rows, and its options.

    In options that are text, ``{rank}``, ``{world_size}`` and ``{table}`` stand for what they say, so
    that one configuration gives each rank a place of its own: ``path: rows/{rank}-of-{world_size}``.
    """

    backend: str = "hkv"
    options: Mapping[str, Any] = field(default_factory=dict)

    def on(self, rank: int, world_size: int, table: str) -> StorageChoice:
        """The choice with its options filled in for one table on one rank."""
        words = {"{rank}": str(rank), "{world_size}": str(world_size), "{table}": table}
        return StorageChoice(self.backend, _fill_in(self.options, words))

    @property
    def uses_own_device(self) -> bool:
        """Whether any device among its options is ``cuda`` without a number."""
        return bool(_replace_device(self.options, "") != self.options)

    def on_device(self, own: str) -> StorageChoice:
        """The choice with ``device: cuda`` read as this rank's own GPU, also in what it stacks."""
        return StorageChoice(self.backend, _replace_device(self.options, own))


def find_storage_device(storage: StorageChoice | Storage | None) -> str:
    """Where the rows of a table are: ``cpu``, or the device whose arrays its storage takes.

    Of storages that have devices, ``device`` among the options says which; of a stack it is its
    first tier's.
    """
    if isinstance(storage, Storage):
        return next((each for each in storage.capabilities.devices if each != "cpu"), "cpu")
    options: Any = {} if storage is None else storage.options
    while isinstance(tiers := options.get("tiers"), (list, tuple)) and tiers:
        first = tiers[0].get("options") if isinstance(tiers[0], Mapping) else None
        options = first if isinstance(first, Mapping) else {}
    found = options.get("device")
    return found if isinstance(found, str) and _DEVICE.fullmatch(found) else "cpu"


_DEVICE = re.compile(r"cuda(:\d+)?|emulated")


def _replace_device(value: Any, own: str) -> Any:
    if isinstance(value, Mapping):
        return {
            name: own if name == "device" and each == "cuda" else _replace_device(each, own)
            for name, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        placed = [_replace_device(each, own) for each in value]
        return placed if isinstance(value, list) else tuple(placed)
    return value


def _fill_in(value: Any, words: Mapping[str, str]) -> Any:
    """`value` with words replaced in every text within; other braces stay."""
    if isinstance(value, str):
        return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], value)
    if isinstance(value, PurePath):
        return type(value)(_fill_in(str(value), words))
    if isinstance(value, Mapping):
        return {name: _fill_in(each, words) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fill_in(each, words) for each in value]
    return value


def check_declaration(table: object, storage: object) -> None:
    """Refuses what `StepContainer.declare` cannot make a table of.

    Raises:
        InvalidArgumentError: `table` is no `TableConfig`, or `storage` no choice and no storage.
    """
    if not isinstance(table, TableConfig):
        raise InvalidArgumentError(
            f"declare: table must be a sparring.TableConfig, found {type(table).__name__}; "
            "make one: sparring.TableConfig(name, dim)"
        )
    if storage is not None and not isinstance(storage, (Storage, StorageChoice)):
        raise InvalidArgumentError(
            f"declare of table {table.name!r}: storage must be a StorageChoice or an open "
            f"Storage, found {type(storage).__name__}; pass StorageChoice(backend, options)",
            table=table.name,
        )


def check_given(storage: Storage, table: TableConfig) -> None:
    """Refuses an open storage that is for another table.

    Raises:
        InvalidArgumentError: they differ in more than that `table` does not say whose state it is.
    """
    found = storage.table
    if found.with_state(0) == table.with_state(0) and not found.has_other_state(table):
        return
    differing = [
        f"{each.name} {getattr(found, each.name)!r}, not {getattr(table, each.name)!r}"
        for each in fields(table)
        if each.compare and getattr(found, each.name) != getattr(table, each.name)
    ]
    planned = " (a plan with data_parallel makes it 'replicated')" if table.is_replicated else ""
    raise InvalidArgumentError(
        f"table {table.name!r}: the storage given was opened for a table of "
        f"{'; '.join(differing)}{planned}. Open it for such a table, or declare the one that it was "
        "opened for",
        table=table.name,
    )


def check_placement(storage: Storage, world_size: int) -> None:
    """Refuses a storage that would make replicas differ.

    Raises:
        InvalidArgumentError: it may evict, by times of its own, rows that other replicas keep, or
            all replicas would be the same rows, changed once by each rank.
    """
    if storage.table.is_replicated and world_size > 1 and storage.capabilities.shared:
        raise InvalidArgumentError(
            f"table {storage.table.name!r} is replicated on {world_size} ranks, but its storage "
            "keeps one copy for all of them, which each would change; choose placement 'sharded' (in "
            "a plan: row_wise), or a storage in each rank's own memory",
            table=storage.table.name,
        )
    if storage.table.is_replicated and world_size > 1 and storage.capabilities.evicts:
        raise InvalidArgumentError(
            f"table {storage.table.name!r} is replicated on {world_size} ranks, but its storage "
            "may evict rows, each rank's others; choose placement 'sharded' (in a plan: row_wise), or "
            "a storage that does not evict",
            table=storage.table.name,
        )


def check_column_blocks(
    table: TableConfig, storage: Storage | StorageChoice | None, *, is_given: bool = False
) -> None:
    """Refuses what could make the blocks of a table's columns differ in their keys.

    Args:
        table: whose columns are divided.
        storage: that was declared, or that was opened for one of its blocks.
        is_given: it was declared.

    Raises:
        UnsupportedError: the storage was given open for whole rows, holds a limited number of rows, or
            keeps them where blocks of another plan would be missed; or the admission filter
            counts ids of a rank together.
    """
    if isinstance(table.admission, Bloom):
        found = "its Bloom filter counts all ids of a rank together, and each block has other ranks"
        remedy = "choose admission Frequency"
    elif not isinstance(storage, Storage):
        return
    elif is_given:
        found, remedy = (
            "its storage was given open, for whole rows",
            "declare it by a StorageChoice",
        )
    elif storage.capacity is not None:
        found = (
            f"its storage holds up to {storage.capacity} rows, and blocks could lose different ones"
        )
        remedy = "give it no capacity (no num_embeddings)"
    elif storage.capabilities.persistent or storage.capabilities.shared:
        found = (
            "its storage outlives the process, where another plan would not find the rows of blocks"
        )
        remedy = "choose one in memory, and save snapshots"
    else:
        return
    raise UnsupportedError(
        f"table {table.name!r} is to be divided by columns, of which each block must have the same keys; "
        f"{found}: {remedy}, or a sharding kind that keeps rows whole, as row_wise",
        table=table.name,
    )
