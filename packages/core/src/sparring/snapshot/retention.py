"""Lists of snapshots in a folder, removal of old ones, and one full snapshot made of a chain."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence

from sparring.errors import InvalidArgumentError, SnapshotError
from sparring.snapshot.chain import scan_rows
from sparring.snapshot.format.data_file import SnapshotState
from sparring.snapshot.format.manifest import JSON
from sparring.snapshot.place.place import SnapshotRoot, reading, writing
from sparring.snapshot.reader import Snapshot, locate, open_root, open_snapshot
from sparring.snapshot.writer import SnapshotWriter

__all__ = [
    "compact",
    "latest_snapshot",
    "list_snapshots",
    "retain",
    "rewrite",
    "list_unreadable_snapshots",
]

_STALE_SECONDS = 86_400.0


def list_snapshots(root_url: str | os.PathLike[str]) -> list[str]:
    """The URLs of the committed snapshots in a folder, by step, then by name.

    A snapshot whose manifest cannot be read is left out; `open_snapshot` says why.

    Returns:
        An empty list where there is no such folder.

    Raises:
        InvalidArgumentError: it is no folder.
        SnapshotIOError: the file system failed.
    """
    return [snapshot.url for snapshot in _list_readable(open_root(root_url))]


def list_unreadable_snapshots(root_url: str | os.PathLike[str]) -> dict[str, SnapshotError]:
    """Snapshots that `list_snapshots` leaves out: URL → why it cannot be read.

    Raises:
        SnapshotIOError: the file system failed.
    """
    found: dict[str, SnapshotError] = {}
    _list_readable(open_root(root_url), found)
    return found


def latest_snapshot(root_url: str | os.PathLike[str]) -> Snapshot | None:
    """The readable snapshot of the highest step in a folder, or None.

    Manifests are checked, data files are not.

    Raises:
        SnapshotIOError: the file system failed.
    """
    found = _list_readable(open_root(root_url))
    return found[-1] if found else None


def retain(
    root_url: str | os.PathLike[str],
    keep: int,
    *,
    newest: Sequence[str] = (),
    damaged: Iterable[str] = (),
    pinned: Iterable[str] = (),
    stale_seconds: float = _STALE_SECONDS,
) -> list[str]:
    """Removes all but the newest snapshots, and the staging folders of dead attempts.

    Kept are the `keep` newest readable ones, and every base that one of these is over. If all these
    are over one full snapshot, the newest that is over another one is kept too, so that no single
    file can take all of them away. One that cannot be read is neither counted nor removed: a person
    should look at it.

    Args:
        root_url: the folder that holds them.
        keep: how many; at least 2.
        newest: URLs that count as newer than all others, whatever their steps, the last one as the
            newest: those of a run that others share its folder with.
        damaged: URLs of readable ones of which a file was found damaged. They, and what is over them,
            are neither counted nor removed, nor are their bases.
        pinned: URLs of those that are not removed, however old they are, nor are their bases.
        stale_seconds: an attempt that wrote nothing for so long is dead.

    Returns:
        The URLs of the snapshots that were removed.

    Raises:
        InvalidArgumentError: fewer than 2 are to be kept.
        SnapshotIOError: the file system failed.
    """
    if keep < 2:
        raise InvalidArgumentError(
            f"keep must be at least 2, found {keep}: if the newest cannot be read, there must be "
            "another"
        )
    place = open_root(root_url)
    found = _list_readable(place)
    unsound = set(_find_names(place, damaged))
    order = {name: number for number, name in enumerate(_find_names(place, newest))}
    # Stable: all others stay in the order of their steps.
    ranked = sorted(found, key=lambda each: order.get(each.name, -1))
    counted = [each for each in ranked if unsound.isdisjoint(_names_of_chain(each))]
    kept = counted[-keep:] + _find_independent(counted, keep)
    pinned_names = set(_find_names(place, pinned))
    kept += [each for each in ranked if each not in counted or each.name in pinned_names]
    needed = {name for each in kept for name in _names_of_chain(each)}
    removed = []
    # The newest first: no delta is ever seen without its base.
    for snapshot in reversed(found):
        if snapshot.name not in needed:
            with writing(snapshot.url, "the snapshot"):
                place.remove(snapshot.name)
            removed.append(snapshot.url)
    if found:
        with writing(place.url, "staging folders"):
            place.remove_stale(stale_seconds)
    return removed


def _find_independent(counted: Sequence[Snapshot], keep: int) -> list[Snapshot]:
    """The newest that shares no file with the last `keep`, if those are all over one full snapshot."""
    full = {each.chain[-1].name for each in counted[-keep:]}
    if len(full) > 1:
        return []
    return [each for each in counted if each.chain[-1].name not in full][-1:]


def _find_names(place: SnapshotRoot, urls: Iterable[str]) -> list[str]:
    """The names of those that are in a place."""
    found = [locate(url) for url in urls]
    return [name for its_place, name in found if its_place.url == place.url]


def _names_of_chain(snapshot: Snapshot) -> set[str]:
    return {each.name for each in snapshot.chain}


def _list_readable(
    place: SnapshotRoot, others: dict[str, SnapshotError] | None = None
) -> list[Snapshot]:
    """The committed snapshots in their order; why some cannot be read goes into `others`."""
    try:
        with reading(place.url, "the folder"):
            names = [name for name in place.names() if place.is_committed(name)]
    except SnapshotError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return []
        if isinstance(error.__cause__, NotADirectoryError):
            raise InvalidArgumentError(
                f"{place.url} is no folder; name the one that holds snapshots", url=place.url
            ) from error
        raise
    found = []
    for name in names:
        try:
            snapshot = open_snapshot(place.url_of(name))
        except SnapshotError as error:
            if others is not None:
                others[place.url_of(name)] = error
            continue
        # A URL resolves links; a snapshot in another folder is not of this one.
        if locate(snapshot.url)[0].url == place.url:
            found.append(snapshot)
    return sorted(found, key=lambda each: (each.step, each.name))


def compact(url: str | os.PathLike[str], into_url: str | os.PathLike[str]) -> Snapshot:
    """Writes the rows that a chain amounts to, and its newest state, as one full snapshot.

    The step, the world size and each rank's state are kept. The chain is not changed.

    Args:
        url: of the newest snapshot of the chain.
        into_url: of the snapshot to write.

    Returns:
        The full snapshot.

    Raises:
        SnapshotError: the target exists already, or the chain cannot be read.
        SnapshotDamagedError: a file of the chain is damaged; nothing is committed.
        SnapshotIOError: the file system failed; nothing is committed.
    """
    source = open_snapshot(url)

    def write_tables(writer: SnapshotWriter) -> None:
        for name, table in source.tables.items():
            writer.write_table(table, scan_rows(source, name))

    return rewrite(source, into_url, write_tables)


def rewrite(
    source: Snapshot,
    into_url: str | os.PathLike[str],
    write_tables: Callable[[SnapshotWriter], None],
    *,
    base: str | None = None,
    state_of: Callable[[str, int], SnapshotState] | None = None,
    extra: Mapping[str, JSON] | None = None,
) -> Snapshot:
    """Writes a snapshot of the same step, by the same ranks, with other files of tables.

    Args:
        source: where step, ranks and state come from.
        into_url: of the snapshot to write.
        write_tables: writes all tables, as rank 0.
        base: as `SnapshotWriter`.
        state_of: name and rank → state to write; None: that of `source`.
        extra: name → values of further state.

    Raises:
        SnapshotError: as `compact`; nothing is committed.
    """
    token = secrets.token_hex(8)
    writers: list[SnapshotWriter] = []
    try:
        for rank in range(source.world_size):
            writer = SnapshotWriter(
                os.fspath(into_url),
                step=source.step,
                rank=rank,
                world_size=source.world_size,
                base=base,
                token=token,
            )
            writers.append(writer)
        write_tables(writers[0])
        for name, values in (extra or {}).items():
            writers[0].write_state(name, values)
        for writer in writers:
            for name in source.state_names(writer.rank):
                if name not in (extra or {}):
                    state = (state_of or source.state)(name, writer.rank)
                    writer.write_state(name, state.values, state.arrays)
            writer.finish()
        return writers[0].commit()
    finally:
        # Of rank 0 after a commit: nothing. The others free what they hold.
        for writer in writers:
            writer.abandon()
