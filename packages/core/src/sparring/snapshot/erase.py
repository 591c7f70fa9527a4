"""Erasure of keys from all snapshots in a folder.

A committed snapshot never changes. Each snapshot that contains one of the keys, and each delta over such
a snapshot, is therefore rewritten under a new name. The old snapshots are removed, newest first, after
all new ones are committed:

    step-10 ← step-20 ← step-30                   before
    step-10 ← step-20 ← step-30    step-10.e1 ←   if interrupted here, all can be loaded; run again
    step-10.e1 ← step-20.e1 ← step-30.e1          after

A new snapshot records which one it replaces, by the hash of the old manifest. A second run therefore
recognizes the snapshots of an interrupted run and does not write them again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from sparring.contracts.storage.column_block import ColumnBlock
from sparring.contracts.storage.results import Keys, ScanChunk, check_keys
from sparring.errors import SnapshotError
from sparring.kernels.functions import partition
from sparring.snapshot.format.data_file import SnapshotState
from sparring.snapshot.format.manifest import NUM_PARTITIONS
from sparring.snapshot.place.place import writing
from sparring.snapshot.reader import Snapshot, open_root
from sparring.snapshot.retention import list_unreadable_snapshots, open_snapshots, rewrite
from sparring.snapshot.writer import SnapshotWriter

__all__ = [
    "ERASURE",
    "ErasedSnapshots",
    "FoundInSnapshots",
    "RemoveKeysFromState",
    "erase_from_snapshots",
    "find_in_snapshots",
]

ERASURE = "erasure"
"""Name of the state that marks a snapshot as the replacement of another one."""

RemoveKeysFromState = Callable[[str, SnapshotState], "SnapshotState | None"]
"""Maps the name of state and the state to the same state without the keys, or to None if it contains none
of them."""

_ENDING = re.compile(r"\.e([0-9]{1,9})\Z")


@dataclass(slots=True)
class ErasedSnapshots:
    """Result of an erasure."""

    replaced: dict[str, str] = field(default_factory=dict)
    """URLs of removed snapshots → URLs of their replacements."""
    num_rows: int = 0
    """Number of rows that were erased, over all replaced snapshots."""
    keys: set[int] = field(default_factory=set)
    """Keys that had a row in a replaced snapshot."""
    clean: list[str] = field(default_factory=list)
    """URLs of snapshots that contained none of the keys and were kept."""
    num_dead_attempts: int = 0
    """Number of staging folders that were removed."""


@dataclass(frozen=True, slots=True)
class FoundInSnapshots:
    """What an erasure would change.

    Args:
        urls: URLs of the snapshots that would be replaced: those that contain a key, and their deltas.
        num_rows: Number of rows that would be erased, over all of them.
    """

    urls: list[str]
    num_rows: int


def find_in_snapshots(
    root_url: str | os.PathLike[str], table: str, keys: Keys, state_without: RemoveKeysFromState
) -> FoundInSnapshots:
    """Returns what `erase_from_snapshots` would change. Changes nothing.

    Args:
        root_url: Folder of the snapshots.
        table: Name of the table.
        keys: ``(n,)`` unique int64, in any order.
        state_without: As for `erase_from_snapshots`.

    Raises:
        SnapshotError: A snapshot cannot be read, or no snapshot has the table.
    """
    wanted = np.sort(check_keys(keys, table, unique=True))
    found, names, num_rows = _open_all(root_url, table), set(), 0
    # Bases before their deltas.
    for each in sorted(found, key=lambda each: len(each.chain)):
        is_over_another = each.base is not None and each.base.name in names
        if not is_over_another and not _contains_any(each, table, wanted, state_without):
            continue
        names.add(each.name)
        for entry in each.files(table, "rows"):
            if entry.block is None or entry.block.begin == 0:
                for chunk in each.segments(entry):
                    num_rows += int(np.count_nonzero(np.isin(chunk.keys, wanted)))
    return FoundInSnapshots([each.url for each in found if each.name in names], num_rows)


def erase_from_snapshots(
    root_url: str | os.PathLike[str], table: str, keys: Keys, state_without: RemoveKeysFromState
) -> ErasedSnapshots:
    """Erases keys of a table from all snapshots in a folder. Nothing may be saved there at the same time.

    Args:
        root_url: Folder of the snapshots.
        table: Name of the table.
        keys: ``(n,)`` unique int64.
        state_without: Removes the keys from state that contains them.

    Raises:
        SnapshotError: A snapshot cannot be read and may contain the keys, no snapshot has the table, or
            something else was saved at the same time. All old snapshots are unchanged.
        SnapshotIOError: The file system failed. All steps can still be loaded; call the function again.
    """
    wanted = np.sort(check_keys(keys, table, unique=True))
    place, result = open_root(root_url), ErasedSnapshots()
    found = _open_all(root_url, table)
    if found:
        with writing(place.url, "staging folders"):
            result.num_dead_attempts = len(place.remove_stale(0.0))
    new: dict[str, Snapshot] = {}
    successors = {
        each.state(ERASURE).values["of"]: each
        for each in found
        if ERASURE in each.state_names(0) and not _contains_any(each, table, wanted, state_without)
    }
    # Bases before their deltas.
    for old in sorted(found, key=lambda each: len(each.chain)):
        base = None if old.base is None else new.get(old.base.name, old.base)
        known = successors.get(old.manifest_hash)
        if known is not None and (known.base and known.base.name) == (base and base.name):
            new[old.name] = known
        elif base is not old.base or _contains_any(old, table, wanted, state_without):
            new[old.name] = _rewrite_without(old, base, table, wanted, state_without, result)
    for old in sorted(found, key=lambda each: len(each.chain), reverse=True):
        if old.name not in new:
            result.clean.append(old.url)
            continue
        with writing(old.url, "the snapshot"):
            place.remove(old.name)
        result.replaced[old.url] = new[old.name].url
    result.clean.reverse()
    return result


def _open_all(root_url: str | os.PathLike[str], table: str) -> list[Snapshot]:
    """Opens all snapshots in a folder; raises if one cannot be read, or none has the table."""
    place = open_root(root_url)
    unreadable = list_unreadable_snapshots(root_url)
    if unreadable:
        url, why = next(iter(unreadable.items()))
        raise SnapshotError(
            f"{len(unreadable)} snapshots in {place.url} cannot be read, so keys cannot be erased from "
            f"them: {url} ({why}); remove these snapshots, and erase again",
            url=url,
        )
    found = open_snapshots(root_url)
    if found:
        tables = sorted({name for each in found for name in each.tables})
        if table not in tables:
            raise SnapshotError(
                f"no snapshot in {place.url} has a table {table!r}; choose one of their tables: "
                f"{', '.join(tables)}",
                url=place.url,
            )
    return found


def _contains_any(
    snapshot: Snapshot, table: str, keys: Keys, state_without: RemoveKeysFromState
) -> bool:
    """Whether one of the snapshot's own files contains one of the keys."""
    partitions = np.zeros(NUM_PARTITIONS, np.bool_)
    partitions[partition(keys)] = True
    for entry in snapshot.files(table):
        if partitions[entry.partitions[0] : entry.partitions[1]].any():
            for chunk in snapshot.segments(entry, partitions):
                if np.isin(chunk.keys, keys).any():
                    return True
    return any(
        state_without(entry.state, snapshot.state(entry.state, entry.rank)) is not None
        for entry in snapshot.files(kind="state")
    )


