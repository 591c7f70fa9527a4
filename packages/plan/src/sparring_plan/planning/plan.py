"""A plan: the file that specifies the sharding of each table, and its costs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from sparring import make_plugin_manager
from sparring.adapter import Layouts, SingleRendezvous
from sparring.contracts import ShardingPlan, ShardMap, TableConfig, TableSharding
from sparring.errors import ConfigError, InvalidArgumentError, PluginError
from sparring_cli import Document, DocumentModel, read_document
from sparring_plan.planning.inputs import KINDS, Transfer

__all__ = ["NextBest", "Plan", "TablePlan", "read_plan"]

_DIVIDED_KINDS = frozenset({"column_wise", "grid", "table_column_wise"})
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class _PlannedRanks(SingleRendezvous):
    """The ranks of a plan, none of which is running."""

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self._planned = ShardMap.balanced(world_size)

    def shard_map(self) -> ShardMap:
        return self._planned


class NextBest(DocumentModel):
    """The best other option of a table."""

    kind: str
    columns: int
    transfer: str
    storage: str
    step_ms: float
    """Change of the step time of the whole plan."""
    bytes: int
    """Change of the bytes on the table's busiest rank."""


class TablePlan(DocumentModel):
    """Sharding of a table."""

    kind: str
    ranks: Literal["all"] | list[int]
    """Ranks of the shards, ordered by column block and, within a block, by range of rows."""
    columns: int = Field(gt=0)
    """Number of column blocks."""
    transfer: Transfer
    storage: str
    rows: int = Field(gt=0)
    """Number of rows at the horizon."""
    table_bytes: int = Field(ge=0)
    """Size of all rows, counted once even if the table is replicated."""
    bytes: int = Field(ge=0)
    """Bytes on the busiest rank, including buffers of the exchange."""
    memory: dict[str, int] = Field(default_factory=dict)
    """`bytes` by kind of memory."""
    hit_rates: list[float] | None = None
    """For a stack: share of ids whose row is found in each tier, hottest first."""
    ms: float = Field(ge=0)
    """Time per step of the most used resource on the busiest rank."""
    because: str = ""
    pinned: bool = False
    """If true, `make` keeps kind, ranks, columns, transfer and storage when it reads this plan."""
    made: str | None = None
    """Digest of the fields that `pinned` keeps, as `make` wrote them. If they were edited
    afterwards, the digest differs, and `make` keeps the edited fields."""
    next_best: NextBest | None = None

    @property
    def choice_digest(self) -> str:
        """Digest of kind, ranks, columns, transfer and storage."""
        held = [self.kind, self.ranks, self.columns, self.transfer, self.storage]
        return hashlib.blake2b(json.dumps(held).encode(), digest_size=4).hexdigest()

    @property
    def is_kept(self) -> bool:
        """Whether `make` keeps the table, because it is pinned or was edited."""
        return self.pinned or (self.made is not None and self.made != self.choice_digest)


