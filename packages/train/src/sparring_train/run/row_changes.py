"""Changes of one row over the versions of a run, with the data that caused them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sparring import ScanChunk, Snapshot
from sparring.adapter import has_changed, locate, scan_own_rows
from sparring.contracts import NUM_PARTITIONS, partition, read_embeddings
from sparring_train.data.stream.cut_log import RecordedCut, read_cuts
from sparring_train.run.history import format_time, list_versions, read_time
from sparring_train.run.same_run import RUN

__all__ = ["RowChange", "describe_change", "find_changes", "find_row"]

_POSITION = "position"
"""Name of the state that contains the epoch."""

_NUM_THREADS = 8
"""Number of files that are read at a time."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """Change of a row between two versions.

    Args:
        snapshot: First version with the change.
        since: Version before it; None for the oldest kept version.
        kind: `found` in the oldest kept version, otherwise `created`, `changed` or `removed`.
        norm: Norm of the embedding after the change; None if the row was removed.
        moved: Distance between the embeddings before and after the change; None without one of them.
        time: Time of the save in seconds since 1970; None if unknown.
        cuts: Partition → first and last offset, half-open, of the events between the two versions, if
            the run was trained on a stream.
        epochs: First and last epoch between the two versions, from 1, if it was trained on files.
        path: The files.
    """

    snapshot: Snapshot
    since: Snapshot | None
    kind: Literal["found", "created", "changed", "removed"]
    norm: float | None
    moved: float | None
    time: float | None = None
    cuts: Mapping[str, tuple[int, int]] | None = None
    epochs: tuple[int, int] | None = None
    path: str | None = None


def describe_change(change: RowChange) -> dict[str, Any]:
    """Returns a change as values for JSON."""
    return {
        "snapshot": change.snapshot.url,
        "step": change.snapshot.step,
        "since_step": None if change.since is None else change.since.step,
        "time": None if change.time is None else format_time(change.time),
        "change": change.kind,
        "norm": change.norm,
        "moved": change.moved,
        "cuts": None if change.cuts is None else dict(change.cuts),
        "epochs": change.epochs,
        "path": change.path,
    }


def find_row(snapshot: Snapshot, table: str, key: int) -> ScanChunk | None:
    """Returns the row of a key over the chain of a snapshot, as a chunk of one row; None without a row.

    Raises:
        SnapshotError: a file cannot be read.
    """
    for each in snapshot.chain:
        found = _find_own(table, key, each)
        if found is not None:
            return found if len(found) else None
    return None


def find_changes(url: str, table: str, key: int) -> tuple[list[RowChange], list[Snapshot]]:
    """Returns the changes of a row, oldest first, and all versions that were searched.

    Args:
        url: a snapshot, or a folder of snapshots, whose newest one is meant.
        table: name of the table.
        key: the key.

    Raises:
        UnknownTableError: there is no such table.
        SnapshotError: a snapshot cannot be read.
        DataError: the recorded cuts cannot be read.
    """
    versions = list_versions(url)
    versions[-1].check_table(table)
    with ThreadPoolExecutor(_NUM_THREADS, "sparring-blame") as threads:
        found = list(threads.map(partial(_find_own, table, key), versions))
    changes: list[RowChange] = []
    before: ScanChunk | None = None
    since: Snapshot | None = None
    for version, after in zip(versions, found, strict=True):
        if after is not None:
            row = after if len(after) else None
            kind = _compare(before, row)
            if kind is not None:
                vectors = [
                    None if each is None or part is None else _embedding(each, table, part)
                    for each, part in ((since, before), (version, row))
                ]
                changes.append(
                    RowChange(
                        version,
                        since,
                        "found" if since is None else kind,
                        _norm(vectors[1]),
                        _distance(*vectors),
                        read_time(version),
                    )
                )
            before = row
        since = version
    return _add_data(changes, locate(versions[-1].url)[0].url), versions


def _find_own(table: str, key: int, snapshot: Snapshot) -> ScanChunk | None:
    """Returns the row in a snapshot's own files; no rows if they show that there is none, or None if
    they do not contain the key."""
    nothing = ScanChunk(np.empty(0, np.int64), np.empty((0, 0)), np.empty(0, np.uint64))
    absent = nothing if snapshot.base is None else None
    if table not in snapshot.own_tables or not has_changed(snapshot, table, key):
        return absent
    of_key = int(partition(np.array([key], np.int64))[0])
    for chunk in scan_own_rows(snapshot, table, [of_key]):
        place = np.flatnonzero(chunk.keys == key)
        if len(place):
            return ScanChunk(chunk.keys[place], chunk.rows[place], chunk.scores[place])
    wanted = np.zeros(NUM_PARTITIONS, np.bool_)
    wanted[of_key] = True
    for entry in snapshot.files(table, "erased"):
        if entry.partitions[0] <= of_key < entry.partitions[1]:
            for chunk in snapshot.segments(entry, wanted):
                if (chunk.keys == key).any():
                    return nothing
    return absent


def _compare(
    before: ScanChunk | None, after: ScanChunk | None
) -> Literal["created", "changed", "removed"] | None:
    if before is None:
        return None if after is None else "created"
    if after is None:
        return "removed"
    return None if before.rows.tobytes() == after.rows.tobytes() else "changed"


_Vector = npt.NDArray[np.float64]


def _embedding(snapshot: Snapshot, table: str, row: ScanChunk) -> _Vector:
    # Use float64, because squares of float32 could overflow.
    found: _Vector = read_embeddings(snapshot.tables[table].config, row.rows)[0].astype(np.float64)
    return found


def _norm(vector: _Vector | None) -> float | None:
    return None if vector is None else float(np.linalg.norm(vector))


def _distance(before: _Vector | None, after: _Vector | None) -> float | None:
    if before is None or after is None or before.shape != after.shape:
        return None
    return float(np.linalg.norm(after - before))


def _add_data(changes: list[RowChange], root: str) -> list[RowChange]:
    """Adds the cuts or epochs of the steps between the two versions of each change."""
    steps = [(each.since.step + 1, each.snapshot.step + 1) for each in changes if each.since]
    cuts = read_cuts(root, steps) if steps else []
    return [_with_cuts(each, cuts) if cuts else _with_epochs(each) for each in changes]


def _with_cuts(change: RowChange, cuts: Sequence[RecordedCut]) -> RowChange:
    ranges: dict[str, tuple[int, int]] = {}
    begin = bisect_right(cuts, change.since.step if change.since else -1, key=_step)
    end = bisect_right(cuts, change.snapshot.step, key=_step)
    for cut in cuts[begin:end] if change.since else ():
        for each in cut.ranges:
            if each.num_events:
                known = ranges.get(each.partition, (each.begin, each.end))
                ranges[each.partition] = min(known[0], each.begin), max(known[1], each.end)
    return replace(change, cuts=ranges)


def _step(cut: RecordedCut) -> int:
    return cut.step


def _with_epochs(change: RowChange) -> RowChange:
    if change.since is None or not all(
        {_POSITION, RUN} <= {*each.state_names(0)} for each in (change.since, change.snapshot)
    ):
        return change
    first, last = (
        int(each.state(_POSITION).values.get("epoch", 0)) + 1
        for each in (change.since, change.snapshot)
    )
    data = change.snapshot.state(RUN).values.get("data")
    path = data.get("path") if isinstance(data, dict) else None
    return replace(change, epochs=(first, last), path=path)
