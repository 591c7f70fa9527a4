"""Costs of each option of each table, as arrays of options by resources.

An option is a kind of sharding with its number of column blocks, the nodes it spans, the transfer of
rows, and their storage. Its costs have two parts: `base` applies to every rank, because each rank
requests rows of the table; `shard` applies to each rank that owns a shard. The sums of both over all
tables are a rank's load, in seconds for each resource of `RESOURCES`, and its bytes for each kind of
memory. Requesting ranks are charged the average over all ranks, regardless of which of them share a
node with an owner.

With W ranks, n ids per rank and batch, u = U(n) distinct keys per rank and v = U(W·n) of all ranks,
rows of D elements with s bytes, and gradients of 4 bytes per element, a shard with the share q of the
rows and one of C column blocks transfers, for each requesting rank: u·q keys of 8 bytes to the owner,
u·q rows of D·s/C + 1 bytes back, u·q keys and gradients to the owner. If owners pool, an owner
receives n·q ids instead. For each bag that has one of these ids, it also receives a length and a
gradient, and returns a pooled row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sparring.errors import CapacityError, ConfigError, SparringError
from sparring_plan.planning.costs.key_bins import key_bins
from sparring_plan.planning.costs.storages import StorageModel, make_storage_models
from sparring_plan.planning.costs.tier_hits import TierHits
from sparring_plan.planning.inputs import Calibration, PlanInputs, Topology, Transfer

__all__ = ["RESOURCES", "Options", "Shape", "Span", "compute_option_costs"]

RESOURCES = ("compute", "far_out", "far_in", "near_out", "near_in", "messages")
"""Each resource is used for some seconds per step: the rank's threads, its share of the node's link
to other nodes, its link within the node, and the time that messages cost the thread that drives the
exchange."""

_KEY_BYTES, _STATUS_BYTES, _GRADIENT_BYTES, _WEIGHT_BYTES, _LENGTH_BYTES = 8, 1, 4, 4, 4
_STREAMS = 3
"""Keys, rows and gradients. Tables share the chunks of a stream; the last chunk is part of `fixed`."""
_MIN_COLUMNS = 8
MAX_TIERS = 4
_COLUMN_BLOCKS = (2, 4, 8, 16, 32)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Span(IntEnum):
    """Possible ranks of the shards of an option."""

    ALL = 0
    """All ranks, so there is nothing to choose."""
    RANKS = 1
    """As many ranks as there are shards."""
    NODES = 2
    """All ranks of `num_places` nodes."""
    WITHIN = 3
    """As many ranks of one node as there are shards."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An option without its table and storage."""

    kind: str
    span: Span
    num_places: int
    """Number of ranks, or of nodes for `Span.NODES`."""
    num_shards: int
    num_columns: int
    transfer: Transfer

    @property
    def row_share(self) -> float:
        """Share of the rows in one shard."""
        return self.num_columns / self.num_shards


