"""State of a container in a snapshot: its counters, admission filters, and last accesses of keys.

Each rank counts the keys that it owns. All blocks of columns of a table count the same, so only the
first block is saved. If the snapshot was saved by ranks with the same partitions of a table, each
filter loads its own counters. Otherwise:

    frequency     every rank loads the exact counts of its keys from all filters
    probability   has no state
    bloom         every rank loads the maximum of each counter over all filters. No key is admitted
                  later than without the load. Some may be admitted earlier, because ranks share the
                  counters
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from sparring.contracts.checkpoint import State
from sparring.contracts.storage.results import Keys
from sparring.contracts.tables.admission import Bloom, Frequency, Probability
from sparring.contracts.tables.table import TableConfig
from sparring.engine.state import EngineState
from sparring.engine.tables.entry import TableEntry
from sparring.errors import CorruptDataError, UnsupportedError
from sparring.kernels.admission_filters import make_native_filter
from sparring.snapshot.changed_keys import CHANGED_KEYS, index_without
from sparring.snapshot.erase import ERASURE
from sparring.snapshot.format.data_file import SnapshotState
from sparring.snapshot.reader import Snapshot

__all__ = [
    "RESERVED_STATES",
    "collect_container_states",
    "state_without_keys",
    "load_container_states",
    "read_scalars",
]

_CONTAINER, _ADMISSION, _VISITS = "container", "admission", "visits"

RESERVED_STATES = (_CONTAINER, _ADMISSION, _VISITS, ERASURE, CHANGED_KEYS)
"""Names of states that are reserved for the container."""


def collect_container_states(state: EngineState) -> dict[str, State]:
    """Returns copies of the container states of this rank."""
    rank = state.membership.rank
    dropped = {
        entry.table_name: entry.num_not_admitted
        for entry in state.tables.entries.values()
        if entry.num_not_admitted and entry.is_first
    }
    filters = {
        entry.table_name: np.frombuffer(entry.admission_filter.save(), np.uint8)
        for entry in state.tables.entries.values()
        if entry.admission_filter is not None
        and entry.is_first
        and not (entry.config.is_replicated and rank)
    }
    states = {
        _CONTAINER: State(
            {
                "counters": asdict(state.counters),
                "num_not_admitted": dropped,
                "scalars": {
                    name: saved
                    for name, entry in state.tables.declared.items()
                    if (saved := entry.save_scalars()) is not None
                },
            },
            {"owners": state.shard_map.owners, **_other_owners(state)},
        ),
        _ADMISSION: State(None, filters),
    }
    if state.tables.expiring:
        states[_VISITS] = _visits(state)
    return states


def _other_owners(state: EngineState) -> dict[str, npt.NDArray[np.int32]]:
    """Returns the owners of each table that is not sharded by the job's shard map; of its first block,
    if it is sharded by columns."""
    return {
        f"owners.{entry.table_name}": entry.layout.owners
        for entry in state.tables.entries.values()
        if entry.is_first and not np.array_equal(entry.layout.owners, state.shard_map.owners)
    }


def _visits(state: EngineState) -> State:
    """Returns the keys of each table with the steps of their last accesses, and the times of steps."""
    times: dict[str, Any] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for entry in state.tables.expiring:
        name, visits = entry.table_name, entry.visits
        if (
            visits is None
            or not entry.is_first
            or (entry.config.is_replicated and state.membership.rank)
        ):
            continue
        visits.seal(state.counters.steps)  # for writes since the last step
        visits.merge()
        if not visits.is_complete:
            continue
        arrays |= {f"keys.{name}": visits.keys, f"steps.{name}": visits.steps}
        times[name] = [*visits.times, (state.counters.steps, state.clock())]
    return State({"times": times}, arrays)


def load_container_states(state: EngineState, snapshot: Snapshot) -> Callable[[], None]:
    """Loads admission filters and last accesses. Totals over ranks do not change.

    Returns:
        A function that loads the counters. Call it after all ranks have loaded everything; until then
        all ranks have the same step.

    Raises:
        InvalidArgumentError: a filter was saved with other settings; some filters may have been loaded.
        SnapshotDamagedError: a file is damaged.
    """
    shards = state.shard_map
    saved = [snapshot.state(_CONTAINER, rank=each) for each in range(snapshot.world_size)]
    owners = saved[0].arrays["owners"]
    is_same_job = snapshot.world_size == shards.world_size and np.array_equal(owners, shards.owners)
    _load_filters(state, snapshot, saved[0].arrays)
    _load_visits(state, snapshot)
    values = [each.values for each in saved]
    return partial(_load_counters, state, values, is_same_job)


def read_scalars(snapshot: Snapshot) -> Mapping[str, Any]:
    """Returns the results of `TableEntry.save_scalars` by table. Older snapshots and imports have
    none."""
    if _CONTAINER not in snapshot.state_names(0):
        return {}
    scalars: Mapping[str, Any] = snapshot.state(_CONTAINER, rank=0).values.get("scalars", {})
    return scalars


def _load_filters(
    state: EngineState, snapshot: Snapshot, saved_owners: Mapping[str, npt.NDArray[Any]]
) -> None:
    rank = state.membership.rank
    read: dict[int, Mapping[str, npt.NDArray[Any]]] = {}
    for entry in state.tables.entries.values():
        if entry.admission_filter is None:
            continue
        name, layout = entry.saved_name(snapshot.tables), entry.layout
        # All ranks count the same for a replicated table, so only rank 0 saves its filter.
        was_replicated = name in snapshot.tables and (
            snapshot.tables[name].extra.get("placement") == "replicated"
        )
        owners = saved_owners.get(f"owners.{name}", saved_owners["owners"])
        is_same = was_replicated == layout.is_replicated and (
            layout.is_replicated
            or (snapshot.world_size == layout.world_size and np.array_equal(owners, layout.owners))
        )
        ranks = range(snapshot.world_size)
        if was_replicated:
            ranks = range(1)
        elif is_same:
            ranks = range(rank, rank + 1)
        for each in ranks:
            if each not in read:
                read[each] = snapshot.state(_ADMISSION, rank=each).arrays
        parts = [read[each][name].tobytes() for each in ranks if name in read[each]]
        if not parts:
            continue
        entry.forget_admission()
        made: Any = entry.admission_filter
        if is_same:
            made.load(parts[0])
        else:
            _merge_filters(made, entry, parts)


def _load_visits(state: EngineState, snapshot: Snapshot) -> None:
    """Loads the last accesses of the keys that this rank owns."""
    ranks = [each for each in range(snapshot.world_size) if _VISITS in snapshot.state_names(each)]
    saved = [snapshot.state(_VISITS, rank=each) for each in ranks if state.tables.expiring]
    for entry in state.tables.expiring:
        name, owners = entry.saved_name(snapshot.tables), entry.write_log.owners
        # A rank without rows of the table may have saved no accesses of it.
        having = [each for each in saved if f"keys.{name}" in each.arrays]
        found = [each.arrays for each in having]
        if entry.visits is None or not found:
            continue  # rows count as accessed in the next step
        keys: Keys = np.concatenate([each[f"keys.{name}"] for each in found])
        steps = np.concatenate([each[f"steps.{name}"] for each in found])
        if owners is not None:
            is_own = owners.are_own(keys)
            keys, steps = keys[is_own], steps[is_own]
        times = [(int(step), float(time)) for step, time in having[0].values["times"][name]]
        entry.visits.replace(keys, steps, times)


def _load_counters(state: EngineState, saved: list[dict[str, Any]], is_same_job: bool) -> None:
    """Loads the counters. Each rank continues from its own counters. If the ranks differ from those
    of the save, rank 0 gets the totals instead."""
    rank = state.membership.rank
    mine = [saved[rank]] if is_same_job else ([] if rank else saved)
    for counter in fields(state.counters):
        total = sum(each["counters"].get(counter.name, 0) for each in mine)
        setattr(state.counters, counter.name, total)
    for entry in state.tables.entries.values():
        entry.num_not_admitted = sum(
            each["num_not_admitted"].get(entry.table_name, 0) for each in mine
        )
    state.set_steps(max(each["counters"]["steps"] for each in saved))


# docs/format/admission.md: magic, version, kind; k, forgotten, number of keys.
_HEADER = struct.Struct("<8sII3Q")
_FREQUENCY = 1


def _merge_filters(made: Any, entry: TableEntry, saved: Sequence[bytes]) -> None:
    """Merges the counts of this rank's keys from several saved filters into an empty filter.

    Args:
        made: empty native filter of the table on this rank.
        entry: entry of the table.
        saved: saved filters of the ranks of the snapshot.

    Raises:
        InvalidArgumentError: a filter was saved with other settings.
        UnsupportedError: filters of this kind cannot be merged.
    """
    table, admission = entry.config, entry.config.admission
    if isinstance(admission, Probability):
        made.load(saved[0])
    elif isinstance(admission, Bloom):
        for each in saved:
            made.join(each)
    elif isinstance(admission, Frequency):
        for each in saved:
            # Loaded into a separate filter first, which validates all bytes.
            make_native_filter(admission, table).load(each)
            keys, counts = _parse_counts(each)
            owners = entry.write_log.owners
            if owners is not None:
                is_own = owners.are_own(keys)
                keys, counts = keys[is_own], counts[is_own]
            _record(made, keys, counts)
    elif len(saved) == 1:
        made.load(saved[0])
    else:
        raise UnsupportedError(
            f"load of the admission filter of table {table.name!r}: counters of "
            f"{type(admission).__name__} cannot be redistributed; load with the same number of ranks "
            "and the same plan as the save",
            table=table.name,
        )


def _parse_counts(saved: bytes) -> tuple[Keys, npt.NDArray[np.uint32]]:
    if len(saved) < _HEADER.size:
        raise CorruptDataError(
            "load of an admission filter: its saved counters are truncated; load another snapshot"
        )
    num_keys = _HEADER.unpack_from(saved)[-1]
    keys: Keys = np.frombuffer(saved, np.int64, num_keys, _HEADER.size)
    return keys, np.frombuffer(saved, np.uint32, num_keys, _HEADER.size + keys.nbytes)


def _record(made: Any, keys: Keys, counts: npt.NDArray[np.uint32]) -> None:
    for count in range(int(counts.max(initial=0))):
        again = np.ascontiguousarray(keys[counts > count])
        made.record(again, np.zeros(len(again), np.bool_))


def state_without_keys(
    name: str, state: SnapshotState, table: str, keys: Keys
) -> SnapshotState | None:
    """Returns a container state without some keys, or None if it contains none of them.

    Counters of Bloom filters are not changed, because many keys share them.

    Args:
        name: name of the state.
        state: state of one rank in a snapshot.
        table: table of the keys.
        keys: keys to remove.
    """
    if name == CHANGED_KEYS:
        return index_without(state, table, keys)
    arrays = dict(state.arrays)
    if name == _VISITS and f"keys.{table}" in arrays:
        is_kept = ~np.isin(arrays[f"keys.{table}"], keys)
        changed = {each: arrays[each][is_kept] for each in (f"keys.{table}", f"steps.{table}")}
    elif name == _ADMISSION and table in arrays and _is_frequency(saved := arrays[table].tobytes()):
        seen, counts = _parse_counts(saved)
        is_kept = ~np.isin(seen, keys)
        most = _HEADER.unpack_from(saved)[3]
        made = make_native_filter(
            Frequency(most, memory_bytes=max(1 << 16, 64 * len(seen))), TableConfig(table, 1)
        )
        _record(made, seen[is_kept], counts[is_kept])
        changed = {table: np.frombuffer(made.save(), np.uint8)}
    else:
        return None
    return None if is_kept.all() else SnapshotState(state.values, arrays | changed)


def _is_frequency(saved: bytes) -> bool:
    kind: int = _HEADER.unpack_from(saved)[2]
    return kind == _FREQUENCY
