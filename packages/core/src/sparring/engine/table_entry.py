"""A declared table, with its storage once rows may be written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from sparring import _native
from sparring.contracts.admission import admission_from
from sparring.contracts.background import Background
from sparring.contracts.kernels import KernelSet
from sparring.contracts.results import Columns
from sparring.contracts.shard_map import KeyOwners, Shard
from sparring.contracts.storage import Storage
from sparring.contracts.storage_optional import SupportsBackground
from sparring.contracts.table import TableConfig
from sparring.engine.checkpoint.write_log import WriteLog
from sparring.errors import InterruptedLoadError, InvalidArgumentError
from sparring.kernels import functions as kernels
from sparring.kernels.admission_filters import make_filter
from sparring.storage.convert import conversion_command
from sparring.storage.load import interrupted_load, read_note, write_note
from sparring.storage.native import capsule_of
from sparring.storage.tiered.counters import TierCounters
from sparring.storage.tiered.options import TieredOptions
from sparring.storage.tiered.tiered_storage import TieredStorage

__all__ = [
    "TableEntry",
    "StorageChoice",
    "check_declaration",
    "check_given",
    "check_placement",
    "storage_device",
]


_PART = "part"


def _part_text(shard: Shard) -> str:
    if shard.is_whole:
        return "all partitions"
    digest = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(shard.partitions, "<i8").tobytes())
    return f"rank {shard.rank} of {shard.world_size} (partitions {digest})"


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
        return StorageChoice(self.backend, _filled_in(self.options, words))

    @property
    def means_own_device(self) -> bool:
        """Whether any device among its options is ``cuda`` without a number."""
        return bool(_placed(self.options, "") != self.options)

    def on_device(self, own: str) -> StorageChoice:
        """The choice with ``device: cuda`` read as this rank's own GPU, also in what it stacks."""
        return StorageChoice(self.backend, _placed(self.options, own))


def storage_device(storage: StorageChoice | Storage | None) -> str:
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


def _placed(value: Any, own: str) -> Any:
    if isinstance(value, Mapping):
        return {
            name: own if name == "device" and each == "cuda" else _placed(each, own)
            for name, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        placed = [_placed(each, own) for each in value]
        return placed if isinstance(value, list) else tuple(placed)
    return value


def _filled_in(value: Any, words: Mapping[str, str]) -> Any:
    """`value` with words replaced in every text within; other braces stay."""
    if isinstance(value, str):
        return re.sub("|".join(map(re.escape, words)), lambda found: words[found[0]], value)
    if isinstance(value, PurePath):
        return type(value)(_filled_in(str(value), words))
    if isinstance(value, Mapping):
        return {name: _filled_in(each, words) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_filled_in(each, words) for each in value]
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
        if getattr(found, each.name) != getattr(table, each.name)
    ]
    raise InvalidArgumentError(
        f"table {table.name!r}: the storage given was opened for a table of "
        f"{'; '.join(differing)}. Open it for the table that is declared, or declare the table "
        "that it was opened for",
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
            "keeps one copy for all of them, which each would change; choose placement 'sharded', "
            "or a storage in each rank's own memory",
            table=storage.table.name,
        )
    if storage.table.is_replicated and world_size > 1 and storage.capabilities.evicts:
        raise InvalidArgumentError(
            f"table {storage.table.name!r} is replicated on {world_size} ranks, but its storage "
            "may evict rows, each rank's others; choose placement 'sharded', or a storage that "
            "does not evict",
            table=storage.table.name,
        )


