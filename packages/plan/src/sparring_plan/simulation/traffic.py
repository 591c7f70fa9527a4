"""Keys, bytes and work of one step of a plan, for every rank.

All ranks send equal requests. Each owner is asked for its share of the distinct keys of a batch, or of
its ids if owners pool. Ranks differ only in the shares that they own. Message sizes and chunks come from
the exchange.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sparring import ExchangeOptions
from sparring.adapter import MessageSizes
from sparring.contracts import TableConfig
from sparring_plan.planning.costs.costs import Options, Shape
from sparring_plan.planning.costs.key_bins import key_bins
from sparring_plan.planning.costs.storages import make_storage_models
from sparring_plan.planning.costs.tier_hits import TierHits
from sparring_plan.planning.inputs import Calibration, PlanInputs, TableSpec
from sparring_plan.planning.search.placement import Placement
from sparring_plan.simulation.model import Compute
from sparring_plan.simulation.pooling import PooledTable, split_pull_parts, split_push_parts
from sparring_plan.simulation.ring import Parts, split_row_parts

__all__ = ["Exchange", "PlanTraffic", "Sent", "compute_traffic"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_GRADIENT_BYTES = 4


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes and messages of a step, ``(ranks,)`` each, to all ranks."""

    headers: Ints
    keys: Ints
    rows: Ints
    gradients: Ints
    far: Ints
    """Bytes of all kinds to ranks of other nodes."""
    messages: Ints

    @property
    def total(self) -> Ints:
        """Bytes of all kinds, (ranks,)."""
        total: Ints = self.headers + self.keys + self.rows + self.gradients
        return total


@dataclass(frozen=True, slots=True)
class Exchange:
    """Streams of one type: rows of keys, or pools of bags.

    Args:
        pull, push: Per owner, the parts of the stream from any rank to it.
        pull_header_bytes, push_header_bytes: Bytes from one rank to another before each.
    """

    pull: Sequence[Parts]
    push: Sequence[Parts]
    pull_header_bytes: int
    push_header_bytes: int


@dataclass(frozen=True, eq=False)
class PlanTraffic:
    """A step of a plan.

    Args:
        num_keys: Distinct keys of a rank's batch, over all tables.
        exchanges: The exchange of rows, with empty streams if no table transfers rows; and the
            exchange of pools, if owners pool.
        replica_bytes: Gradients of the replicated tables, from one rank to another.
        commit_header_bytes: Bytes from one rank to another before rows are written.
        local_seconds: Time per rank after rows have arrived: to pool them, to find replicated rows,
            and for dense layers if the calibration has them.
        adding_seconds: Time per rank to add the gradients of replicated tables.
        update_seconds: ``(ranks,)``: time to update rows.
        is_alike: Whether all ranks own equal shares.
    """

    num_keys: int
    num_tables: int
    ranks_per_node: int
    exchanges: Sequence[Exchange]
    replica_bytes: int
    commit_header_bytes: int
    local_seconds: float
    adding_seconds: float
    update_seconds: Floats
    chunks_in_flight: int
    is_alike: bool

    @property
    def num_ranks(self) -> int:
        return len(self.update_seconds)

    @property
    def num_messages(self) -> int:
        """Number of messages that all ranks send."""
        return int(self.sent.messages.sum())

    @cached_property
    def sent(self) -> Sent:
        """Bytes and messages that each rank sends per step."""
        ranks, within = self.num_ranks, self.ranks_per_node
        others = ranks - 1
        keys, rows, gradients, asked, told = np.zeros((5, ranks), np.int64)
        headers, rounds = self.commit_header_bytes, 1
        for each in self.exchanges:
            keys += _sums(each.pull, "key_bytes")
            rows += _sums(each.pull, "row_bytes")
            gradients += _sums(each.push, "gradient_bytes")
            asked += [len(parts) for parts in each.pull]
            told += [len(parts) for parts in each.push]
            headers += each.push_header_bytes + each.pull_header_bytes
            rounds += 1 + (each.pull_header_bytes > 0)
        there = keys + gradients
        return Sent(
            headers=np.full(ranks, others * headers, np.int64),
            keys=keys.sum() - keys,
            rows=others * rows,
            gradients=gradients.sum() - gradients + others * self.replica_bytes,
            far=there.sum()
            - _sum_of_nodes(there, within)
            + (ranks - within) * (rows + self.replica_bytes + headers),
            messages=others * (rounds + (self.replica_bytes > 0) + asked)
            + (asked + told).sum()
            - (asked + told),
        )


