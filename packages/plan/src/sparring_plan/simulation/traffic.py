"""Keys, bytes and work of one step of a plan, for every rank.

All ranks ask alike: of each owner for its share of the distinct keys of their batch. What differs is
what they own. Bytes are those of the exchange's own formulas, messages cut into its chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sparring import (
    KEY_BYTES,
    Codec,
    WireDtype,
    chunks_of,
    gradient_bytes,
    header_bytes,
    reply_bytes,
)
from sparring_plan.planning.costs import Options
from sparring_plan.planning.inputs import Calibration, PlanInputs, TableSpec
from sparring_plan.planning.placement import Placement
from sparring_plan.planning.unique_keys import unique_keys
from sparring_plan.simulation.model import Compute

__all__ = ["PlanTraffic", "Sent", "traffic_of"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_DTYPES = {"float64": "<f8", "float32": "<f4", "bfloat16": "<u2", "float16": "<f2"}
"""Of the same size: only bytes count here."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes and messages of a step, ``(ranks,)`` each, to ranks of other nodes and to all."""

    headers: Ints
    keys: Ints
    rows: Ints
    gradients: Ints
    far: Ints
    """Bytes of all kinds to ranks of other nodes."""
    messages: Ints

    @property
    def total(self) -> Ints:
        """(ranks,): bytes of all kinds."""
        total: Ints = self.headers + self.keys + self.rows + self.gradients
        return total


@dataclass(frozen=True, eq=False)
class PlanTraffic:
    """A step of a plan.

    Args:
        num_keys: distinct keys of a rank's batch, of all tables.
        asked: ``(ranks, sharded tables)``: keys that each rank asks each owner for.
        replicated: ``(replicated tables,)``: distinct keys of a rank's batch.
        row_codecs, gradient_codecs: of the sharded tables; of a column block where there are some.
        replicated_codecs: gradients of the replicated tables.
        compute: seconds for each row, of the sharded tables.
        local_seconds: of each rank, once rows have come: to pool them, and to find replicated ones.
        adding_seconds: of each rank: to add the gradients of replicated tables up.
        update_seconds: ``(ranks,)``: to update rows.
        is_alike: whether all ranks own the same shares.
    """

    num_keys: int
    ranks_per_node: int
    asked: Ints
    replicated: Ints
    row_codecs: Sequence[Codec]
    gradient_codecs: Sequence[Codec]
    replicated_codecs: Sequence[Codec]
    compute: Sequence[Compute]
    local_seconds: float
    adding_seconds: float
    update_seconds: Floats
    chunk_rows: int
    chunks_in_flight: int
    is_alike: bool

    @property
    def num_ranks(self) -> int:
        return len(self.asked)

    @property
    def num_tables(self) -> int:
        """Of both sorts."""
        return self.asked.shape[1] + len(self.replicated)

    @property
    def pull_header_bytes(self) -> int:
        """Of one rank to one other; replicated tables are looked up without the others."""
        return header_bytes(self.asked.shape[1])

    @property
    def push_header_bytes(self) -> int:
        """At the push, and before rows are written."""
        return header_bytes(self.num_tables)

    @cached_property
    def replica_bytes(self) -> int:
        """Gradients of the replicated tables, of one rank to one other."""
        most = max(1, int(self.replicated.sum()))
        chunks = chunks_of(self.replicated, most)
        return sum(gradient_bytes(chunk, self.replicated_codecs) for chunk in chunks)

    @cached_property
    def _streams(self) -> Ints:
        """``(ranks, 4)``: of the stream to each owner: bytes of keys, rows, gradients; chunks."""
        found = np.zeros((self.num_ranks, 4), np.int64)
        known: dict[bytes, tuple[int, int, int, int]] = {}
        for owner, counts in enumerate(self.asked):
            key = counts.tobytes()
            if key not in known:
                known[key] = self._stream(counts)
            found[owner] = known[key]
        return found

    def _stream(self, counts: Ints) -> tuple[int, int, int, int]:
        chunks = list(chunks_of(counts, self.chunk_rows))
        return (
            int(counts.sum()) * KEY_BYTES,
            sum(reply_bytes(chunk, self.row_codecs) for chunk in chunks),
            sum(gradient_bytes(chunk, self.gradient_codecs) for chunk in chunks),
            len(chunks),
        )

    @property
    def num_messages(self) -> int:
        """Sent by all ranks."""
        return int(self.sent.messages.sum())

    @cached_property
    def sent(self) -> Sent:
        """What each rank sends in a step."""
        ranks, within = self.num_ranks, self.ranks_per_node
        others = ranks - 1
        rounds = (self.asked.shape[1] > 0) * self.pull_header_bytes + 2 * self.push_header_bytes
        num_rounds = int(self.asked.shape[1] > 0) + 2
        keys, rows, gradients, chunks = self._streams.T
        # Of the owners that are not the rank itself; of those that are not in its node.
        outside = _sum_of_nodes(keys + gradients, within)
        far_share = self.replica_bytes + rounds
        return Sent(
            headers=np.full(ranks, others * rounds, np.int64),
            keys=keys.sum() - keys,
            rows=others * rows,
            gradients=gradients.sum() - gradients + others * self.replica_bytes,
            far=(keys + gradients).sum() - outside + (ranks - within) * (rows + far_share),
            messages=others * (num_rounds + bool(self.replica_bytes) + chunks)
            + 2 * (chunks.sum() - chunks),
        )


