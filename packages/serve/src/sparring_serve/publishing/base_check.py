"""Checks that the base of a delta is intact, because no server accepts a delta over a damaged version."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import xxhash

import sparring_packed
from sparring.adapter import open_root, reading
from sparring.errors import SnapshotError
from sparring_packed import ModelFile, ServingFile

__all__ = ["describe_damage"]

_BLOCK_BYTES = 8 << 20
_MAX_REMOTE_BYTES = 64 << 20
"""Larger files in object storage are not downloaded: only their sizes are compared."""
_SAME_TIME_SECONDS = 2.0
"""A file that changed less than this time ago could change again with the same time stamp."""
_hashed: dict[str, dict[str, tuple[tuple[int, ...], str]]] = {}
"""URL of a version → name of a file → its identity, and how its hash differs; empty if it does not. A
process that publishes every second reads each file once. Damage on the disk that does not change the time
stamps is found by the next process."""


def describe_damage(
    out_url: str,
    chain: Sequence[str],
    existing: Mapping[str, sparring_packed.ServingManifest],
    *,
    hashes: bool = True,
) -> str:
    """Returns a warning that a full version is written, because a serving snapshot or one of its bases is
    lost or damaged; empty if all is intact.

    The first call in a process reads all files, which takes as long as `sparring inspect --verify`.
    Later calls read only new and changed files.

    Args:
        out_url: URL of the folder of serving snapshots.
        chain: Names of the serving snapshot and its bases, newest first.
        existing: Manifests of the folder by name.
        hashes: Whether to compare hashes. Otherwise, sizes of local files are compared, and in object
            storage only manifests.
    """
    damage = _find_damage(out_url, chain, existing, hashes=hashes)
    return damage and f"version {chain[0]} is not intact, so a full version is written: {damage}"


def _find_damage(
    out_url: str,
    chain: Sequence[str],
    existing: Mapping[str, sparring_packed.ServingManifest],
    *,
    hashes: bool,
) -> str:
    """Returns what is lost or damaged; empty if all is intact."""
    place = open_root(out_url)
    for url in _hashed.keys() - {place.url_of(name) for name in chain}:
        _hashed.pop(url, None)  # of removed versions, and of other folders
    expected: str | None = None
    for name in chain:
        manifest = existing.get(name)
        if manifest is None:
            return f"{name} does not exist, or its manifest is damaged"
        if expected not in (None, manifest.hash):
            return f"{name} was replaced by another version"
        expected = None if manifest.base is None else manifest.base.hash
        try:
            _check_files(place, name, manifest, hashes=hashes)
        except (OSError, SnapshotError) as error:
            return str(error)
    return "" if expected is None else f"{chain[-1]} has no full version below it"


def _check_files(
    place: Any, name: str, manifest: sparring_packed.ServingManifest, *, hashes: bool
) -> None:
    """Raises if a file is lost or damaged."""
    folder_url = place.url_of(name)
    hashed = _hashed.setdefault(folder_url, {})
    is_local = "://" not in place.url
    if not (is_local or hashes):
        return
    entries: list[ServingFile | ModelFile] = [*manifest.files, *manifest.model]
    with place.open(name) as folder:
        for entry in entries:
            path = f"{folder_url}/{entry.name}"
            with reading(folder_url, entry.name), folder.open(entry.name) as file:
                if file.size_bytes != entry.size_bytes:
                    raise EOFError(
                        f"it has {file.size_bytes:,} bytes, expected {entry.size_bytes:,}"
                    )
                identity = _identity(path) if is_local else ()
                is_small = is_local or entry.size_bytes <= _MAX_REMOTE_BYTES
                if not hashes or not is_small:
                    continue
                before, damage = hashed.get(entry.name, (None, ""))
                if before != identity:
                    found = _hash(file, entry.size_bytes)
                    damage = (
                        "" if found == entry.hash else f"its hash is {found}, expected {entry.hash}"
                    )
                    is_old = is_local and (
                        time.time_ns() - max(identity[2:]) > _SAME_TIME_SECONDS * 1e9
                    )
                    if damage or is_old or not is_local:
                        hashed[entry.name] = identity, damage
                if damage:
                    raise EOFError(damage)


def _hash(file: Any, size_bytes: int) -> str:
    whole, block = xxhash.xxh3_128(), bytearray(min(_BLOCK_BYTES, size_bytes))
    for begin in range(0, size_bytes, _BLOCK_BYTES):
        part = memoryview(block)[: size_bytes - begin]
        file.read_into(begin, part)
        whole.update(part)
    return whole.hexdigest()


def _identity(path: str) -> tuple[int, ...]:
    """Returns numbers that change if a file is replaced or written."""
    found = os.lstat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
