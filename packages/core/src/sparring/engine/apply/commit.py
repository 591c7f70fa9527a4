"""Commit vote before rows are written: all ranks proceed or all raise."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sparring.contracts.storage.storage import Storage
from sparring.engine.job.memory_budget import check_memory
from sparring.engine.state import EngineState
from sparring.engine.tables.entry import TableEntry
from sparring.errors import CapacityError, DeviceError, InvalidArgumentError, PartialStepError
from sparring.exchange.messages import OwnedGradients
from sparring.kernels.admission_filters import decide_unseen

__all__ = [
    "Commit",
    "partial_step_errors",
    "check_method_capacities",
    "check_capacity",
    "commit_vote",
]


@dataclass(slots=True)
class Commit:
    """Vote of a rank, and its result."""

    num_rows: dict[str, int]
    """Number of rows that this rank will change, or of keys that have gradients, by table."""
    touched: list[str]
    """Tables whose rows any rank will change, in the order of declaration."""
    num_kept: dict[str, int] = field(default_factory=dict)
    """Number of rows that this rank will change, without those that were not admitted, by table."""


@contextmanager
def commit_vote(state: EngineState, settings: Callable[[], Mapping[str, Any]]) -> Iterator[Commit]:
    """Context of all checks of a step. At its end, all ranks continue, or all raise the error of
    one.

    Args:
        state: state of the engine.
        settings: returns the settings of the update, as JSON values, which must be equal on all ranks.
    """
    commit = Commit({}, [])
    own_error: BaseException | None = None
    try:
        yield commit
        if state.memory_bytes is not None:
            check_memory(state, state.memory_bytes)
    except Exception as error:
        if state.collective.world_size == 1:
            raise
        own_error = error
    names = list(state.tables.entries)
    world_size = state.collective.world_size
    if world_size == 1:
        commit.touched = list(filter(commit.num_rows.get, names))
        return
    entries = list(state.tables.entries.values())
    blocks = [each for each in entries if each.block is not None]
    replicated = [each for each in entries if each.layout.is_replicated]
    digests = [_digest(commit, each) for each in replicated]
    counts = [
        *(commit.num_rows.get(name, 0) for name in names),
        *(commit.num_kept.get(each.config.name, 0) for each in blocks),
        *map(_size, blocks),
        *digests,
        *(each * each for each in digests),
    ]
    totals = iter(state.exchange.commit(counts, own_error, settings()))
    commit.touched = [name for name in names if next(totals)]
    kept, sizes, sums, squares = (
        [next(totals) for _ in some] for some in (blocks, blocks, replicated, replicated)
    )
    _check_blocks_agree(blocks, list(zip(kept, sizes, strict=True)))
    for entry, total, of_squares in zip(replicated, sums, squares, strict=True):
        # W * (sum of squares) equals (square of the sum) only if all numbers are equal.
        if world_size * of_squares != total * total:
            name = entry.config.name
            raise InvalidArgumentError(
                f"table {name!r}: the replicas of its rows have diverged: ranks differ in their number "
                f"of rows, or in how many rows this step changes or admits. This rank has "
                f"{_size(entry)} rows, of which this step changes {commit.num_rows.get(name, 0)}. No row "
                "was changed. Restart all ranks from the last snapshot",
                table=name,
            )


def _check_blocks_agree(blocks: Sequence[TableEntry], counts: Sequence[tuple[int, int]]) -> None:
    """Raises on all ranks if the blocks of columns of a table have diverged.

    Args:
        blocks: blocks of all tables that are sharded by columns.
        counts: for each block, over all ranks: rows that the step changes, and rows before the step.
    """
    first: dict[str, tuple[int, int]] = {}
    for each, found in zip(blocks, counts, strict=True):
        name = each.table_name
        expected = first.setdefault(name, found)
        if found != expected:
            raise InvalidArgumentError(
                f"table {name!r}: block {each.config.name!r} of its columns has {found[1]} rows, of "
                f"which this step changes {found[0]}; its first block has {expected[1]}, and changes "
                f"{expected[0]}. No row was changed. Restart all ranks from the last snapshot",
                table=name,
            )


def _size(entry: TableEntry) -> int:
    return 0 if entry.storage is None else entry.storage.size


def _digest(commit: Commit, entry: TableEntry) -> int:
    """Returns a 20-bit digest of the numbers of stored, changed and admitted rows. Replicas of a table
    compare it; it differs if they have evicted or rejected different rows."""
    name = entry.config.name
    counts = (_size(entry), commit.num_rows.get(name, 0), commit.num_kept.get(name, 0))
    # 20 bits, so that the sum of squares over all ranks fits into 64 bits.
    return zlib.crc32(struct.pack("<3q", *counts)) >> 12


@contextmanager
def partial_step_errors(state: EngineState) -> Iterator[None]:
    """Context of the work between `commit_vote` and the first write.

    Raises:
        PartialStepError: this rank ran out of memory, its device failed, or numpy raised a
            floating-point error, while other ranks apply the step.
    """
    try:
        yield
    except (DeviceError, MemoryError, FloatingPointError) as error:  # all ranks raise other errors
        if state.collective.world_size == 1:
            raise
        state.exchange.give_up(error)
        names = tuple(state.tables.entries)
        raise PartialStepError(
            f"step {state.counters.steps + 1} reached other ranks only: on this rank it failed after all "
            f"had agreed to apply it ({type(error).__name__}: {error}). No row of this rank has "
            "changed. Fix the cause, then restart all ranks from the last snapshot",
            written=(),
            failed=(),
            untouched=names,
        ) from error


def check_method_capacities(state: EngineState, owned: Mapping[str, OwnedGradients]) -> None:
    """Calls `check_capacity` for every table that `KernelSet.update_storage` will change.

    A single table on a single rank needs no check, because its update changes nothing if it raises.
    """
    if len(state.tables.entries) == 1 and state.collective.world_size == 1:
        return
    for name, each in owned.items():
        storage = state.tables.storage(name)
        if not state.tables.entries[name].may_refuse:
            continue
        # Counted only if necessary, because counting waits for the device.
        capacity, num_keys = storage.capacity, len(each.keys)
        assert capacity is not None
        if storage.size + num_keys > capacity:
            check_capacity(storage, _num_new(state, name, each))


def _num_new(state: EngineState, name: str, owned: OwnedGradients) -> int:
    """Returns the number of rows that an update will create."""
    kernels, entry = owned.kernels, state.tables.entries[name]
    to_host = kernels.arrays.to_host
    found = to_host(kernels.find_storage(state.tables.storage(name), owned.keys, 1).found)
    is_found = np.asarray(found).astype(np.bool_)
    num_new = int(np.count_nonzero(~is_found))
    if entry.admission_filter is not None and num_new:
        keys = np.ascontiguousarray(to_host(owned.keys))
        step = state.counters.steps + 1
        owned.decision = decide_unseen(entry.admission_filter, keys, is_found, step)
        num_new -= owned.decision.num_rejected
    return num_new


def check_capacity(storage: Storage, num_new: int) -> None:
    """Raises `CapacityError` if a storage has no capacity for the new rows of a step."""
    size, capacity = storage.size, storage.capacity
    assert capacity is not None
    if size + num_new > capacity:
        raise CapacityError(
            f"table {storage.table.name!r} has {size} rows and a capacity of {capacity}; this step "
            f"would add {num_new}. No row was changed. Raise its capacity, or choose a policy "
            "that evicts",
            table=storage.table.name,
            capacity=capacity,
        )
