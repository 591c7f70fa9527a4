"""The folder of a run's snapshots: which of them the run can use, and names for new ones."""

from __future__ import annotations

import re

from sparring import Snapshot, open_snapshot
from sparring.adapter import open_root, open_snapshots, reading
from sparring.errors import ConfigError, SnapshotError
from sparring_train.data.stream.quarantine import is_dropped, read_quarantines

__all__ = ["free_url", "list_candidates", "list_good_snapshots", "reject_other_files"]


def list_candidates(root: str) -> list[tuple[str, str]]:
    """Returns URLs of committed snapshots, newest first, each with the reason if it is unreadable.
    Dropped steps are left out."""
    place = open_root(root)
    with reading(place.url, "the folder"):
        try:
            names = [name for name in place.names() if place.is_committed(name)]
        except FileNotFoundError:
            return []
    steps = {each.name: each.step for each in open_snapshots(root)}
    found = []
    for name in names:
        url, reason, step = place.url_of(name), "", steps.get(name)
        try:
            if step is None:
                step = open_snapshot(url).step
        except SnapshotError as error:
            reason = str(error)
            # `RunSnapshots.save` puts the step in the name.
            numbers = re.findall(r"[0-9]+", name)
            step = int(numbers[0]) if numbers else -1
        found.append((step, name, url, reason))
    quarantines = read_quarantines(root)
    return [
        (url, reason)
        for step, _, url, reason in sorted(found, reverse=True)
        if not is_dropped(step, quarantines)
    ]


def list_good_snapshots(root: str) -> list[Snapshot]:
    """Returns the readable snapshots of a run, oldest first, without dropped steps.

    Args:
        root: the folder of the snapshots.

    Raises:
        DataError: the list of dropped steps cannot be read.
    """
    quarantines = read_quarantines(root)
    return [each for each in open_snapshots(root) if not is_dropped(each.step, quarantines)]


def reject_other_files(root: str) -> None:
    """Raises if a folder contains snapshots: two runs would remove each other's snapshots."""
    found = list_candidates(root)
    if not found and read_quarantines(root):
        raise ConfigError(
            f"snapshots.url: {root} contains quarantined offsets of a run without snapshots; use another "
            "folder (snapshots.url=…), or remove its folder cuts",
            setting="snapshots.url",
        )
    if found:
        raise ConfigError(
            f"snapshots.url: {root} already contains {len(found)} snapshots of a run, the newest is "
            f"{found[0][0]}, but this run does not resume; resume that run (--resume), use another "
            "folder (snapshots.url=…), or remove them first",
            setting="snapshots.url",
        )


def free_url(root: str, name: str) -> str:
    """Returns an unused URL; an unreadable snapshot may already have the name."""
    place = open_root(root)
    names = [name, *(f"{name}-{again}" for again in range(2, 1000))]
    return place.url_of(next(each for each in names if not place.exists(each)))
