"""Lists the snapshots in a folder, removes old ones, and compacts a chain into one full snapshot."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sparring.contracts.storage.results import ScanChunk
from sparring.errors import InvalidArgumentError, SnapshotError
from sparring.snapshot.chain import scan_rows
from sparring.snapshot.changed_keys import CHANGED_KEYS
from sparring.snapshot.format.data_file import SnapshotState
from sparring.snapshot.format.manifest import JSON
from sparring.snapshot.place.place import SnapshotRoot, reading, writing
from sparring.snapshot.reader import Snapshot, locate, open_chain, open_root, open_snapshot
from sparring.snapshot.writer import SnapshotWriter

__all__ = [
    "compact",
    "latest_snapshot",
    "list_snapshots",
    "open_snapshots",
    "retain",
    "rewrite",
    "list_unreadable_snapshots",
]

_STALE_SECONDS = 86_400.0


def list_snapshots(root_url: str | os.PathLike[str]) -> list[str]:
    """Returns the URLs of the committed snapshots in a folder, sorted by step and then by name.

    Omits snapshots whose manifests cannot be read; `list_unreadable_snapshots` lists them with the
    reason.

    Args:
        root_url: Folder of the snapshots: a path or any fsspec URL.

    Returns:
        The URLs. An empty list if the folder does not exist.

    Raises:
        InvalidArgumentError: `root_url` is not a folder.
        SnapshotIOError: The file system failed.

    Examples:
        >>> import tempfile
        >>> from sparring import StepContainer, list_snapshots
        >>> with tempfile.TemporaryDirectory() as folder, StepContainer() as container:
        ...     saved = container.save(f"{folder}/step-000000000")
        ...     list_snapshots(folder) == [saved.url]
        True
    """
    return [snapshot.url for snapshot in open_snapshots(root_url)]


def open_snapshots(root_url: str | os.PathLike[str]) -> list[Snapshot]:
    """Opens the snapshots that `list_snapshots` lists, in the same order.

    Args:
        root_url: Folder of the snapshots.

    Raises:
        InvalidArgumentError: `root_url` is not a folder.
        SnapshotIOError: The file system failed.
    """
    return _list_readable(open_root(root_url))


def list_unreadable_snapshots(root_url: str | os.PathLike[str]) -> dict[str, SnapshotError]:
    """Returns the snapshots that `list_snapshots` omits: URL → the error of reading the manifest.

    Args:
        root_url: Folder of the snapshots.

    Raises:
        InvalidArgumentError: `root_url` is not a folder.
        SnapshotIOError: The file system failed.

    Examples:
        >>> import tempfile
        >>> from sparring import StepContainer, list_unreadable_snapshots
        >>> with tempfile.TemporaryDirectory() as folder, StepContainer() as container:
        ...     saved = container.save(f"{folder}/step-000000000")
        ...     list_unreadable_snapshots(folder)
        {}
    """
    found: dict[str, SnapshotError] = {}
    _list_readable(open_root(root_url), found)
    return found


def latest_snapshot(root_url: str | os.PathLike[str]) -> Snapshot | None:
    """Returns the readable snapshot with the highest step in a folder, or None.

    Checks manifests, but not data files.

    Args:
        root_url: Folder of the snapshots.

    Raises:
        InvalidArgumentError: `root_url` is not a folder.
        SnapshotIOError: The file system failed.

    Examples:
        >>> import tempfile
        >>> from sparring import StepContainer, latest_snapshot
        >>> with tempfile.TemporaryDirectory() as folder, StepContainer() as container:
        ...     saved = container.save(f"{folder}/step-000000000")
        ...     latest_snapshot(folder).step
        0
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

    Keeps the `keep` newest readable snapshots and their bases. If all of them depend on one full
    snapshot, also keeps the newest snapshot that depends on another one, so that one damaged file cannot
    make all of them unreadable. Snapshots that cannot be read are not counted and not removed, so that
    they can be inspected.

    Args:
        root_url: Folder of the snapshots.
        keep: Number of snapshots to keep, at least 2.
        newest: URLs of snapshots that count as newer than all others, independent of their steps; the
            last one is the newest. A run passes its own snapshots if other runs share the folder.
        damaged: URLs of readable snapshots with a damaged data file. These snapshots, their deltas and
            their bases are not counted and not removed.
        pinned: URLs of snapshots that are never removed; their bases are not removed either.
        stale_seconds: An attempt that wrote nothing for this long is considered dead.

    Returns:
        The URLs of the removed snapshots.

    Raises:
        InvalidArgumentError: `keep` is less than 2.
        SnapshotIOError: The file system failed.

    Examples:
        >>> import tempfile
        >>> from sparring import SnapshotWriter, list_snapshots, retain
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in range(4):
        ...         writer = SnapshotWriter(f"{folder}/step-{step}", step=step)
        ...         writer.finish()
        ...         snapshot = writer.commit()
        ...     len(retain(folder, keep=2)), [url[-1] for url in list_snapshots(folder)]
        (2, ['2', '3'])
    """
    if keep < 2:
        raise InvalidArgumentError(
            f"keep must be at least 2, found {keep}: another snapshot must exist if the newest one "
            "cannot be read"
        )
    place = open_root(root_url)
    found = _list_readable(place)
    unsound = set(_find_names(place, damaged))
    order = {name: number for number, name in enumerate(_find_names(place, newest))}
    # The sort is stable, so all others remain in the order of their steps.
    ranked = sorted(found, key=lambda each: order.get(each.name, -1))
    counted = [each for each in ranked if not unsound or unsound.isdisjoint(_names(each.chain))]
    kept = counted[-keep:] + _find_independent(counted, keep)
    pinned_names = set(_find_names(place, pinned))
    others = _names(ranked) - _names(counted)
    kept += [each for each in ranked if each.name in others or each.name in pinned_names]
    needed = _find_needed(kept)
    removed = []
    # The newest first, so that no reader finds a delta without its base.
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
    """Returns the newest snapshot over another full snapshot, if the last `keep` are all over one."""
    full = {each.full_name for each in counted[-keep:]}
    if len(full) > 1:
        return []
    return [each for each in counted if each.full_name not in full][-1:]


def _find_needed(kept: Iterable[Snapshot]) -> set[str]:
    """Returns the names of snapshots and of all their bases."""
    needed: set[str] = set()
    for each in kept:
        link: Snapshot | None = each
        while link is not None and link.name not in needed:
            needed.add(link.name)
            link = link.base
    return needed


def _find_names(place: SnapshotRoot, urls: Iterable[str]) -> list[str]:
    """Returns the names of the snapshots that are in the folder `place`."""
    found = [locate(url) for url in urls]
    return [name for its_place, name in found if its_place.url == place.url]


def _names(snapshots: Iterable[Snapshot]) -> set[str]:
    return {each.name for each in snapshots}


def _list_readable(
    place: SnapshotRoot, others: dict[str, SnapshotError] | None = None
) -> list[Snapshot]:
    """Returns the sorted committed snapshots; adds the errors of unreadable ones to `others`."""
    try:
        with reading(place.url, "the folder"):
            names = [name for name in place.names() if place.is_committed(name)]
    except SnapshotError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return []
        if isinstance(error.__cause__, NotADirectoryError):
            raise InvalidArgumentError(
                f"{place.url} is not a folder; pass a folder of snapshots", url=place.url
            ) from error
        raise
    found = []
    known: dict[str, Snapshot] = {}
    for name in sorted(names):  # bases before their deltas, if their names contain the step
        try:
            opened, name_in = locate(place.url_of(name))
            is_here = opened.url == place.url
            snapshot = open_chain(opened, name_in, known=known if is_here else None)
        except SnapshotError as error:
            if others is not None:
                others[place.url_of(name)] = error
            continue
        # A URL resolves symbolic links; a snapshot that is in another folder does not count.
        if is_here:
            known[name] = snapshot
            found.append(snapshot)
    return sorted(found, key=lambda each: (each.step, each.name))


def compact(
    url: str | os.PathLike[str],
    into_url: str | os.PathLike[str],
    *,
    on_rows: Callable[[int], None] | None = None,
) -> Snapshot:
    """Writes the merged rows of a chain and its newest state as one full snapshot.

    The new snapshot has the same step, world size and state of each rank. The chain is not changed.

    Args:
        url: URL of the newest snapshot of the chain.
        into_url: URL of the snapshot to write.
        on_rows: Receives the number of rows after each chunk is written.

    Returns:
        The full snapshot.

    Raises:
        SnapshotError: The target exists already, or the chain cannot be read.
        SnapshotDamagedError: A file of the chain is damaged; nothing is committed.
        SnapshotIOError: The file system failed; nothing is committed.
    """
    source = open_snapshot(url)

    def chunks(table: str) -> Iterator[ScanChunk]:
        for chunk in scan_rows(source, table):
            yield chunk
            if on_rows is not None:
                on_rows(len(chunk))

    def write_tables(writer: SnapshotWriter) -> None:
        for name, table in source.tables.items():
            writer.write_table(table, chunks(name))

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
    """Writes a snapshot with the step, ranks and state of another one, but with new files of tables.

    Args:
        source: Snapshot that provides step, world size and state.
        into_url: URL of the snapshot to write.
        write_tables: Writes all tables, as rank 0.
        base: As for `SnapshotWriter`.
        state_of: Returns the state to write for a name and a rank; None copies the state of `source`.
        extra: Name → values of additional state.

    Raises:
        SnapshotError: Under the same conditions as `compact`; nothing is committed.
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
                is_useless = base is None and name == CHANGED_KEYS  # All keys have changed.
                if name not in (extra or {}) and not is_useless:
                    state = (state_of or source.state)(name, writer.rank)
                    writer.write_state(name, state.values, state.arrays)
            writer.finish()
        return writers[0].commit()
    finally:
        # Does nothing on rank 0 after a commit; the other writers release their resources.
        for writer in writers:
            writer.abandon()
