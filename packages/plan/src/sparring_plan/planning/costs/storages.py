"""Storages and stacks for tables: their memory, costs, and hit rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparring import PluginManager, make_plugin_manager
from sparring.contracts import TableConfig
from sparring.errors import CapacityError, PluginError
from sparring_plan.planning.costs.storage_bytes import estimate_bytes
from sparring_plan.planning.costs.unique_keys import Floats
from sparring_plan.planning.inputs import (
    Calibration,
    PlanInputs,
    Stack,
    StorageCosts,
    TableSpec,
    Tier,
)

__all__ = ["StorageModel", "make_storage_models"]

_POINTS_PER_OCTAVE = 4
_MAX_POINTS = 64 * _POINTS_PER_OCTAVE
_FEW_TABLES = 32
"""Maximum number of tables that are estimated one by one."""

Ints = NDArray[np.int64]

_OF_PROCESSES = frozenset({"gpu", "host"})
"""Kinds of memory that are released when the process ends."""


def make_storage_models(
    inputs: PlanInputs, calibration: Calibration, names: Sequence[str]
) -> list[StorageModel]:
    """Returns all storages that any table may use, sorted by name. Each has a mask of the tables
    that may use it.

    Args:
        names: Names of the tables, in the order of all arrays.
    """
    held = inputs.topology.memory
    fitting = [name for name, each in calibration.storages.items() if each.memory in held]
    allowed: dict[str, tuple[tuple[Tier, ...], list[bool]]] = {}
    for index, table in enumerate(names):
        choices = inputs.tables[table].storages or inputs.storages or fitting
        for choice in choices:
            tiers = tuple(choice.tiers) if isinstance(choice, Stack) else (Tier(storage=choice),)
            name = " + ".join(tier.name for tier in tiers)
            allowed.setdefault(name, (tiers, [False] * len(names)))[1][index] = True
    specs = [inputs.tables[name] for name in names]
    memories = sorted(held)
    return [
        StorageModel(name, tiers, calibration, specs, memories, np.asarray(mask))
        for name, (tiers, mask) in sorted(allowed.items())
    ]


@dataclass(frozen=True, slots=True)
class _Layout:
    """Layout of the rows of a shard; a table has one layout per number of column blocks."""

    dim: int
    dtype: str
    state: int


class StorageModel:
    """A storage, or a stack of storages, for the tables of a plan.

    Args:
        name: Name in plans.
        tiers: Storages, hottest first; one for a plain storage.
        calibration: Costs of the storages.
        specs: Tables.
        memories: Kinds of memory of the ranks.
        is_allowed: (tables,): which tables may use it.
    """

    def __init__(
        self,
        name: str,
        tiers: Sequence[Tier],
        calibration: Calibration,
        specs: Sequence[TableSpec],
        memories: Sequence[str],
        is_allowed: NDArray[np.bool_],
    ) -> None:
        self.name, self.tiers, self.is_allowed = name, tiers, is_allowed
        self.costs = [calibration.storages[tier.storage] for tier in tiers]
        self._memories = list(memories)
        self._specs = specs
        self._updates = [_update_costs(costs, specs) for costs in self.costs]
        self._bytes: dict[tuple[_Layout, int], Floats] = {}
        self._full: dict[tuple[int, _Layout], float] = {}
        self._layouts: dict[int, tuple[list[_Layout], Ints]] = {}

    @property
    def is_stack(self) -> bool:
        return len(self.tiers) > 1

    @property
    def supports_blocks(self) -> bool:
        """Whether it supports column blocks; training rejects them in storages that evict rows or are
        persistent."""
        return not self.is_stack and self.costs[0].memory in _OF_PROCESSES

    # -- time ---------------------------------------------------------------------

    def find_seconds(self, keys: Floats, row_bytes: Floats, misses: Sequence[Floats]) -> Floats:
        """Seconds to find `keys` in one call, each with `row_bytes` of an embedding, (tables,).

        Args:
            misses: For each tier except the last, the share of keys that are neither in it nor in a
                tier above it.
        """
        seconds = _find(self.costs[0], keys, row_bytes)
        for costs, share in zip(self.costs[1:], misses, strict=True):
            seconds += _find(costs, keys * share, row_bytes)
        return seconds

    def update_seconds(
        self, keys: Floats, elements: Floats, tables: Ints, misses: Sequence[Floats]
    ) -> Floats:
        """Seconds to update the rows of `keys`, (tables,); each miss of a tier evicts another row."""
        update, per_element = self._updates[0][:, tables] * 1e-9
        seconds = _limited(self.costs[0], keys, update + per_element * elements)
        for index, share in enumerate(misses, 1):
            costs = self.costs[index]
            update, per_element = self._updates[index][:, tables] * 1e-9
            written = update + per_element * elements
            if costs.write_ns is not None:
                written = np.full(len(keys), costs.write_ns * 1e-9)
            seconds += _limited(costs, keys * share, written)
        return seconds

    # -- space --------------------------------------------------------------------

    def tier_rows(self, rows: Floats, tables: Ints, blocks: int) -> list[Floats]:
        """Returns, for each tier except the last, how many of the `rows` of a shard are in it or in
        a tier above it."""
        found: list[Floats] = []
        held = np.zeros(len(rows))
        for index, tier in enumerate(self.tiers[:-1]):
            if tier.share is not None:
                held = held + rows * tier.share
            else:
                layouts, which = self._layouts_of(tables, blocks)
                held = held + np.asarray([self._capacity(index, each) for each in layouts])[which]
            found.append(np.minimum(held, rows))
        return found

    def bytes(self, rows: Floats, tables: Ints, blocks: int) -> Floats:
        """Bytes of a shard with `rows` rows, (tables, memories); infinite if the storage does not
        support that many."""
        layouts, which = self._layouts_of(tables, blocks)
        if len(rows) <= _FEW_TABLES:
            whole = rows.astype(np.int64).tolist()
            each = [
                self._estimated(layouts[at], int(one)) for at, one in zip(which, whole, strict=True)
            ]
            return np.asarray(each).reshape(len(rows), len(self._memories))
        position = np.log2(np.maximum(rows, 1.0)) * _POINTS_PER_OCTAVE
        point = np.floor(position).astype(np.int64)
        # With many tables, interpolate between a few points per layout.
        pairs, inverse = np.unique(which * _MAX_POINTS + point, return_inverse=True)
        ends = np.empty((2, len(pairs), len(self._memories)))
        for at, pair in enumerate(pairs.tolist()):
            layout, begin = layouts[pair // _MAX_POINTS], pair % _MAX_POINTS
            for end in (0, 1):
                logged_tables = int(2.0 ** ((begin + end) / _POINTS_PER_OCTAVE))
                ends[end, at] = self._estimated(layout, logged_tables)
        low, high = ends[:, inverse]
        first, last = (2.0 ** ((point + each) / _POINTS_PER_OCTAVE) for each in (0, 1))
        with np.errstate(invalid="ignore"):
            found: Floats = low + (high - low) * ((rows - first) / (last - first))[:, None]
        for at in np.flatnonzero(~np.isfinite(found).all(axis=1)).tolist():
            found[at] = self._estimated(layouts[which[at]], int(rows[at]))
        return found

    def _layouts_of(self, tables: Ints, blocks: int) -> tuple[list[_Layout], Ints]:
        """Returns the distinct layouts of all tables with `blocks` column blocks, and the layout
        index of each of `tables`."""
        if blocks not in self._layouts:
            of_table = [self._layout(table, blocks) for table in range(len(self._specs))]
            different = list(dict.fromkeys(of_table))
            index = {layout: at for at, layout in enumerate(different)}
            self._layouts[blocks] = different, np.asarray([index[each] for each in of_table])
        layouts, which = self._layouts[blocks]
        return layouts, which[tables]

    def _estimated(self, layout: _Layout, rows: int) -> Floats:
        """Bytes of one storage with `rows` rows, (memories,), cached; infinite if they are not
        supported."""
        key = layout, rows
        if key not in self._bytes:
            told = self._estimate(layout, rows)
            self._bytes[key] = np.full(len(self._memories), np.inf) if told is None else told
        return self._bytes[key]

    def _estimate(self, layout: _Layout, rows: int) -> Floats | None:
        """Bytes of one storage with `rows` rows; None if they are not supported."""
        table = _table(layout)
        told: Mapping[str, int] | None = None
        try:
            if self.is_stack:
                tiers = [
                    {"backend": _backend(tier, costs), "options": costs.options}
                    | ({} if index == len(self.tiers) - 1 else self._budget(index, layout, rows))
                    for index, (tier, costs) in enumerate(zip(self.tiers, self.costs, strict=True))
                ]
                told = estimate_bytes("tiered", table, rows, _plugins(), tiers=tiers)
            else:
                costs = self.costs[0]
                backend = _backend(self.tiers[0], costs)
                told = estimate_bytes(backend, table, rows, _plugins(), **costs.options)
        except CapacityError:
            return None
        except PluginError:
            told = None  # not installed: use the calibration
        if told is None:
            told = self._by_overhead(table, rows)
        elif not self.is_stack and self.costs[0].memory not in told:
            told = {self.costs[0].memory: sum(told.values())}
        return np.asarray([told.get(kind, 0) for kind in self._memories], np.float64)

    def _by_overhead(self, table: TableConfig, rows: int) -> dict[str, int]:
        told: dict[str, int] = {}
        for index, (tier, costs) in enumerate(zip(self.tiers, self.costs, strict=True)):
            total = rows * (costs.key_bytes + table.row_bytes) * costs.overhead
            if index < len(self.tiers) - 1:
                total = min(total, tier.bytes or total * (tier.share or 1.0))
            told[costs.memory] = told.get(costs.memory, 0) + int(total)
        return told

    def _budget(self, index: int, layout: _Layout, rows: int) -> dict[str, int]:
        tier = self.tiers[index]
        if tier.bytes is not None:
            return {"budget_bytes": tier.bytes}
        assert tier.share is not None
        kept = max(1.0, rows * tier.share)
        return {"budget_bytes": max(1 << 16, int(kept * self._bounded_row_bytes(index, layout)))}

    def _capacity(self, index: int, layout: _Layout) -> float:
        """Returns the number of rows in a tier with a budget in bytes."""
        budget = self.tiers[index].bytes
        assert budget is not None
        return budget / self._bounded_row_bytes(index, layout)

    def _bounded_row_bytes(self, index: int, layout: _Layout) -> float:
        key = index, layout
        if key not in self._full:
            costs = self.costs[index]
            backend = _backend(self.tiers[index], costs)
            self._full[key] = _full_row_bytes(backend, _table(layout), costs)
        return self._full[key]

    def _layout(self, table: int, blocks: int) -> _Layout:
        spec = self._specs[table]
        return _Layout(spec.dim // blocks, spec.dtype, spec.state_width // blocks)


_ROWS_OF_A_FULL_TIER = 1 << 20


def _full_row_bytes(backend: str, table: TableConfig, costs: StorageCosts) -> float:
    """Returns the bytes per row of a full storage that evicts rows."""
    rows = _ROWS_OF_A_FULL_TIER
    bounds: dict[str, Any] = {"capacity": rows, "policy": "lru"}
    try:
        known = _plugins().storage(backend).options.model_fields
        if "capacity" in known:
            given = {name: each for name, each in bounds.items() if name in known}
            told = estimate_bytes(backend, table, rows, _plugins(), **{**costs.options, **given})
            if told is not None:
                return sum(each for kind, each in told.items() if kind != "disk") / rows
    except PluginError:
        pass  # not installed: use the calibration
    return (table.row_bytes + costs.key_bytes) * costs.overhead


@cache
def _table(layout: _Layout) -> TableConfig:
    return TableConfig("planned", layout.dim, layout.dtype, state_width=layout.state)


@cache
def _plugins() -> PluginManager:
    return make_plugin_manager()


def _backend(tier: Tier, costs: StorageCosts) -> str:
    return tier.storage if costs.backend is None else costs.backend


def _update_costs(costs: StorageCosts, specs: Sequence[TableSpec]) -> Floats:
    """Nanoseconds per update and per element, (2, tables)."""
    each = [costs.methods.get(spec.method, costs) for spec in specs]
    return np.asarray(
        [[one.update_ns for one in each], [one.update_ns_per_element for one in each]], np.float64
    )


def _find(costs: StorageCosts, keys: Floats, row_bytes: Floats) -> Floats:
    return _limited(costs, keys, (costs.find_ns + costs.find_ns_per_byte * row_bytes) * 1e-9)


def _limited(costs: StorageCosts, keys: Floats, seconds_per_key: Floats) -> Floats:
    """Seconds of one call for `keys`, limited by its rows, its latency, or the operations per second
    of a disk or server."""
    seconds = keys * seconds_per_key
    if costs.iops is not None:
        seconds = np.maximum(seconds, keys / costs.iops)
    # If there are fewer rows than calls, only that share of calls has the latency.
    return np.maximum(seconds, np.minimum(keys, 1.0) * costs.latency_us * 1e-6)
