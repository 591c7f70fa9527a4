"""Choice of the backend that stores a table's rows, and checks of declarations."""

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
    """Backend that stores a table's rows, and its options.

    In string options, ``{rank}``, ``{world_size}`` and ``{table}`` are replaced by their values, so
    that each rank gets a separate location: ``path: rows/{rank}-of-{world_size}``.

    Args:
        backend: name of the backend.
        options: options of the backend.

    Examples:
        >>> from sparring import StorageChoice
        >>> StorageChoice("rocksdb", {"path": "rows/{rank}"}).on(1, 4, "user").options
        {'path': 'rows/1'}
    """

    backend: str = "hkv"
    options: Mapping[str, Any] = field(default_factory=dict)

    def on(self, rank: int, world_size: int, table: str) -> StorageChoice:
        """Returns the choice with the placeholders of its options replaced.

        Args:
            rank: value of ``{rank}``.
            world_size: value of ``{world_size}``.
            table: value of ``{table}``, the name of the table.
        """
        words = {"{rank}": str(rank), "{world_size}": str(world_size), "{table}": table}
        return StorageChoice(self.backend, _fill_in(self.options, words))

    @property
    def uses_own_device(self) -> bool:
        """Whether any device in the options is ``cuda`` without a number."""
        return bool(_replace_device(self.options, "") != self.options)

    def on_device(self, own: str) -> StorageChoice:
        """Returns the choice with ``device: cuda`` replaced, also in the tiers of a stack.

        Args:
            own: the GPU of this rank, such as ``cuda:1``.
        """
        return StorageChoice(self.backend, _replace_device(self.options, own))


def find_storage_device(storage: StorageChoice | Storage | None) -> str:
    """Returns the device of a table's rows: ``cpu``, or the device that the storage supports besides it.

    For a choice, this is the option ``device``; for a stack, that of its first tier. For an open
    storage, it is the first device of its capabilities other than ``cpu``.

    Args:
        storage: choice or storage of the declaration; None: the default.
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
    """Returns `value` with words replaced in every string within; other braces are kept."""
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
    """Checks the arguments of `StepContainer.declare`.

    Raises:
        InvalidArgumentError: `table` is not a `TableConfig`, or `storage` is neither a choice nor a
            storage.
        UnsupportedError: rows of int8 would be on a device.
    """
    if not isinstance(table, TableConfig):
        raise InvalidArgumentError(
            f"declare: table must be a sparring.TableConfig, found {type(table).__name__}; "
            "create one with sparring.TableConfig(name, dim)"
        )
    if storage is not None and not isinstance(storage, (Storage, StorageChoice)):
        raise InvalidArgumentError(
            f"declare of table {table.name!r}: storage must be a StorageChoice or an open "
            f"Storage, found {type(storage).__name__}; pass StorageChoice(backend, options)",
            table=table.name,
        )
    device = find_storage_device(storage)
    if table.dtype == "int8" and device != "cpu":
        raise UnsupportedError(
            f"declare table {table.name!r}: rows of int8 are in host memory, found a storage on "
            f"{device!r}; choose device 'cpu', or declare the table as bfloat16",
            table=table.name,
        )


def check_given(storage: Storage, table: TableConfig) -> None:
    """Checks that an open storage was opened for `table`.

    Raises:
        InvalidArgumentError: the tables differ. An empty `state_method`, which means that the
            optimizer is unknown, fits every optimizer.
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
        f"declare: the storage passed for table {table.name!r} was opened for another table: "
        f"{'; '.join(differing)}{planned}. Open it for this table, or declare the table that it was "
        "opened for",
        table=table.name,
    )


def check_placement(storage: Storage, world_size: int) -> None:
    """Rejects a storage with which the replicas of a table would diverge.

    Raises:
        InvalidArgumentError: the table is replicated, and the storage evicts rows or is shared by
            ranks.
    """
    if storage.table.is_replicated and world_size > 1 and storage.capabilities.shared:
        raise InvalidArgumentError(
            f"table {storage.table.name!r} is replicated on {world_size} ranks, but its storage "
            "has one copy for all of them, which each rank would update; choose placement 'sharded' (in "
            "a plan: row_wise), or a storage in the memory of each rank",
            table=storage.table.name,
        )
    if storage.table.is_replicated and world_size > 1 and storage.capabilities.evicts:
        raise InvalidArgumentError(
            f"table {storage.table.name!r} is replicated on {world_size} ranks, but its storage "
            "may evict different rows on each rank; choose placement 'sharded' (in a plan: row_wise), or "
            "a storage that does not evict",
            table=storage.table.name,
        )


def check_column_blocks(
    table: TableConfig, storage: Storage | StorageChoice | None, *, is_given: bool = False
) -> None:
    """Rejects settings with which the blocks of a table's columns could have different keys.

    Args:
        table: table that is sharded by columns.
        storage: storage or choice of the declaration, or the storage that was opened for one block.
        is_given: True if `storage` is from the declaration, False if it was opened for a block.

    Raises:
        UnsupportedError: the storage was already open, has a capacity, or outlives the process; or
            the admission filter counts all ids of a rank together.
    """
    if isinstance(table.admission, Bloom):
        found = "its Bloom filter counts all ids of a rank, but the blocks are on different ranks"
        remedy = "choose admission Frequency"
    elif not isinstance(storage, Storage):
        return
    elif is_given:
        found, remedy = (
            "its storage was already open, for whole rows",
            "declare it with a StorageChoice",
        )
    elif storage.capacity is not None:
        found = (
            f"its storage has a capacity of {storage.capacity} rows, and each block could evict other "
            "keys"
        )
        remedy = "omit its capacity (num_embeddings)"
    elif storage.capabilities.persistent or storage.capabilities.shared:
        found = (
            "its storage outlives the process, and a run with another plan would not find its rows"
        )
        remedy = "choose a storage in memory, and save snapshots"
    else:
        return
    raise UnsupportedError(
        f"table {table.name!r} is sharded by columns, and all blocks must have the same keys, but "
        f"{found}: {remedy}, or choose a sharding kind that does not split rows, such as row_wise",
        table=table.name,
    )
