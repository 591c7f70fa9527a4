"""Names and generations of versions in a folder of serving snapshots."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from sparring import Snapshot
from sparring.adapter import open_root
from sparring.errors import SnapshotError
from sparring_packed import ServingManifest

__all__ = ["next_name", "place_version", "version_name"]


def place_version(
    out_url: str,
    snapshot: Snapshot,
    existing: Mapping[str, ServingManifest],
    unreadable: Collection[str],
) -> tuple[int, str]:
    """Returns the generation and the name with which a new version of a snapshot is the newest.

    Args:
        out_url: URL of the folder of serving snapshots.
        snapshot: Snapshot to publish.
        existing: Versions with an intact manifest, newest last.
        unreadable: Names of the other versions. Readers reject a folder if one of them is greater than
            the name of the newest version.

    Raises:
        SnapshotError: The name of another version is greater than all names of generations.
    """
    is_taken = open_root(out_url).exists

    def free(name: str) -> str:
        found = name
        while is_taken(found):  # a version with a damaged manifest
            found = next_name(name, found)
        return found

    generation, name = _place(snapshot, existing)
    name = free(name)
    greatest = max(unreadable, default="")
    if name <= greatest:
        number = re.match(r"version-(\d{6})\.", greatest)
        generation = max(generation, int(number[1]) if number else 1)
        name = free(version_name(generation, snapshot.name))
        if name <= greatest:
            generation += 1
            name = free(version_name(generation, snapshot.name))
    lower = [each for each, found in existing.items() if found.generation < generation]
    greatest = max([greatest, *lower])
    if name <= greatest:
        raise SnapshotError(
            f"publish: {snapshot.url} would be published as {name}, but {out_url} contains {greatest}, "
            "whose name is greater, so servers would not use the new version; publish to another folder, "
            f"or move {greatest} out of this one",
            url=snapshot.url,
        )
    return generation, name


def _place(snapshot: Snapshot, existing: Mapping[str, ServingManifest]) -> tuple[int, str]:
    if not existing:
        return 0, snapshot.name
    newest = list(existing)[-1]
    last = existing[newest]
    name = version_name(last.generation, snapshot.name)
    if last.source.hash == snapshot.manifest_hash:
        return last.generation, next_name(name, newest)
    if (last.order, newest) < ((last.generation, snapshot.step), name):
        return last.generation, name
    return last.generation + 1, version_name(last.generation + 1, snapshot.name)


def version_name(generation: int, name: str) -> str:
    """Returns the name of a version. Names of later generations are greater, so that readers of a format
    without generations notice that they cannot read the newest version."""
    return f"version-{generation:06d}.{name}" if generation else name


def next_name(name: str, last: str) -> str:
    """Returns the name for publishing a snapshot again. Names of one step sort by age, because
    readers use the last."""
    number = re.fullmatch(r"-(\d{3})", last.removeprefix(name))
    return f"{name}-{int(number[1]) + 1 if number else 2:03d}"