class TableEntry:
    """A declared table and, once rows may be written, its storage."""

    __slots__ = (
        "admission_filter",
        "background",
        "choice",
        "config",
        "embedding",
        "initial_state",
        "initializer",
        "kernels",
        "num_not_admitted",
        "part",
        "storage",
        "view",
        "was_probed",
        "whole",
        "write_log",
        "written_back",
    )

    def __init__(
        self,
        config: TableConfig,
        choice: StorageChoice | None,
        storage: Storage | None,
        background: Background,
        owners: KeyOwners | None = None,
    ) -> None:
        self.config = config
        self.choice = choice
        self.storage = storage
        self.initial_state: npt.NDArray[Any] | None = None
        self.admission_filter = make_filter(admission_from(config.admission), config)
        self.num_not_admitted = 0
        self.kernels: KernelSet | None = None
        """Kernels of the device on which lookups and steps are to leave rows; None: the host."""
        self.was_probed = False
        """Whether rows that outlived an earlier process were looked for."""
        self.part: str | None = None
        """Text for `note_part` to write, until the note is known to be there."""
        self.initializer = kernels.initializer_spec(config)
        self.view = _native.TableView(config.dtype, self.initializer)
        self.embedding = Columns(0, config.dim)
        self.whole = Columns(0, config.width)
        self.write_log = WriteLog(config.name, owners)
        self.background = background
        self.written_back: SupportsBackground | None = None
        """The storage, where it writes in the background."""
        self.hold(storage)

    def forget_admission(self) -> None:
        """Forgets which ids were seen."""
        self.admission_filter = make_filter(admission_from(self.config.admission), self.config)

    def check_same_storage(self, storage: StorageChoice | Storage | None) -> None:
        """Refuses a second declaration that would put the rows elsewhere; None says nothing.

        Raises:
            InvalidArgumentError: `storage` is not what the table was declared with.
        """
        declared = self.storage if self.choice is None else self.choice
        if storage is None or storage is declared or storage == declared:
            return
        raise InvalidArgumentError(
            f"table {self.config.name!r} is declared already with {declared}, found {storage}; "
            "declare it once, or leave the storage out the second time",
            table=self.config.name,
        )

    def check_state(self, config: TableConfig) -> None:
        """Refuses rows of `config` where rows with another optimizer's state are stored.

        Raises:
            InvalidArgumentError: naming what to call or to run.
        """
        storage, method = self.storage, config.state_method or "the optimizer"
        if storage is None:
            return
        # Of a storage that was given without a method, the first optimizer says whose it is.
        found = self.config if self.choice is None else storage.table
        if not found.has_other_state(config):
            return
        if self.choice is not None and not (storage.size and found.state_width):
            return
        if self.choice is None:
            whose = f", {config.state_method!r}" if config.state_method else ""
            remedy = (
                f"give one that was opened for TableConfig.with_state({config.state_width}{whose})"
            )
        elif storage.capabilities.persistent:
            command = conversion_command(self.choice.backend, self.choice.options, found, config)
            remedy = f"keep the embeddings and start their state again in another place: {command}"
        else:
            remedy = (
                f"call StepContainer.drop_state({config.name!r}) first: embeddings stay, and their "
                "state starts again"
            )
        given = "the storage given" if self.choice is None else "its storage"
        raise InvalidArgumentError(
            f"table {config.name!r}: {given} holds {storage.size} rows with {found.state_width} "
            f"elements of state of {found.state_method or 'an unknown optimizer'}, {method} needs "
            f"{config.state_width} of its own; use the same kind of optimizer, or {remedy}",
            table=config.name,
        )

    def expect_part(self, shard: Shard) -> None:
        """Says which rows this rank keeps, of a storage that was just opened."""
        assert self.storage is not None
        capabilities = self.storage.capabilities
        if capabilities.notes and not capabilities.shared:
            self.part = _part_text(shard)

    def note_part(self) -> None:
        """Writes a note into the storage, which is empty yet, of which rows it will hold."""
        if self.storage is not None and self.part is not None:
            write_note(self.storage, _PART, self.part)
            self.part = None

    def check_whole(self) -> None:
        """Refuses rows of a load that did not end, and rows that another rank kept.

        Raises:
            InterruptedLoadError: naming what was loaded.
            InvalidArgumentError: naming whose rows they are.
        """
        if self.storage is None:
            return
        if self.part is not None:
            self._check_part()
        source = interrupted_load(self.storage)
        if source is None:
            if self.view.is_cut_short:  # it was cleared since
                self.view.end_load(is_whole=True)
            return
        if not self.view.is_cut_short:  # another process began it
            self.view.end_load(is_whole=False)
        name = self.config.name
        raise InterruptedLoadError(
            f"table {name!r}: a load of {source} was cut short, and its storage holds a part of "
            "the rows. Load a snapshot again (sparring train --resume, or container.load), or "
            "begin without rows: open the storage with sparring.open_storage and call clear()",
            table=name,
            source=source,
        )

    def end_load(self) -> None:
        """Native lookups, which wait since `view.begin_load`, go on, or are refused as by
        `check_whole`."""
        storage = self.storage
        try:
            is_whole = storage is None or storage.is_closed or interrupted_load(storage) is None
        except Exception:
            is_whole = False  # it cannot say now; `check_whole` asks again
        self.view.end_load(is_whole)

    def _check_part(self) -> None:
        assert self.storage is not None
        found = read_note(self.storage, _PART)
        if found is not None and found != self.part and self.storage.size:
            raise InvalidArgumentError(
                f"table {self.config.name!r}: its storage holds {self.storage.size} rows of "
                f"{found}, where {self.part} should be; rows of other partitions would be missing. "
                "Give each number of ranks a place of its own ({world_size} in the storage's "
                "options) and bring the rows over by a snapshot: save with as many ranks as there "
                "were, then load it (sparring train --resume)",
                table=self.config.name,
            )
        if found == self.part:
            self.part = None
        else:
            self.note_part()

    def tier_counters(self) -> list[TierCounters]:
        """Counters of each tier, hottest first; none where the rows are in no stack."""
        if isinstance(self.storage, TieredStorage):
            return self.storage.tier_counters()
        if self.storage is None and self.choice is not None and self.choice.backend == "tiered":
            return [TierCounters(tier.backend) for tier in self.tiers()]
        return []

    def tiers(self) -> list[StorageChoice]:
        """The storages that were chosen: those of a stack, hottest first; nothing where the storage
        was given open."""
        if self.choice is None:
            return []
        if self.choice.backend != "tiered":
            return [self.choice]
        options = TieredOptions.model_validate(dict(self.choice.options))
        return [StorageChoice(tier.backend, tier.options) for tier in options.tiers]

    def hold(self, storage: Storage | None) -> None:
        """Reads from `storage` from now on, natively too; None: no key has a row."""
        if self.storage is not None and storage is not self.storage:
            self.storage.watcher = None
            self.write_log.clearing()
        self.storage = storage
        self.written_back = storage if isinstance(storage, SupportsBackground) else None
        if self.written_back is not None:
            self.written_back.use_background(self.background)
        if storage is not None:
            storage.watcher = self.write_log
        if storage is None:
            self.view.detach()
        else:
            self.view.attach(capsule_of(storage), storage.table.state_width)
