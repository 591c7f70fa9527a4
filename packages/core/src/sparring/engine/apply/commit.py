"""Commit vote before rows are written: all ranks proceed or all raise."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

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
    """Vote of a rank, and its outcome."""

    num_rows: dict[str, int]
    """Table → rows that this rank will change, or keys that have gradients."""
    touched: list[str]
    """The tables of which any rank will change rows, in the order of declaration."""
    num_kept: dict[str, int] = field(default_factory=dict)
    """Table → rows that this rank will change, without those that were not admitted."""


@contextmanager
def commit_vote(state: EngineState) -> Iterator[Commit]:
    """Surrounds all that may refuse a step: ranks go on from its end together, or all raise."""
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
    totals = iter(state.exchange.commit(counts, own_error))
    commit.touched = [name for name in names if next(totals)]
    kept, sizes, sums, squares = (
        [next(totals) for _ in some] for some in (blocks, blocks, replicated, replicated)
    )
    _check_blocks_agree(blocks, list(zip(kept, sizes, strict=True)))
    for entry, total, of_squares in zip(replicated, sums, squares, strict=True):
        # Equal numbers, and no others, have W * (sum of squares) = (square of the sum).
        if world_size * of_squares != total * total:
            name = entry.config.name
            raise InvalidArgumentError(
                f"table {name!r}: the replicas of its rows have come apart: ranks differ in how many "
                f"rows they hold, or in how many this step changes or admits; here it holds "
                f"{_size(entry)}, of which this step changes {commit.num_rows.get(name, 0)}. No row was "
                "changed. Restart all ranks from the last snapshot",
                table=name,
            )


def _check_blocks_agree(blocks: Sequence[TableEntry], counts: Sequence[tuple[int, int]]) -> None:
    """Refuses a step, on all ranks, where blocks of columns of one table have come apart.

    Args:
        blocks: of all tables that are divided.
        counts: of each, over all ranks: rows that the step changes, and rows before it.
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
    """Number of 20 bits that replicas of a table compare: rows held, to be changed, and admitted.

    Rows that were evicted or refused show in it, as they make these counts differ.
    """
    name = entry.config.name
    counts = (_size(entry), commit.num_rows.get(name, 0), commit.num_kept.get(name, 0))
    # 20 bits, so that the sum of squares of any number of ranks fits 64.
    return zlib.crc32(struct.pack("<3q", *counts)) >> 12


@contextmanager
def partial_step_errors(state: EngineState) -> Iterator[None]:
    """Surrounds what comes after `committing` and before the first write.

    Raises:
        PartialStepError: this rank, of several, had no memory, its device failed, or numpy was told to
            raise what its numbers met; the others have applied the step.
    """
    try:
        yield
    except (DeviceError, MemoryError, FloatingPointError) as error:  # others meet all ranks alike
        if state.collective.world_size == 1:
            raise
        state.exchange.give_up(error)
        names = tuple(state.tables.entries)
        raise PartialStepError(
            f"step {state.counters.steps + 1} reached other ranks only: here it failed when all "
            f"had agreed to apply it ({type(error).__name__}: {error}). No row of this rank has "
            "changed. Mend what failed, then restart all ranks from the last snapshot",
            written=(),
            failed=(),
            untouched=names,
        ) from error


def check_method_capacities(state: EngineState, owned: Mapping[str, OwnedGradients]) -> None:
    """`check_room` of every table that `KernelSet.update_storage` will change.

    The update of a single table on a single rank changes nothing where it raises, so nothing need
    be asked.
    """
    if len(state.tables.entries) == 1 and state.collective.world_size == 1:
        return
    for name, each in owned.items():
        storage = state.tables.storage(name)
        if not state.tables.entries[name].may_refuse:
            continue
        # Asking waits for the device.
        capacity, num_keys = storage.capacity, len(each.keys)
        assert capacity is not None
        if storage.size + num_keys > capacity:
            check_capacity(storage, _num_new(state, name, each))


def _num_new(state: EngineState, name: str, owned: OwnedGradients) -> int:
    """Rows that an update will make."""
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
    """Refuses a step before its first write where a later write would find no room."""
    size, capacity = storage.size, storage.capacity
    assert capacity is not None
    if size + num_new > capacity:
        raise CapacityError(
            f"table {storage.table.name!r} holds {size} rows and may hold {capacity}; this step "
            f"would add {num_new}. No row was changed. Raise its capacity, or choose a policy "
            "that evicts",
            table=storage.table.name,
            capacity=capacity,
        )