@dataclass(slots=True)
class _Collected:
    """The tables of a plan, grouped by transfer."""

    asked: list[Ints] = field(default_factory=list)
    compute: list[Compute] = field(default_factory=list)
    asked_tables: list[TableConfig] = field(default_factory=list)
    pooled: list[PooledTable] = field(default_factory=list)
    replicated: list[int] = field(default_factory=list)
    replicated_tables: list[TableConfig] = field(default_factory=list)


class _RowCosts:
    """Times per row in the storages of a plan's tables, as in the planner."""

    def __init__(self, placement: Placement, inputs: PlanInputs, calibration: Calibration) -> None:
        options = placement.options
        specs = [inputs.tables[name] for name in options.table_names]
        self.specs = specs
        bins = key_bins(specs)
        self.ids = np.asarray([spec.ids_per_sample for spec in specs]) * inputs.samples
        ids_of_all = self.ids * options.num_ranks
        self.unique, self.unique_of_all = bins.unique_keys(self.ids), bins.unique_keys(ids_of_all)
        found = make_storage_models(inputs, calibration, options.table_names)
        self._models = {each.name: each for each in found}
        self._storages = [options.storages[each] for each in options.storage[placement.option]]
        # Hit rates are only needed for stacks.
        is_stack = any(self._models[each].is_stack for each in self._storages)
        self._hits = TierHits(bins, self.ids, ids_of_all) if is_stack else None

    def of(self, table: int, shape: Shape) -> tuple[float, float]:
        """Returns the seconds to find a key of a rank's batch, and to update a key of all batches."""
        spec, storage = self.specs[table], self._models[self._storages[table]]
        blocks = shape.num_columns
        share = 1.0 if shape.kind == "data_parallel" else shape.row_share
        which, width = np.asarray([table]), np.asarray([spec.dim / blocks])
        misses: list[Floats] = []
        misses_of_all: list[Floats] = []
        if self._hits is not None:
            held = np.asarray([spec.expected_rows * share])
            tiers = [rows / share for rows in storage.tier_rows(held, which, blocks)]
            misses = [self._hits.key_misses(which, rows) for rows in tiers]
            misses_of_all = [self._hits.key_misses_of_all(which, rows) for rows in tiers]
        asked = np.asarray([max(float(self.unique[table]) * share, 1e-9)])
        updated = np.asarray([max(float(self.unique_of_all[table]) * share, 1e-9)])
        elements = width + spec.state_width / blocks
        find = storage.find_seconds(asked, width * spec.element_bytes, misses) / asked
        update = storage.update_seconds(updated, elements, which, misses_of_all) / updated
        return float(find[0]), float(update[0])


def compute_traffic(
    placement: Placement, inputs: PlanInputs, calibration: Calibration
) -> PlanTraffic:
    """Computes the traffic of one step of a plan."""
    options, exchange = placement.options, calibration.exchange
    ranks, costs = options.num_ranks, _RowCosts(placement, inputs, calibration)
    found, update = _Collected(), np.zeros(ranks)
    steps, has_blocks = exchange.steps, options.has_blocks(placement.option)
    local = 0.0 if calibration.machine is None else calibration.machine.dense_ms * 1e-3
    local += steps.seconds(len(costs.specs))
    adding, add = 0.0, exchange.add_ns * 1e-9
    for table, spec in enumerate(costs.specs):
        shape = options.shape_of(int(placement.option[table]))
        width, ids = spec.dim // shape.num_columns, float(costs.ids[table])
        find, write = costs.of(table, shape)
        pool = exchange.pool_ns_per_byte * 1e-9 * width * spec.element_bytes
        keys, keys_of_all = float(costs.unique[table]), float(costs.unique_of_all[table])
        shares = _shares(options, placement, table, shape)
        if has_blocks:
            # If one table has blocks, no table is updated in place.
            update += shares * keys * ranks * steps.blocks.seconds(width * _GRADIENT_BYTES)
        if shape.transfer == "rows":
            local += ids * steps.ids.seconds(spec.dim * spec.element_bytes)
        if shape.kind == "data_parallel":
            found.replicated.append(round(keys))
            found.replicated_tables.append(_columns(spec, spec.dim))
            local += ids * pool + keys * find
            adding += keys * ranks * (add + steps.replicas.seconds(spec.dim * _GRADIENT_BYTES))
            update += keys_of_all * write
            continue
        update += shares * keys_of_all * write
        if shape.transfer == "pooled":
            pooled = PooledTable(
                spec, inputs.samples, shares, keys, _sizes([_columns(spec, width)]).gradient_row_bytes(0),
                find_seconds=find, pool_seconds=pool, add_seconds=add,
            )  # fmt: skip
            found.pooled.append(pooled)
            bags = np.zeros(ranks)
            for owner in np.flatnonzero(shares):
                bags[owner] = pooled.num_bags(int(owner))
            half = steps.pooling_seconds(bags, ids * shares, width * _GRADIENT_BYTES) / 2
            half *= shares > 0
            local += half.sum()
            update += half * ranks
            continue
        local += ids * pool * shape.num_columns
        local += keys * shape.num_columns * steps.rows.seconds(width * spec.element_bytes)
        found.asked.append(_counts(shares, shape, round(keys)))
        found.compute.append(Compute(find, add, 0.0))
        found.asked_tables.append(_columns(spec, width))
    ways = bool(found.asked) + bool(found.replicated) + bool(found.pooled)
    local += max(ways - 1, 0) * steps.way_us * 1e-6
    if found.pooled:
        local += len(costs.specs) * steps.separate_us * 1e-6
    return PlanTraffic(
        num_keys=round(float(costs.unique.sum())),
        num_tables=len(costs.specs),
        ranks_per_node=options.ranks_per_node,
        exchanges=_exchanges(found, ranks, exchange.chunk_rows),
        replica_bytes=_one_message(found.replicated, found.replicated_tables),
        commit_header_bytes=MessageSizes.header_bytes(len(costs.specs)),
        local_seconds=local,
        adding_seconds=adding,
        update_seconds=update,
        chunks_in_flight=exchange.chunks_in_flight,
        is_alike=not placement.owns.any(),
    )


