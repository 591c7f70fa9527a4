"""Names and generations of versions in a folder of serving snapshots."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from sparring import Snapshot
from sparring_packed import ServingManifest

__all__ = ["next_name", "place_version", "version_name"]


def place_version(
    snapshot: Snapshot, existing: Mapping[str, ServingManifest], is_taken: Callable[[str], bool]
) -> tuple[int, str]:
    """Returns the generation and the name with which a new version of a snapshot is the newest.

    Args:
        snapshot: Snapshot to publish.
        existing: Versions with an intact manifest, newest last.
        is_taken: Returns whether a version of a name exists, intact or not.
    """
    generation, name = _place(snapshot, existing)
    free = name
    while is_taken(free):  # a version with a damaged manifest
        free = next_name(name, free)
    return generation, free


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