@dataclass(frozen=True, slots=True)
class Options:
    """Options of all tables, grouped by table.

    Args:
        table_names: Sorted names.
        start: (tables + 1,): first option of each table.
        table: (options,): index of the table.
        shape: (options,): index into `shapes`.
        storage: (options,): index into `storages`.
        base: (options, resources): seconds on every rank.
        shard: (options, resources): seconds on a rank that owns a shard.
        base_memory: (options, memories): bytes on every rank.
        shard_memory: (options, memories): bytes on a rank that owns a shard.
        fixed: (resources,): seconds on every rank, for any plan.
        capacity: (memories,): bytes per rank, without the chunks of the exchange, which tables share.
        hits: (options, tiers): share of ids that each tier of the option's stack serves; NaN for
            tiers that it does not have.
        held: (ranks, resources): seconds of tables that are already placed.
        held_memory: (ranks, memories): bytes of these tables.
    """

    table_names: Sequence[str]
    shapes: Sequence[Shape]
    storages: Sequence[str]
    memories: Sequence[str]
    ranks_per_node: int
    num_ranks: int
    start: Ints
    table: Ints
    shape: Ints
    storage: Ints
    base: Floats
    shard: Floats
    base_memory: Floats
    shard_memory: Floats
    fixed: Floats
    capacity: Floats
    hits: Floats
    held: Floats | None = None
    held_memory: Floats | None = None

    def __len__(self) -> int:
        return len(self.table)

    def of(self, table: int) -> range:
        return range(int(self.start[table]), int(self.start[table + 1]))

    def shape_of(self, option: int) -> Shape:
        return self.shapes[int(self.shape[option])]

    def average_held(self) -> Floats:
        """Seconds of tables that are already placed, on an average rank, (resources,)."""
        return np.zeros(self.base.shape[1]) if self.held is None else self.held.mean(axis=0)

    def average_held_memory(self) -> Floats:
        """Bytes of tables that are already placed, on an average rank, (memories,)."""
        if self.held_memory is None:
            return np.zeros(len(self.capacity))
        average: Floats = self.held_memory.mean(axis=0)
        return average

    def total(self) -> Floats:
        """Seconds, summed over all ranks, (options, resources)."""
        return self.base * self.num_ranks + self.shard * self.num_shards()[:, None]

    def total_memory(self) -> Floats:
        """Bytes, summed over all ranks, (options, memories)."""
        return self.base_memory * self.num_ranks + self.shard_memory * self.num_shards()[:, None]

    def has_blocks(self, option: Ints) -> bool:
        """Returns whether any of these options splits columns."""
        return any(self.shapes[each].num_columns > 1 for each in set(self.shape[option].tolist()))

    def num_shards(self) -> Floats:
        """Number of shards that are on separate ranks, (options,); shards on every rank are part of
        `base`."""
        counts = [0 if each.span is Span.ALL else each.num_shards for each in self.shapes]
        return np.asarray(counts, np.float64)[self.shape]


def compute_option_costs(inputs: PlanInputs, calibration: Calibration) -> Options:
    """Computes the costs of all options that `inputs` allows.

    Raises:
        ConfigError: The kinds, transfers and storages leave a table without an option.
        CapacityError: No storage supports the number of rows of a table.
    """
    topology = inputs.topology
    names = sorted(inputs.tables)
    memories = sorted(topology.memory)
    storages = make_storage_models(inputs, calibration, names)
    shapes = list(_shapes(inputs))
    model = _CostModel(inputs, calibration, names)
    parts = []
    for shape_index, shape in enumerate(shapes):
        offered_shape = model.offers(shape)
        for storage_index, storage in enumerate(storages):
            offered = np.flatnonzero(offered_shape & storage.is_allowed)
            if not len(offered) or (shape.num_columns > 1 and not storage.supports_blocks):
                continue
            part = model.costs(shape, storage, offered)
            # Skip tables with more rows than the storage supports.
            found = np.flatnonzero(np.isfinite(part.memory).all(axis=(0, 2)))
            indexes = np.full((2, len(found)), [[shape_index], [storage_index]])
            parts.append(
                (part.tables[found], indexes, part.base[found], part.shard[found],
                 part.memory[:, found], part.hits[found])
            )  # fmt: skip
    table = np.concatenate([np.zeros(0, np.int64), *(part[0] for part in parts)])
    order = np.argsort(table, kind="stable")
    without = np.setdiff1d(np.arange(len(names)), table)
    if len(without):
        raise _no_option(inputs, names, int(without[0]), model, storages)
    indexes = np.concatenate([part[1] for part in parts], axis=1)[:, order]
    memory = np.concatenate([part[4] for part in parts], axis=1)[:, order]
    table = table[order]
    links = [topology.near.latency_us] * (topology.num_ranks > 1)
    links += [topology.far.latency_us] * (topology.nodes > 1)
    # Six messages, each of which waits for the previous one: three headers, keys, rows, gradients.
    fixed = np.full(len(RESOURCES), 6e-6 * max(links, default=0))
    fixed += model.dense_seconds + calibration.exchange.steps.seconds(len(names))
    # With each other rank, this rank sends and receives each of the six, as requester and as owner.
    messages = 12 * (topology.num_ranks - 1) * topology.message_us * 1e-6
    fixed[RESOURCES.index("messages")] += messages
    if topology.has_one_core:
        fixed[RESOURCES.index("compute")] += messages
    capacity = np.asarray([topology.memory[each] for each in memories], np.float64)
    if calibration.exchange.memory in memories:
        widest = max(spec.dim * spec.element_bytes for spec in inputs.tables.values())
        chunks = 2 * calibration.exchange.chunks_in_flight * calibration.exchange.chunk_rows
        index = memories.index(calibration.exchange.memory)
        capacity[index] -= chunks * (widest + _KEY_BYTES + _STATUS_BYTES)
        capacity = np.maximum(capacity, 1.0)
    return Options(
        names,
        shapes,
        [storage.name for storage in storages],
        memories,
        topology.ranks_per_node,
        topology.num_ranks,
        np.searchsorted(table, np.arange(len(names) + 1)),
        table,
        indexes[0],
        indexes[1],
        np.concatenate([part[2] for part in parts])[order],
        np.concatenate([part[3] for part in parts])[order],
        memory[0],
        memory[1],
        fixed,
        capacity,
        np.concatenate([part[5] for part in parts])[order],
    )