def _exchanges(found: _Collected, ranks: int, chunk_rows: int) -> list[Exchange]:
    exchanges = []
    num_rows, num_replicated = len(found.asked), len(found.replicated)
    if num_rows or num_replicated or found.pooled:
        # Needed even if owners pool all tables, because their sums use the push of rows.
        asked = np.stack(found.asked, axis=1) if num_rows else np.zeros((ranks, 0), np.int64)
        sizes = _sizes(found.asked_tables)
        known: dict[bytes, Parts] = {}
        parts = []
        for counts in asked:
            key = counts.tobytes()
            if key not in known:
                known[key] = split_row_parts(counts, sizes, found.compute, chunk_rows)
            parts.append(known[key])
        exchanges.append(
            Exchange(
                parts,
                parts,
                MessageSizes.header_bytes(num_rows) if num_rows else 0,
                MessageSizes.header_bytes(num_rows + num_replicated + len(found.pooled)),
            )
        )
    if found.pooled:
        count = len(found.pooled)
        exchanges.append(
            Exchange(
                [split_pull_parts(found.pooled, owner, chunk_rows) for owner in range(ranks)],
                [split_push_parts(found.pooled, owner, chunk_rows) for owner in range(ranks)],
                MessageSizes.header_bytes(2 * count + 1),
                MessageSizes.header_bytes(2 * count),
            )
        )
    return exchanges


def _sizes(tables: Sequence[TableConfig]) -> MessageSizes:
    return MessageSizes(tables, ExchangeOptions())


def _one_message(counts: Sequence[int], tables: Sequence[TableConfig]) -> int:
    chunks = _sizes(tables).chunks(np.asarray(counts, np.int64))
    return sum(chunk.gradient_bytes for chunk in chunks)


def _sums(streams: Sequence[Parts], name: str) -> Ints:
    return np.asarray([sum(getattr(part, name) for part in parts) for parts in streams], np.int64)


def _sum_of_nodes(values: Ints, within: int) -> Ints:
    """Sum over the ranks of each rank's node, (ranks,)."""
    sums: Ints = np.repeat(values.reshape(-1, within).sum(axis=1), within)
    return sums


def _columns(spec: TableSpec, width: int) -> TableConfig:
    """Returns the declaration of a column block of a table, as it is exchanged."""
    return TableConfig("columns", width, spec.dtype)


def _shares(options: Options, placement: Placement, table: int, shape: Shape) -> Floats:
    """Share of a table's rows in one column block that each rank owns, (ranks,)."""
    ranks = placement.ranks(table)
    shares = np.zeros(options.num_ranks)
    shares[ranks if len(ranks) else slice(None)] = shape.row_share
    return shares


def _counts(shares: Floats, shape: Shape, keys: int) -> Ints:
    """Number of keys that a rank requests from each owner, (ranks,), as even as possible."""
    owners = np.flatnonzero(shares)
    parts = len(owners) // shape.num_columns
    ends = np.arange(parts + 1, dtype=np.int64) * keys // parts
    counts = np.zeros(len(shares), np.int64)
    # All keys are requested from each column block.
    counts[owners] = np.tile(np.diff(ends), shape.num_columns)
    return counts
