"""A plan: the file that says of each table how it is sharded, and what that costs."""

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
    """The ranks of a plan, of which none is here."""

    def __init__(self, world_size: int) -> None:
        super().__init__()
        self._planned = ShardMap.balanced(world_size)

    def shard_map(self) -> ShardMap:
        return self._planned


class NextBest(DocumentModel):
    """The option that would be taken if the chosen one were not there."""

    kind: str
    columns: int
    transfer: str
    storage: str
    step_ms: float
    """Added to the step of the whole plan."""
    bytes: int
    """Added to the table's busiest rank."""


class TablePlan(DocumentModel):
    """How a table is sharded."""

    kind: str
    ranks: Literal["all"] | list[int]
    """Of its shards: of column blocks in their order, and of the rows of each block."""
    columns: int = Field(gt=0)
    """Column blocks."""
    transfer: Transfer
    storage: str
    rows: int = Field(gt=0)
    """At the horizon."""
    table_bytes: int = Field(ge=0)
    """Of all its rows, one copy."""
    bytes: int = Field(ge=0)
    """Of its busiest rank, buffers of the exchange among them."""
    memory: dict[str, int] = Field(default_factory=dict)
    """`bytes` by the kind of memory."""
    hit_rates: list[float] | None = None
    """Of a stack: the share of ids whose row is found in each tier, the hottest first."""
    ms: float = Field(ge=0)
    """Of its busiest rank and resource, a step."""
    because: str = ""
    pinned: bool = False
    """`make` keeps kind, ranks, columns, transfer and storage, where it reads this plan."""
    made: str | None = None
    """The digest of those as `make` wrote them: where they were edited since, it keeps them too."""
    next_best: NextBest | None = None

    @property
    def choice_digest(self) -> str:
        """Of kind, ranks, columns, transfer and storage."""
        held = [self.kind, self.ranks, self.columns, self.transfer, self.storage]
        return hashlib.blake2b(json.dumps(held).encode(), digest_size=4).hexdigest()

    @property
    def is_kept(self) -> bool:
        """True where `make` keeps it: pinned, or edited by a person."""
        return self.pinned or (self.made is not None and self.made != self.choice_digest)


class Plan(DocumentModel):
    """All tables; the head says from what, how good, and how good a plan could be at most."""

    version: Literal[1]
    inputs: str
    """The digest of all inputs."""
    calibration: str
    solver: str
    ranks: int = Field(gt=0)
    step_ms: float
    """The most that a rank needs of a resource; what the planner compares with the bound."""
    simulated_ms: float | None = None
    """With every message replayed at its time; None where there are too many to do so in a moment."""
    bound_ms: float
    """No plan of these inputs has a shorter step."""
    gap: float
    """How much longer the step is than the bound, as a share of it."""
    price_per_hour: float
    price_per_billion_samples: float
    memory_full: str | None = None
    """When growing tables have filled a rank, and which; None where no table grows."""
    tables: dict[str, TablePlan]
    _document: Document | None = PrivateAttr(default=None)

    def location(self, *path: str) -> str:
        """``file:line:column`` of a key in the file that the plan is from; without one, ``the plan``."""
        return "the plan" if self._document is None else self._document.location(path)

    def make_error(self, table: str, key: str, message: str) -> ConfigError:
        """The error that names a place of the file that the plan is from."""
        return ConfigError(f"{self.prefix('tables', table, key)}table {table}: {message}")

    def prefix(self, *path: str) -> str:
        """``file:line:column: `` of a key in the file that the plan is from; empty without one."""
        return "" if self._document is None else f"{self.location(*path)}: "

    @property
    def kept(self) -> list[str]:
        """Names of the tables that `make` keeps: those that a person has pinned or edited."""
        return [name for name, each in self.tables.items() if each.is_kept]

    def sharding(
        self, world_size: int, tables: Mapping[str, TableConfig] | None = None
    ) -> ShardingPlan:
        """The plan as training takes it: ``StepContainer(plan=…)``, ``DistributedModelParallel``.

        Args:
            world_size: ranks of the job.
            tables: of the job, by name; None: unknown.

        Raises:
            InvalidArgumentError: it was made for another number of ranks.
            ConfigError: a table has an unknown kind, or column blocks or ranks that its kind cannot
                use: ``file:line:column: message``.
        """
        if world_size != self.ranks:
            raise InvalidArgumentError(
                f"{self.prefix('ranks')}the plan is for {self.ranks} ranks, found {world_size}; make "
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
                    f"training does not execute {each.kind}; choose one of {', '.join(KINDS)}",
                )
            if each.columns > 1 and each.kind not in _DIVIDED_KINDS:
                raise self.make_error(
                    name,
                    "columns",
                    f"{each.kind} keeps rows whole, found {each.columns} blocks of columns; set columns "
                    f"to 1, or kind to one of {', '.join(sorted(_DIVIDED_KINDS))}",
                )
            num_ranks = self.ranks if each.ranks == "all" else len(each.ranks)
            if each.columns > 1 and num_ranks % each.columns:
                raise self.make_error(
                    name,
                    "columns",
                    f"{num_ranks} ranks are no multiple of {each.columns} blocks of columns; name as "
                    "many ranks for each block, or change columns",
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
        """Makes the layout of each table, as training will, so that a refusal names its line."""
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
        """The plan as a file: the same plan gives the same bytes."""
        return "\n".join(_lines(self._held(), 0)) + "\n"


def read_plan(path: str | Path) -> Plan:
    """Reads the file of a plan.

    Raises:
        ConfigError: it cannot be read, or is no plan: ``file:line:column: message``.
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
    """Text as YAML, in quotes unless it is a plain word."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)
