"""What a container itself must have again to go on: counters, and those of admission filters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sparring.rendezvous import ShardMap
from sparring.saving.admission_state import join_filters
from sparring.saving.requests import State
from sparring.snapshot import Snapshot

if TYPE_CHECKING:
    from sparring.declared_table import DeclaredTable
    from sparring.step import StepContainer

__all__ = ["OWN_STATES", "container_states", "take_container_states"]

_CONTAINER, _ADMISSION = "container", "admission"

OWN_STATES = (_CONTAINER, _ADMISSION)
"""Names of state that are the container's."""


def container_states(container: StepContainer) -> dict[str, State]:
    """This rank's, copied."""
    rank = container.collective.rank
    dropped = {
        entry.config.name: entry.num_not_admitted
        for entry in container.entries()
        if entry.num_not_admitted
    }
    filters = {
        entry.config.name: np.frombuffer(entry.admission_filter.save(), np.uint8)
        for entry in container.entries()
        if entry.admission_filter is not None and not (entry.config.is_replicated and rank)
    }
    owners = container.rendezvous.shard_map().owners
    return {
        _CONTAINER: State(
            {"counters": asdict(container.counters), "num_not_admitted": dropped},
            {"owners": owners},
        ),
        _ADMISSION: State(None, filters),
    }


def take_container_states(container: StepContainer, snapshot: Snapshot) -> Callable[[], None]:
    """Takes over what filters of ranks had counted. Totals over ranks stay what they were.

    Returns:
        What takes over the counters, to be called once all ranks have all: until then they stand at
        one step.

    Raises:
        InvalidArgumentError: a filter was declared otherwise; some may have been taken over.
        SnapshotDamagedError: a file is not what was written.
    """
    shards = container.rendezvous.shard_map()
    saved = [snapshot.state(_CONTAINER, rank=each) for each in range(snapshot.world_size)]
    owners = saved[0].arrays["owners"]
    is_same_job = snapshot.world_size == shards.world_size and np.array_equal(owners, shards.owners)
    _take_filters(container, snapshot, shards, is_same_job)
    values = [each.values for each in saved]
    return partial(_take_counters, container, values, is_same_job)


def _take_filters(
    container: StepContainer, snapshot: Snapshot, shards: ShardMap, is_same_job: bool
) -> None:
    rank = container.collective.rank
    if not any(entry.admission_filter is not None for entry in container.entries()):
        return
    wanted = [rank] if is_same_job else range(snapshot.world_size)
    filters = {each: snapshot.state(_ADMISSION, rank=each).arrays for each in {0, *wanted}}
    for entry in container.entries():
        if entry.admission_filter is None:
            continue
        # Of a replicated table all ranks count alike.
        ranks = [0] if entry.config.is_replicated else wanted
        name = entry.config.name
        parts = [filters[each][name].tobytes() for each in ranks if name in filters[each]]
        if parts:
            _take_filter(entry, parts, shards, rank)


def _take_filter(entry: DeclaredTable, parts: list[bytes], shards: ShardMap, rank: int) -> None:
    entry.forget_admission()
    made = entry.admission_filter
    assert made is not None  # a snapshot has counters of tables that have a filter only
    if len(parts) == 1:
        made.load(parts[0])
        return
    join_filters(made, entry.config, parts, shards, rank)


def _take_counters(
    container: StepContainer, saved: list[dict[str, Any]], is_same_job: bool
) -> None:
    """A rank goes on counting from its own; with other ranks the first one has the totals."""
    rank = container.collective.rank
    mine = [saved[rank]] if is_same_job else ([] if rank else saved)
    for counter in fields(container.counters):
        total = sum(each["counters"].get(counter.name, 0) for each in mine)
        setattr(container.counters, counter.name, total)
    for entry in container.entries():
        entry.num_not_admitted = sum(
            each["num_not_admitted"].get(entry.config.name, 0) for each in mine
        )
    container.set_steps(saved[0]["counters"]["steps"])