def _rewrite_without(
    old: Snapshot,
    base: Snapshot | None,
    table: str,
    keys: Keys,
    state_without: RemoveKeysFromState,
    result: ErasedSnapshots,
) -> Snapshot:
    def kept(name: str, kind: str, columns: ColumnBlock | None) -> Iterator[ScanChunk]:
        for entry in old.files(name, kind):
            if entry.block != columns:
                continue
            is_counted = kind == "rows" and (columns is None or columns.begin == 0)
            for chunk in old.segments(entry):
                if name != table:
                    yield chunk
                    continue
                is_kept = ~np.isin(chunk.keys, keys)
                result.num_rows += int(np.count_nonzero(~is_kept)) if is_counted else 0
                result.keys.update(chunk.keys[~is_kept].tolist() if is_counted else ())
                yield ScanChunk(
                    chunk.keys[is_kept],
                    chunk.rows[is_kept],
                    chunk.scores[is_kept] if len(chunk.scores) else chunk.scores,
                )

    def write_tables(writer: SnapshotWriter) -> None:
        for name, described in old.own_tables.items():
            for columns in dict.fromkeys(entry.block for entry in old.files(name)) or [None]:
                erased = (chunk.keys for chunk in kept(name, "erased", columns))
                writer.write_table(described, kept(name, "rows", columns), erased, columns)

    def state_of(name: str, rank: int) -> SnapshotState:
        state = old.state(name, rank)
        return state_without(name, state) or state

    return rewrite(
        old,
        old.place.url_of(_find_free_name(old)),
        write_tables,
        base=None if base is None else base.url,
        state_of=state_of,
        extra={ERASURE: {"of": old.manifest_hash}},
    )


def _find_free_name(old: Snapshot) -> str:
    ending = _ENDING.search(old.name)
    stem, number = (old.name[: ending.start()], int(ending[1])) if ending else (old.name, 0)
    while old.place.exists(f"{stem}.e{number + 1}"):
        number += 1
    return f"{stem}.e{number + 1}"