def _no_option(
    inputs: PlanInputs,
    names: Sequence[str],
    table: int,
    model: _CostModel,
    storages: Sequence[StorageModel],
) -> SparringError:
    """Returns the error that explains why a table has no option, and how to fix it."""
    name, kinds, topology = names[table], ", ".join(inputs.kinds), inputs.topology
    spec = inputs.tables[name]
    shapes = list(_shapes(inputs))
    if not shapes:
        return ConfigError(
            f"kinds: {kinds} is not possible with nodes {topology.nodes}, ranks_per_node "
            f"{topology.ranks_per_node}; add row_wise, nodes or ranks"
        )
    unpooled = [shape for shape in shapes if spec.is_pooled or shape.transfer == "rows"]
    if not unpooled:
        return ConfigError(
            f"table {name}: owners pool only sums and means, but the table has other features; add "
            "rows to transfers"
        )
    offered = [shape for shape in unpooled if model.offers(shape)[table]]
    if not offered:
        if spec.couples_columns:
            why = spec.why_coupled
        else:
            why = (
                f"its {spec.dim} columns do not divide into equal blocks of at least {_MIN_COLUMNS}"
            )
        return ConfigError(
            f"table {name}: {kinds} would split its columns, but {why}; add row_wise to kinds"
        )
    blocks_only = all(shape.num_columns > 1 for shape in offered)
    allowed = [storage for storage in storages if storage.is_allowed[table]]
    if blocks_only and not any(storage.supports_blocks for storage in allowed):
        return ConfigError(
            f"table {name}: {kinds} would split its columns, but "
            f"{', '.join(storage.name for storage in allowed)} does not support column blocks; add "
            "row_wise to kinds, or a storage in memory"
        )
    return CapacityError(
        f"table {name}: no possible storage supports that many rows per rank; plan more ranks, or a "
        "stack whose first tier evicts rows"
    )


def _shapes(inputs: PlanInputs) -> Iterator[Shape]:
    """Yields all shapes that the kinds, transfers and ranks of `inputs` allow."""
    topology = inputs.topology
    ranks, within, nodes = topology.num_ranks, topology.ranks_per_node, topology.nodes
    for kind in sorted(set(inputs.kinds)):
        if kind == "data_parallel":
            yield Shape(kind, Span.ALL, ranks, ranks, 1, "rows")
            continue
        for transfer in sorted(set(inputs.transfers), reverse=True):
            if kind == "row_wise":
                yield Shape(kind, Span.ALL, ranks, ranks, 1, transfer)
            elif kind == "table_wise":
                yield Shape(kind, Span.RANKS, 1, 1, 1, transfer)
            elif kind == "table_row_wise":
                spans = [each for each in _powers_of_two(nodes) if 1 < each * within < ranks]
                for span in spans:
                    yield Shape(kind, Span.NODES, span, span * within, 1, transfer)
            else:
                for blocks in _COLUMN_BLOCKS:
                    if kind == "column_wise" and blocks <= ranks:
                        yield Shape(kind, Span.RANKS, blocks, blocks, blocks, transfer)
                    elif kind == "table_column_wise" and blocks <= within and nodes > 1:
                        yield Shape(kind, Span.WITHIN, blocks, blocks, blocks, transfer)
                    elif kind == "grid" and blocks <= nodes and within > 1:
                        yield Shape(kind, Span.NODES, blocks, blocks * within, blocks, transfer)


def _powers_of_two(below: int) -> Iterator[int]:
    each = 1
    while each < below:
        yield each
        each *= 2


