"""The versions in a folder of serving snapshots, and the bases of each."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

import sparring_packed
from sparring.adapter import open_root
from sparring.errors import SnapshotError, SnapshotIOError

__all__ = ["chain_of", "list_unreadable", "list_versions", "newest_full", "versions_until"]

_log = logging.getLogger(__name__)

_manifests: dict[str, tuple[tuple[int, ...], sparring_packed.ServingManifest]] = {}
"""Manifests that were read before: URL → identity and manifest. Manifests do not change, and a process
that publishes every second would otherwise read all of them each time."""
_reported: dict[str, str] = {}
"""URL of a version with a damaged manifest → the damage, which is reported once."""


def list_versions(out_url: str | os.PathLike[str]) -> dict[str, sparring_packed.ServingManifest]:
    """Returns the serving snapshots of a folder by name, newest last, in the order of readers."""
    place = open_root(out_url)
    found = {}
    try:
        names = [each for each in place.names() if place.is_committed(each)]
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SnapshotIOError(
            f"cannot list {out_url}: {error}; check the folder and its permissions"
        ) from error
    read = set()
    for name in names:
        url, identity = f"{os.fspath(out_url).rstrip('/')}/{name}", place.identity(name)
        read.add(url)
        before = _manifests.get(url)
        if identity is not None and before is not None and before[0] == identity:
            found[name] = before[1]
            continue
        try:
            found[name] = sparring_packed.read_manifest(url)
        except SnapshotError as error:
            if _reported.get(url) != str(error):
                _log.warning("serving snapshot %s is ignored: %s", name, error)
                _reported[url] = str(error)
            continue
        if identity is not None:
            _manifests[url] = identity, found[name]
    for url in _manifests.keys() - read:  # of removed snapshots, and of other folders
        _manifests.pop(url, None)  # Another thread may have deleted it.
    for url in _reported.keys() - read:
        _reported.pop(url, None)
    return dict(sorted(found.items(), key=lambda each: (each[1].order, each[0])))


def list_unreadable(
    out_url: str | os.PathLike[str], existing: Mapping[str, sparring_packed.ServingManifest]
) -> list[str]:
    """Returns the names of committed versions that are not in the result of `list_versions`."""
    place = open_root(out_url)
    try:
        return [each for each in place.names() if each not in existing and place.is_committed(each)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SnapshotIOError(
            f"cannot list {out_url}: {error}; check the folder and its permissions"
        ) from error


def newest_full(existing: Mapping[str, sparring_packed.ServingManifest]) -> str | None:
    """Returns the name of the newest full version."""
    full = [name for name, each in existing.items() if each.base is None]
    return full[-1] if full else None


def versions_until(
    step: int,
    existing: Mapping[str, sparring_packed.ServingManifest],
    bad_steps: Sequence[range] = (),
) -> list[str]:
    """Returns the versions that are not after a step of the newest generation, newest last."""
    generation = max((each.generation for each in existing.values()), default=0)
    return [
        name
        for name, each in existing.items()
        if each.generation < generation
        or (each.step <= step and not any(each.step in bad for bad in bad_steps))
    ]


def chain_of(name: str, existing: Mapping[str, sparring_packed.ServingManifest]) -> list[str]:
    """Returns a serving snapshot and all its bases."""
    chain = [name]
    while True:
        manifest = existing.get(chain[-1])
        if manifest is None or manifest.base is None or manifest.base.name in chain:
            return chain
        chain.append(manifest.base.name)