def traffic_of(placement: Placement, inputs: PlanInputs, calibration: Calibration) -> PlanTraffic:
    """The step of a plan."""
    options, ranks = placement.options, placement.options.num_ranks
    names = options.table_names
    specs = [inputs.tables[name] for name in names]
    ids = np.asarray([spec.ids_per_sample for spec in specs]) * inputs.samples
    rows = np.asarray([spec.expected_rows for spec in specs], np.float64)
    skew = np.asarray([spec.skew for spec in specs], np.float64)
    unique = unique_keys(rows, skew, ids)
    unique_of_all = unique_keys(rows, skew, ids * ranks)
    exchange = calibration.exchange
    columns, compute, codecs = [], [], []
    replicated: list[tuple[int, Codec]] = []
    update = np.zeros(ranks)
    local = adding = 0.0
    for table, spec in enumerate(specs):
        option = int(placement.option[table])
        shape = options.shape_of(option)
        storage = calibration.storages[options.storages[options.storage[option]]]
        width = spec.dim // shape.num_columns
        state = spec.state_width / shape.num_columns
        find = (storage.find_ns + storage.find_ns_per_byte * width * spec.element_bytes) * 1e-9
        write = (storage.update_ns + storage.update_ns_per_element * (width + state)) * 1e-9
        pooling = ids[table] * spec.dim * spec.element_bytes * exchange.pool_ns_per_byte * 1e-9
        local += pooling
        if shape.kind == "data_parallel":
            replicated.append((round(unique[table]), _gradients(spec, spec.dim)))
            local += unique[table] * find
            adding += unique[table] * ranks * exchange.add_ns * 1e-9
            update += unique_of_all[table] * write
            continue
        counts = _asked(options, placement, table, float(unique[table]))
        columns.append(counts)
        update += counts / max(float(unique[table]), 1.0) * unique_of_all[table] * write
        compute.append(Compute(find, exchange.add_ns * 1e-9, 0.0))
        codecs.append(
            (Codec(np.dtype(_DTYPES[spec.dtype]), width, WireDtype.EXACT), _gradients(spec, width))
        )
    asked = np.stack(columns, axis=1) if columns else np.zeros((ranks, 0), np.int64)
    return PlanTraffic(
        num_keys=round(float(unique.sum())),
        ranks_per_node=options.ranks_per_node,
        asked=asked,
        replicated=np.asarray([count for count, _ in replicated], np.int64),
        row_codecs=[each for each, _ in codecs],
        gradient_codecs=[each for _, each in codecs],
        replicated_codecs=[each for _, each in replicated],
        compute=compute,
        local_seconds=local,
        adding_seconds=adding,
        update_seconds=update,
        chunk_rows=exchange.chunk_rows,
        chunks_in_flight=exchange.chunks_in_flight,
        is_alike=not placement.owns.any(),
    )


def _sum_of_nodes(values: Ints, within: int) -> Ints:
    """(ranks,): the sum over the ranks of a rank's node."""
    sums: Ints = np.repeat(values.reshape(-1, within).sum(axis=1), within)
    return sums


def _gradients(spec: TableSpec, width: int) -> Codec:
    dtype = np.float64 if spec.dtype == "float64" else np.float32
    return Codec(np.dtype(dtype), width, WireDtype.EXACT)


def _asked(options: Options, placement: Placement, table: int, unique: float) -> Ints:
    """(ranks,): keys that a rank asks each owner for, as even as whole numbers can be."""
    shape = options.shape_of(int(placement.option[table]))
    ranks = placement.ranks(table)
    if not len(ranks):
        ranks = np.arange(options.num_ranks)
    parts = len(ranks) // shape.num_columns
    ends = np.arange(parts + 1, dtype=np.int64) * round(unique) // parts
    counts = np.zeros(options.num_ranks, np.int64)
    # Each block of columns is asked for all keys.
    counts[ranks] = np.tile(np.diff(ends), shape.num_columns)
    return counts