@dataclass(frozen=True, slots=True)
class _Part:
    """Costs of one shape and storage, for some tables."""

    tables: Ints
    base: Floats
    shard: Floats
    memory: Floats
    """Bytes of `base` and of `shard`, (2, tables, memories)."""
    hits: Floats
    """Shares of ids, (tables, tiers)."""


class _CostModel:
    """The formulas, over arrays of tables."""

    def __init__(self, inputs: PlanInputs, calibration: Calibration, names: Sequence[str]) -> None:
        specs = [inputs.tables[name] for name in names]
        self._topology: Topology = inputs.topology
        self._exchange = calibration.exchange
        self._rows = np.asarray([spec.expected_rows for spec in specs], np.float64)
        self._dim = np.asarray([spec.dim for spec in specs], np.float64)
        self._state = np.asarray([spec.state_width for spec in specs], np.float64)
        self._element = np.asarray([spec.element_bytes for spec in specs], np.float64)
        self._coupled = np.asarray([spec.couples_columns for spec in specs])
        self._pooled = np.asarray([spec.is_pooled for spec in specs])
        features = np.asarray([len(spec.features) for spec in specs], np.float64)
        self._weighted = np.asarray(
            [any(each.weighted for each in spec.features.values()) for spec in specs], np.float64
        )
        self._ids = inputs.samples * np.asarray([spec.ids_per_sample for spec in specs])
        self._bags = inputs.samples * features
        self._bins = key_bins(specs)
        self._unique = self._bins.unique_keys(self._ids)
        self._unique_of_all = self._bins.unique_keys(self._ids * self._topology.num_ranks)
        self._memories = sorted(self._topology.memory)
        self._tier_hits: TierHits | None = None
        machine = calibration.machine
        self.dense_seconds = 0.0 if machine is None else machine.dense_ms * 1e-3

    def offers(self, shape: Shape) -> NDArray[np.bool_]:
        """Returns which tables support this shape."""
        blocks = shape.num_columns
        offered = np.ones(len(self._dim), bool)
        if blocks > 1:
            offered &= (self._dim % blocks == 0) & (self._dim // blocks >= _MIN_COLUMNS)
            offered &= ~self._coupled
        if shape.transfer == "pooled":
            offered &= self._pooled
        return offered

    @property
    def _hits(self) -> TierHits:
        if self._tier_hits is None:
            ids_of_all = self._ids * self._topology.num_ranks
            self._tier_hits = TierHits(self._bins, self._ids, ids_of_all)
        return self._tier_hits

    def costs(self, shape: Shape, storage: StorageModel, tables: Ints) -> _Part:
        ranks, share, blocks = self._topology.num_ranks, shape.row_share, shape.num_columns
        replicated = shape.kind == "data_parallel"
        dim, element, ids = self._dim[tables], self._element[tables], self._ids[tables]
        unique, bags = self._unique[tables], self._bags[tables]
        block, state = dim / blocks, self._state[tables] / blocks
        held = self._rows[tables] * (1.0 if replicated else share)
        # The keys of a shard are a sample of all keys: a tier with C of its rows has the hit rate of a
        # tier with C / share of all rows.
        tiers = [
            rows / (1.0 if replicated else share)
            for rows in storage.tier_rows(held, tables, blocks)
        ]
        misses = [self._hits.key_misses(tables, rows) for rows in tiers]
        misses_of_all = [self._hits.key_misses_of_all(tables, rows) for rows in tiers]
        hits = self._hit_shares(storage, tables, tiers)

        def find(keys: Floats) -> Floats:
            return storage.find_seconds(keys, block * element, misses)

        def update(keys: Floats) -> Floats:
            return storage.update_seconds(keys, block + state, tables, misses_of_all)

        steps = self._exchange.steps
        pool = self._exchange.pool_ns_per_byte * 1e-9 * element
        add = self._exchange.add_ns * 1e-9
        kept = storage.bytes(held, tables, blocks)
        staged = self._staged(tables)
        local = ids * (dim * pool + steps.ids.seconds(dim * element))
        if replicated:
            moved = (ranks - 1) * unique * (_KEY_BYTES + dim * _GRADIENT_BYTES)
            adding = unique * ranks * (add + steps.replicas.seconds(dim * _GRADIENT_BYTES))
            compute = local + find(unique) + adding + update(self._unique_of_all[tables])
            chunks = unique / self._exchange.chunk_rows
            base = self._seconds(compute, moved, moved, 2 * (ranks - 1) * chunks)
            memory = np.stack([kept + staged, np.zeros_like(kept)])
            return _Part(tables, base, np.zeros_like(base), memory, hits)
        # For one requesting rank and one owner: bytes to the owner, bytes back, and the owner's work.
        if shape.transfer == "rows":
            there = unique * share * (2 * _KEY_BYTES + block * _GRADIENT_BYTES)
            back = unique * share * (block * element + _STATUS_BYTES)
            work = find(unique * share) + unique * share * add
            chunks = unique * share / self._exchange.chunk_rows
            asking = local + unique * blocks * steps.rows.seconds(block * element)
        else:
            owners = shape.num_shards / blocks
            touched = _count_touched(bags, ids, owners)
            width = _KEY_BYTES + self._weighted[tables] * _WEIGHT_BYTES
            there = ids * share * width + touched * (_LENGTH_BYTES + block * _GRADIENT_BYTES)
            back = touched * block * element
            half = steps.pooling_seconds(touched, ids * share, block * _GRADIENT_BYTES) / 2
            work = find(unique * share) + ids * share * (block * pool + add) + half
            chunks = ids * share / self._exchange.chunk_rows
            asking = shape.num_shards * half + steps.separate_us * 1e-6
        if blocks > 1:
            work = work + unique * share * steps.blocks.seconds(block * _GRADIENT_BYTES)
        count = shape.num_shards * (ranks - 1) / ranks
        base = self._seconds(asking, count * there, count * back, count * _STREAMS * chunks)
        shard = self._seconds(
            ranks * work + update(self._unique_of_all[tables] * share),
            (ranks - 1) * back,
            (ranks - 1) * there,
            (ranks - 1) * _STREAMS * chunks,
        )
        memory = np.stack([staged, kept])
        if shape.span is Span.ALL:
            base, shard = base + shard, np.zeros_like(base)
            memory = np.stack([memory.sum(0), np.zeros_like(kept)])
        return _Part(tables, base, shard, memory, hits)

    def _staged(self, tables: Ints) -> Floats:
        """Bytes of a batch's embeddings and gradients, (tables, memories)."""
        staged = np.zeros((len(tables), len(self._memories)))
        if self._exchange.memory in self._memories:
            width = self._dim[tables] * (self._element[tables] + _GRADIENT_BYTES)
            staged[:, self._memories.index(self._exchange.memory)] = self._unique[tables] * width
        return staged

    def _hit_shares(self, storage: StorageModel, tables: Ints, tiers: Sequence[Floats]) -> Floats:
        """Share of ids that each tier serves, (tables, tiers); NaN for missing tiers."""
        hits = np.full((len(tables), MAX_TIERS), np.nan)
        if storage.is_stack:
            below = [self._hits.id_hits(tables, rows) for rows in tiers]
            ends = np.zeros(len(tables)), np.ones(len(tables))
            hits[:, : len(tiers) + 1] = np.diff([ends[0], *below, ends[1]], axis=0).T
        return hits

    def _seconds(self, compute: Floats, out: Floats, back: Floats, messages: Floats) -> Floats:
        """Seconds of a rank's work, its bytes to and from all others, and its messages, (tables,
        resources)."""
        topology = self._topology
        peers = max(topology.num_ranks - 1, 1)
        near = (topology.ranks_per_node - 1) / peers / (topology.near.gbit * 125e6)
        far = (topology.num_ranks - topology.ranks_per_node) / peers
        far *= topology.ranks_per_node / (topology.far.gbit * 125e6)
        message = messages * topology.message_us * 1e-6
        if topology.has_one_core:
            compute = compute + (out + back) * near + message
        return np.stack([compute, out * far, back * far, out * near, back * near, message], axis=1)


def _count_touched(bags: Floats, ids: Floats, owners: float) -> Floats:
    """Number of bags of a rank that have an id of one of `owners`, (tables,); at most min(h, k) / k
    of all bags."""
    if owners > 1:
        # With k owners, each has an id of a bag of h ids with the probability 1 − (1 − 1/k)^h.
        bags = bags * -np.expm1(ids / bags * np.log1p(-1 / owners))
    return np.minimum(bags, ids / owners)