class Plan(DocumentModel):
    """Plan of all tables, with a description of its inputs, its costs, and the bound for all plans."""

    version: Literal[1]
    inputs: str
    """Digest of all inputs."""
    calibration: str
    solver: str
    ranks: int = Field(gt=0)
    step_ms: float
    """Step time: the maximum, over ranks and resources, of the time for which a rank uses a
    resource. The planner compares it with the bound."""
    simulated_ms: float | None = None
    """Step time with every message simulated; None if there are too many messages."""
    bound_ms: float
    """Lower bound of `step_ms` for all plans of these inputs."""
    gap: float
    """Difference between the step and the bound, relative to the bound."""
    price_per_hour: float
    price_per_billion_samples: float
    memory_full: str | None = None
    """When growing tables fill a rank, and which rank; None if no table grows."""
    tables: dict[str, TablePlan]
    _document: Document | None = PrivateAttr(default=None)

    def location(self, *path: str) -> str:
        """Returns ``file:line:column`` of a key in the file of the plan; without a file, ``the
        plan``.

        Args:
            *path: Keys from the root to the value, for example ``"tables", "item"``.
        """
        return "the plan" if self._document is None else self._document.location(path)

    def make_error(self, table: str, key: str, message: str) -> ConfigError:
        """Returns an error with the location in the file of the plan.

        Args:
            table: Name of the table.
            key: Key of the table with the wrong value.
            message: The value found, the value expected and the fix.
        """
        return ConfigError(f"{self.prefix('tables', table, key)}table {table}: {message}")

    def prefix(self, *path: str) -> str:
        """Returns ``file:line:column: `` of a key in the file of the plan; empty without a file.

        Args:
            *path: Keys from the root to the value, for example ``"tables", "item"``.
        """
        return "" if self._document is None else f"{self.location(*path)}: "

    @property
    def kept(self) -> list[str]:
        """Names of the tables that `make` keeps, because they are pinned or were edited."""
        return [name for name, each in self.tables.items() if each.is_kept]

    def sharding(
        self, world_size: int, tables: Mapping[str, TableConfig] | None = None
    ) -> ShardingPlan:
        """Converts the plan for training: ``StepContainer(plan=…)``, ``DistributedModelParallel``.

        Args:
            world_size: Number of ranks of the job.
            tables: Tables of the job by name; None if unknown.

        Raises:
            InvalidArgumentError: The plan is for another number of ranks.
            ConfigError: The kind of a table is unknown, or does not support its column blocks or
                ranks: ``file:line:column: message``.
        """
        if world_size != self.ranks:
            raise InvalidArgumentError(
                f"{self.prefix('ranks')}the plan is for {self.ranks} ranks, found {world_size}; create "
                f"one whose topology has {world_size} (sparring plan make)",
                planned=self.ranks,
                found=world_size,
            )
        shardings = {}
        for name, each in self.tables.items():
            if each.kind not in KINDS:
                raise self.make_error(
                    name,
                    "kind",
                    f"training does not support {each.kind}; choose one of {', '.join(KINDS)}",
                )
            if each.columns > 1 and each.kind not in _DIVIDED_KINDS:
                raise self.make_error(
                    name,
                    "columns",
                    f"{each.kind} does not split columns, found {each.columns} blocks; set columns to "
                    f"1, or kind to one of {', '.join(sorted(_DIVIDED_KINDS))}",
                )
            num_ranks = self.ranks if each.ranks == "all" else len(each.ranks)
            if each.columns > 1 and num_ranks % each.columns:
                raise self.make_error(
                    name,
                    "columns",
                    f"found {num_ranks} ranks, expected a multiple of {each.columns} blocks of columns; "
                    "use the same number of ranks for each block, or change columns",
                )
            ranks = () if each.ranks == "all" else tuple(each.ranks)
            columns = each.columns if each.columns > 1 else None
            try:
                shardings[name] = TableSharding(
                    each.kind, ranks, transfer=each.transfer, columns=columns
                )
            except InvalidArgumentError as error:
                raise self.make_error(name, "ranks", str(error)) from None
        self._check_layouts(shardings, tables or {})
        return ShardingPlan(shardings)

    def _check_layouts(
        self, shardings: Mapping[str, TableSharding], tables: Mapping[str, TableConfig]
    ) -> None:
        """Creates the layout of each table like training does, so that errors contain its line."""
        manager, location = make_plugin_manager(), _PlannedRanks(self.ranks)
        for name, sharding in shardings.items():
            table = tables.get(name, TableConfig(name, 64 * self.tables[name].columns))
            try:
                Layouts(ShardingPlan({name: sharding}), location, lambda: manager).layout(table)
            except (InvalidArgumentError, PluginError) as error:
                raise self.make_error(
                    name, "ranks" if sharding.ranks else "kind", str(error)
                ) from None

    def _held(self) -> dict[str, Any]:
        held = self.model_dump(exclude_none=True)
        for table in held["tables"].values():
            if not table["pinned"]:
                del table["pinned"]
        return held

    def to_yaml(self) -> str:
        """Returns the content of the file; equal plans give equal bytes."""
        return "\n".join(_lines(self._held(), 0)) + "\n"


def read_plan(path: str | Path) -> Plan:
    """Reads the file of a plan.

    Args:
        path: File that ``sparring plan make`` wrote.

    Raises:
        ConfigError: The file cannot be read, or is not a plan: ``file:line:column: message``.
    """
    document = read_document(path)
    plan = document.as_model(Plan)
    plan._document = document
    return plan


def _lines(value: Mapping[str, Any], depth: int) -> list[str]:
    lines = []
    for key, each in value.items():
        head = f"{'  ' * depth}{_text(key)}:"
        if isinstance(each, dict):
            lines += [head, *_lines(each, depth + 1)]
        elif isinstance(each, list):
            lines.append(f"{head} [{', '.join(map(str, each))}]")
        else:
            word = str(each).lower() if isinstance(each, bool) else repr(each)
            lines.append(f"{head} {_text(each) if isinstance(each, str) else word}")
    return lines


def _text(text: str) -> str:
    """Formats text as YAML, quoted unless it is a plain word."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
